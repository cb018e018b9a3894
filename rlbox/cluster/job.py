"""A job for a cluster: what is sent along, what Ray is asked for, and how it stands."""

from __future__ import annotations

import fnmatch
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlbox.foreign import parse_json

LEFT_OUT = (".git", ".venv", "venv", "__pycache__", "ckpts", "checkpoints", "outputs", "wandb", "*.pyc")
"""What no working directory is sent with; as fix `ray-working-dir` has it."""

MOST_BYTES = 100_000_000
"""Of a working directory, packed; what is larger belongs on the nodes' data disks."""

ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
SUCCEEDED = "SUCCEEDED"


@dataclass(frozen=True, kw_only=True)
class JobWish:
    """What is to run: `folder` is sent along without `exclude`; empty: nothing is.

    `env` reaches all its processes; the names in `secret` are masked in what is shown. Who has the cluster's token can
    read all of it.
    """

    words: tuple[str, ...]
    folder: str = ""
    exclude: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secret: tuple[str, ...] = ()
    detach: bool = False
    id: str = ""

    def body(self, package: str) -> dict[str, Any]:
        """Return what Ray's Jobs API takes; `package` is the address of the packed folder."""
        runtime: dict[str, Any] = {"env_vars": dict(self.env)} if self.env else {}
        if package:
            runtime["working_dir"] = package
        return {"entrypoint": shlex.join(self.words), "submission_id": self.id, "runtime_env": runtime}


def is_left_out(path: str, exclude: Sequence[str] = ()) -> bool:
    """Return whether a file, by its path below the folder, is not sent: one of its parts, or it, is left out."""
    parts = path.split("/")
    return any(fnmatch.fnmatchcase(part, sign.rstrip("/")) for part in parts for sign in (*LEFT_OUT, *exclude)) or any(
        fnmatch.fnmatchcase(path, sign) for sign in exclude
    )


@dataclass(frozen=True, kw_only=True)
class JobState:
    """How a job stands, in Ray's word; `exit_code` is its driver's, None where there is none yet or Ray has none."""

    status: str
    exit_code: int | None = None
    message: str = ""

    @property
    def ended(self) -> bool:
        """Whether nothing of it comes any more."""
        return self.status in ENDED

    @property
    def code(self) -> int:
        """The exit code that stands for it: the driver's, else 0 or 1."""
        if self.exit_code is not None:
            return self.exit_code
        return 0 if self.status == SUCCEEDED else 1


def read_job(status: int, text: str) -> JobState:
    """Return the state in an answer of the Jobs API; `UNREACHABLE` where it is none."""
    try:
        row = parse_json(text) if status == 200 else {}
        code = row.get("driver_exit_code")
        return JobState(
            status=str(row["status"]),
            exit_code=code if isinstance(code, int) else None,
            message=str(row.get("message") or ""),
        )
    except (ValueError, KeyError, AttributeError):
        why = text.strip().splitlines()[-1][:200] if text.strip() else "no answer"
        return JobState(status="UNREACHABLE", message=f"HTTP {status}: {why}" if status else why)
