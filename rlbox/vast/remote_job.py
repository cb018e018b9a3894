"""The job that `vast up` leaves on an instance: what runs there, where its files are, and which of them are fetched."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

from rlbox.errors import SpecError
from rlbox.evaluation.checkpoints import TRACKER_FILES
from rlbox.i18n import _

JOB_DIRECTORY = ".rlbox-up"
"""Folder of the data disk that holds the job, its agent's log and the user's project."""
# The names of files stay as released versions of rlbox wrote them.
JOB_FILE, RUN_FILE, LOG_FILE, PROJECT_DIRECTORY, REFUSED_FILE = "job.json", "run", "job.log", "project", "refused"
ENDED_FILE, FOLLOWED_FILE = "ended.json", "followed"
"""What the agent writes when the run has ended, and what a client touches that follows it."""
FOLLOWER_TIMEOUT_S = 120.0
"""How long after the last touch a client still counts: the instance is stopped only after it has fetched."""
_TOOLS = ("/opt/rlbox", "/opt/rlbox-cli")
"""Where an image, and a machine brought to a lock, have rlbox."""


@dataclass(frozen=True, kw_only=True)
class RemoteJob:
    """What an instance is for: a job with the words that follow it, and what is done when its run ends."""

    job: str
    disk: str
    words: tuple[str, ...] = ()
    then: Literal["keep", "stop"] = "keep"

    @property
    def folder(self) -> str:
        return f"{self.disk}/{JOB_DIRECTORY}"

    def to_json_text(self) -> str:
        # agents of earlier versions, which an image may have, want `notify`
        return json.dumps({"schema": 1, **asdict(self), "notify": ""}, indent=1) + "\n"


def parse_remote_job(json_text: str) -> RemoteJob:
    row = json.loads(json_text)
    return RemoteJob(job=row["job"], disk=row["disk"], words=tuple(row["words"]), then=row["then"])


def format_shell_setting_tool_to_rlbox_dir(data_disk: str) -> str:
    """Return shell text that sets `tool` to the folder of rlbox on an instance, empty where there is none."""
    places = " ".join((*_TOOLS, f"{data_disk}{_TOOLS[0]}"))
    return f"tool=; for p in {places}; do [ -x $p/bin/rlbox ] && [ -x $p/bin/python ] && tool=$p && break; done"


def format_job_agent_start_shell(data_disk: str) -> str:
    """Return the shell script that starts the agent unless it runs; every start of the instance executes it."""
    folder = f"{data_disk}/{JOB_DIRECTORY}"
    return (
        f"[ -e {folder}/{JOB_FILE} ] || exit 0\n{format_shell_setting_tool_to_rlbox_dir(data_disk)}\n"
        f'[ -n "$tool" ] || {{ echo "this instance has no rlbox" >&2; exit 1; }}\n'
        f"setsid $tool/bin/python -m rlbox.vast {folder} </dev/null >>{folder}/{LOG_FILE} 2>&1 9>&- &\n"
    )


def list_run_and_complete_checkpoint_dirs(
    runs: Sequence[Mapping[str, Any]], checkpoint_series: Sequence[Mapping[str, Any]], disk: str
) -> tuple[str, ...]:
    """Return the directories below the disk that are fetched: every run, and every complete checkpoint.

    `runs` and `checkpoint_series` are what `rlbox runs` and `rlbox ckpt ls` say there as JSON.
    """
    paths = {f"runs/{row['run']}" for row in runs}
    for series in checkpoint_series:
        whole = [strip_disk_prefix_or_raise(row["path"], disk) for row in series["checkpoints"] if row["whole"]]
        paths.update(whole)
        if whole:
            folder = strip_disk_prefix_or_raise(series["path"], disk)
            paths.update(f"{folder}/{name}" for name in TRACKER_FILES)
    return tuple(path for path in sorted(paths) if not any(path.startswith(f"{other}/") for other in paths))


def strip_disk_prefix_or_raise(path: str, disk: str) -> str:
    """Return a path of an instance as it is below its disk; `SpecError` when it is not."""
    whole = PurePosixPath(disk) / path
    if ".." in whole.parts or not whole.is_relative_to(disk):
        raise SpecError(
            _("{path} is not on the data disk {disk}").format(path=path, disk=disk),
            next_step=_("name folders below {disk}").format(disk=disk),
        )
    return str(whole.relative_to(disk))
