"""A user's own tree of a job's framework, as its run records it: version, commit, changes.

The record is `spec/source.toml` in the run directory, so that a tree that changed is refused on resume as a changed job
file is. Beside it lies the diff against its commit, `source-DIGEST.diff`, one for each state that the run had.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from rlbox.errors import TimedOut, WorkFailed
from rlbox.foreign import parse_untrusted_toml
from rlbox.i18n import _, ngettext
from rlbox.secrets.masks import SecretMasker
from rlbox.system.command import run_command
from rlbox.system.safe_files import read_bytes
from rlbox.values import Command

SOURCE_RECORD_FILE = "spec/source.toml"

_DIFF_BYTES = 1 << 20
"""What is kept of a diff, and the largest new file that is in it."""
_GIT_S = 120.0
_SETUP_VERSION = re.compile(r"""^\s*version\s*=\s*["']([^"']+)["']""", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class SourceTree:
    """A tree as it is now; `commit` is empty without git, `version` where the tree does not say it.

    `diff` is the text of all changes since the commit, new files too; `digest` tells two states apart.
    """

    package: str
    folder: str
    version: str
    commit: str = ""
    branch: str = ""
    files_changed: int = 0
    diff: str = ""
    digest: str

    def to_json(self) -> dict[str, Any]:
        names = ("package", "folder", "version", "commit", "branch", "files_changed", "digest")
        diff = f"source-{self.digest[:12]}.diff" if self.diff else ""
        return {**{name: getattr(self, name) for name in names}, "diff": diff}

    def render_record_texts_by_filename(self, masker: SecretMasker) -> dict[str, str]:
        record = self.to_json()
        lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in record.items()]
        files = {SOURCE_RECORD_FILE: "".join(lines)}
        if record["diff"]:
            text = masker.mask_text(self.diff)
            cut = f"\n[cut: {len(text)} characters in all]\n" if len(text) > _DIFF_BYTES else ""
            files[record["diff"]] = text[:_DIFF_BYTES] + cut
        return files


def load_source_toml_or_empty(run_dir: Path) -> dict[str, Any]:
    try:
        return parse_untrusted_toml(read_bytes(run_dir / SOURCE_RECORD_FILE).decode("utf-8", "replace"))
    except (OSError, ValueError):
        return {}


def describe_source_record(record: Mapping[str, Any]) -> str:
    name = f"{record.get('package', '')} {record.get('version') or ''}".strip()
    folder, digest = record.get("folder", ""), str(record.get("digest", ""))[:12]
    if not record.get("commit"):
        text = _("{name}, no git commit, digest {digest}, {folder}")
        return text.format(name=name, digest=digest, folder=folder)
    changed = record.get("files_changed", 0)
    branch = f" ({record['branch']})" if record.get("branch") else ""
    commit = f"{str(record['commit'])[:12]}{branch}"
    files = ngettext("{count} file changed", "{count} files changed", changed).format(count=changed)
    text = _("{name}, commit {commit}, {files}, {folder}")
    return text.format(name=name, commit=commit, files=files if changed else _("no changes"), folder=folder)


def probe_source_tree(folder: Path, package: str) -> SourceTree:
    facts = _with_git(folder, package) or {"digest": _files_digest(folder)}
    return SourceTree(package=package, folder=str(folder), version=read_tree_version_or_empty(folder, package), **facts)


def read_tree_version_or_empty(folder: Path, package: str) -> str:
    """Return the version that a tree says of itself; empty where it does not, or says none that can be compared.

    Source: verl has verl/version/version, OpenRLHF version.txt, slime setup.py.
    """
    for text in _versions(folder, package):
        with contextlib.suppress(InvalidVersion):
            return str(Version(text.strip()))
    return ""


def _versions(folder: Path, package: str) -> Iterator[str]:
    yield _text(folder / package / "version/version")
    yield _text(folder / "version.txt")
    with contextlib.suppress(ValueError, KeyError, TypeError):
        yield str(parse_untrusted_toml(_text(folder / "pyproject.toml"))["project"]["version"])
    yield from _SETUP_VERSION.findall(_text(folder / "setup.py"))


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _git(folder: Path, *words: str) -> str | None:
    """None where it fails; it changes nothing, not even its index."""
    argv = ("git", "-C", str(folder), "-c", "core.quotepath=false", "-c", "core.fsmonitor=false", *words)
    try:
        done = run_command(Command(argv=argv, env={"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}, timeout_s=_GIT_S))
    except (WorkFailed, TimedOut):
        return None
    return done.stdout if done.ok else None


def _with_git(folder: Path, package: str) -> dict[str, Any] | None:
    commit = _git(folder, "rev-parse", "HEAD") if _git(folder, "ls-files", "--", package) else None
    if commit is None:
        return None
    changes = _git(folder, "diff", "--no-ext-diff", "--no-textconv", "--no-color", "--relative", "HEAD", "--", ".")
    new = _git(folder, "ls-files", "--others", "--exclude-standard", "-z", "--", ".")
    if changes is None or new is None:
        return None
    added = "".join(_format_new_file(folder, name) for name in sorted(filter(None, new.split("\0"))))
    return {
        "commit": commit.strip(),
        "branch": (_git(folder, "symbolic-ref", "--short", "-q", "HEAD") or "").strip(),
        "files_changed": len(re.findall("^diff --git ", changes + added, re.MULTILINE)),
        "diff": changes + added,
        "digest": hashlib.sha256("\0".join((commit, changes, added)).encode("utf-8", "replace")).hexdigest(),
    }


def _format_new_file(folder: Path, name: str) -> str:
    path = folder / name
    size = path.stat().st_size if path.is_file() else 0
    head = f"diff --git a/{name} b/{name}\nnew file mode 100644\n"
    try:
        text = path.read_bytes().decode() if size <= _DIFF_BYTES else None
    except (OSError, UnicodeDecodeError):
        text = None
    if text is None:
        return f"{head}Binary files /dev/null and b/{name} differ ({size} bytes)\n"
    if not text:
        return head
    lines = text.removesuffix("\n").split("\n")
    end = "" if text.endswith("\n") else "\\ No newline at end of file\n"
    body = "".join(f"+{line}\n" for line in lines)
    return f"{head}--- /dev/null\n+++ b/{name}\n@@ -0,0 +1,{len(lines)} @@\n{body}{end}"


def _files_digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        for path in (Path(root) / name for name in sorted(names) if not name.startswith(".")):
            if path.is_file():
                facts = path.stat()
                line = f"{path.relative_to(folder)}\0{facts.st_size}\0{facts.st_mtime_ns}\n"
                digest.update(line.encode("utf-8", "replace"))
    return digest.hexdigest()
