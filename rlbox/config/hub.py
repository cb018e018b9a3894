"""Models and data sets of a hub: the `[[hub]]` entries of targets and jobs, and the lock that pins their files."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from rlbox.config.schema import SingleLine, SpecModel
from rlbox.errors import SpecError
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _

HUB_LOCK_SCHEMA = 1
CONTAINER_HUB_DIR = "/opt/hub"
"""Where a container sees the snapshots that its run uses."""

RepoKind = Literal["model", "dataset"]
HubName = Literal["huggingface", "modelscope"]
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DEFAULT_BRANCH = {"huggingface": "main", "modelscope": "master"}


class HubEntry(SpecModel):
    """A model or a data set that runs read from a folder: `{hub.NAME}` in a command."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]*$")] = Field(
        description="name for {hub.NAME}, unique in the target or job"
    )
    repo: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$")] = Field(
        description="repository on the hub: Qwen/Qwen3-0.6B"
    )
    revision: SingleLine = Field("", description="branch, tag or commit; empty: the default branch")
    patterns: tuple[SingleLine, ...] = Field(
        (), description="files to take, as shell patterns: *.json, data/*.parquet; empty: all"
    )
    kind: RepoKind = Field("model", description="model or dataset")
    source: HubName = Field("huggingface", description="hub that the lock file is made from: huggingface, modelscope")
    trust_remote_code: bool = Field(
        False, description="runs execute Python code of the repository; revision must be a full commit"
    )

    @model_validator(mode="after")
    def _code_is_pinned(self) -> HubEntry:
        if self.trust_remote_code and not _COMMIT.fullmatch(self.revision):
            raise ValueError(
                _("trust_remote_code needs a revision of 40 hexadecimal digits: a branch or tag can get other code")
            )
        return self

    @property
    def kind_and_name(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def wanted_revision(self) -> str:
        return self.revision or _DEFAULT_BRANCH[self.source]

    def takes_file(self, path: str) -> bool:
        return not self.patterns or any(fnmatch.fnmatchcase(path, pattern) for pattern in self.patterns)


def find_repeated_hub_name_problems(entries: Iterable[HubEntry]) -> list[str]:
    counts = Counter(entry.name for entry in entries)
    repeated = [name for name, count in counts.items() if count > 1]
    return [_("hub: two entries have the name {name!r}").format(name=name) for name in repeated]


@dataclass(frozen=True, kw_only=True)
class LockedHubFile:
    path: str
    sha256: str
    size: int


@dataclass(frozen=True, kw_only=True)
class LockedHubRepo:
    """One repository at one commit; all but `commit` and `files` is what the entry said when it was locked."""

    name: str
    repo: str
    revision: str
    patterns: tuple[str, ...]
    kind: RepoKind
    source: HubName
    commit: str
    files: tuple[LockedHubFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def snapshot_dir_name(self) -> str:
        """Name of the folder with exactly these files; without dots, which old transformers take for packages."""
        rows = json.dumps([[file.path, file.sha256] for file in self.files])
        readable = self.repo.replace("/", "--").replace(".", "_")
        return f"{readable}-{hashlib.sha256(rows.encode()).hexdigest()[:12]}"

    def is_made_from(self, entry: HubEntry) -> bool:
        same = all(getattr(self, key) == getattr(entry, key) for key in ("name", "repo", "patterns", "kind", "source"))
        return same and self.revision == entry.wanted_revision


@dataclass(frozen=True, kw_only=True)
class HubLock:
    """The locked repositories of a target or a job, `owner`."""

    owner: str
    repos: tuple[LockedHubRepo, ...] = ()

    def find_current_repo(self, entry: HubEntry) -> LockedHubRepo | None:
        """Return the repository of an entry; None when it is not locked, or was locked from another entry."""
        return next((repo for repo in self.repos if repo.is_made_from(entry)), None)

    def to_json_text(self) -> str:
        """Return the lock file: stable order, one file a line."""
        repos = []
        for repo in self.repos:
            head = {key: value for key, value in asdict(repo).items() if key != "files"}
            files = ",\n".join(f"      {json.dumps(asdict(file), ensure_ascii=False)}" for file in repo.files)
            repos.append(f'    {json.dumps(head, ensure_ascii=False)[:-1]}, "files": [\n{files}\n    ]}}')
        head_line = f'  "schema": {HUB_LOCK_SCHEMA},\n  "owner": {json.dumps(self.owner)}'
        return "{\n" + head_line + ',\n  "hub": [\n' + ",\n".join(repos) + "\n  ]\n}\n"


def load_hub_lock(path: Path) -> HubLock | None:
    """Return the lock in `path`, or None when there is none; `SpecError` when it is broken or of another schema."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    owner = path.parent.name if path.name == "hub.lock.json" else path.name.partition(".")[0]
    try:
        data = parse_untrusted_json(text)
        if data["schema"] != HUB_LOCK_SCHEMA:
            raise ValueError(f"schema {data['schema']}, this rlbox reads {HUB_LOCK_SCHEMA}")
        return HubLock(owner=str(data["owner"]), repos=tuple(map(_parse_repo, data["hub"])))
    except (ValueError, KeyError, TypeError) as error:
        why = _("{name}: {error}").format(name=type(error).__name__, error=error)
        what = _("{where}: not a lock file: {why}").format(where=path, why=why)
        raise SpecError(what, next_step=f"rlbox lock {owner}") from error


def _parse_repo(row: dict[str, Any]) -> LockedHubRepo:
    files = tuple(LockedHubFile(**file) for file in row["files"])
    for file in files:
        if not is_path_inside_snapshot(file.path) or not re.fullmatch(r"[0-9a-f]{64}", file.sha256):
            raise ValueError(f"files: {file.path!r}")
    return LockedHubRepo(**{**row, "patterns": tuple(row["patterns"]), "files": files})


def is_path_inside_snapshot(path: str) -> bool:
    return not (path.startswith("/") or {"", ".", ".."} & set(path.split("/")))
