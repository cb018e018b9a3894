"""An instance over ssh: wait until it is ready, bring what a job needs, bring home what it made."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlbox.amounts import limit_text, size_text
from rlbox.errors import LockHeld, NodeError, SpecError, TimedOut, WorkFailed
from rlbox.files.act.folders import state_folder
from rlbox.foreign import parse_json
from rlbox.printable import isolated
from rlbox.spec.project import Project
from rlbox.ssh.connection import Connection, SshAddress
from rlbox.ssh.files import Tell, list_files, send_file, send_folder, send_tree
from rlbox.ssh.home import Home
from rlbox.ssh.listing import RemoteFile
from rlbox.vast.request import Instance
from rlbox.vast.stay import ENV_FILE, LOG, PROJECT, REFUSED, RUN, STAY, Stay, find_tool, keep_text, wanted_paths

_POLL_S = 5.0
_STARTED_S = 180.0
_PROJECT_FOLDERS = ("images", "jobs", "sources", "templates")
_MOST_PROJECT = 64 << 20
_MANIFEST = "fetched.json"

Say = Callable[[str], None]


def address_of(instance: Instance) -> SshAddress:
    """Return how an instance is reached; `NodeError` while it has no address."""
    if not instance.ssh:
        raise NodeError(
            f"instance {instance.id} has no address: it is {instance.status or 'being made'}",
            next_step=f"rlbox vast start {instance.id}",
        )
    hosts = _home(instance.id) / "known_hosts"
    return SshAddress(host=instance.host, user="root", port=instance.port, known_hosts=hosts)


def wait_ready(connection: Connection, disk: str, number: int, timeout_s: float, say: Say) -> None:
    """Wait until the on-start script has ended well; `say` hears each change of its last word.

    Raises
    ------
    WorkFailed
        A step of it failed.
    TimedOut
        It did not end in time.
    """
    end, told = time.monotonic() + timeout_s, ""
    look = f"rlbox vast ssh {number} 'tail -n 40 {disk}/onstart.log'"
    while True:
        state = connection.ask(f"cat {shlex.quote(disk)}/onstart.status").stdout.strip()
        if state != told:
            told = state
            say(f"instance {number}: on-start {isolated(state) or 'begins'}")
        if state.startswith("ready"):
            return
        if state.startswith("failed"):
            raise WorkFailed(f"the on-start script of instance {number} {state}", next_step=look)
        if time.monotonic() >= end:
            raise TimedOut(
                f"instance {number} was not ready within {limit_text(timeout_s)}: {isolated(state) or 'nothing'}",
                next_step=look,
            )
        time.sleep(_POLL_S)


def bring_stay(connection: Connection, stay: Stay, project: Project, env_file: Path | None, number: int) -> None:
    """Bring to instance `number` the user's specs, the secrets' file and the stay; one that is the same keeps its run.

    Raises
    ------
    LockHeld
        The instance carries out a run of another stay.
    """
    folder, text = shlex.quote(stay.folder), stay.text()
    before = connection.ask(f"cat {folder}/{STAY}").stdout
    rows = remote_rlbox(connection, stay.disk, ("runs",))["runs"] if before not in ("", text) else ()
    if going := [str(row["run"]) for row in rows if row["state"] in ("starting", "running")]:
        tool = connection.ask(f"{find_tool(stay.disk)}; echo $tool").stdout.strip()
        raise LockHeld(
            f"the instance carries out run {going[0]}",
            where=connection.address.name,
            next_step=f"wait for its end, or end it: rlbox vast ssh {number} "
            f"'{tool}/bin/rlbox stop {going[0]} --data {stay.disk}'",
        )
    if names := project_files(project):
        send_tree(connection, project.folder, names, f"{stay.folder}/{PROJECT}")
    if env_file:
        command = f"umask 077; cat >{shlex.quote(stay.disk)}/{ENV_FILE}"
        connection.need(command, "the secrets cannot be sent", env_file.read_text("utf-8"))
    if before != text:
        write = f"mkdir -p {folder} && rm -f {folder}/{RUN} && cat >{folder}/{STAY}.new && cd {folder}"
        connection.need(f"{write} && mv {STAY}.new {STAY}", "the stay cannot be written", text)


def bring_data(connection: Connection, stay: Stay, data: Sequence[tuple[Path, str]], tell: Tell) -> None:
    """Bring files and folders of this machine to their places below the data disk."""
    for path, goal in data:
        if path.is_dir():
            names = [str(one.relative_to(path)) for one in sorted(path.rglob("*")) if one.is_file()]
            send_folder(connection, path, names, f"{stay.disk}/{goal}", tell)
        else:
            send_file(connection, path, f"{stay.disk}/{goal}", tell)


def start_keeper(connection: Connection, stay: Stay, number: int) -> str:
    """Start what keeps the job going on instance `number`, unless it is there; return its run once there is one."""
    end, folder = time.monotonic() + _STARTED_S, shlex.quote(stay.folder)
    connection.need(f"rm -f {folder}/{REFUSED}", "the job cannot be started")
    while time.monotonic() < end:
        if run := connection.ask(f"cat {folder}/{RUN}").stdout.strip():
            return run
        if refused := connection.ask(f"cat {folder}/{REFUSED}").stdout.strip():
            raise WorkFailed(
                f"the job does not start there: {refused}",
                next_step=f"mend it, then type the same with --instance {number}",
            )
        connection.need(keep_text(stay.disk), "the job cannot be started")  # one that ends a stay may still be there
        time.sleep(_POLL_S)
    raise TimedOut(
        f"no run began within {limit_text(_STARTED_S)}",
        next_step=f"rlbox vast ssh {number} 'tail -n 40 {stay.folder}/{LOG}'",
    )


def project_files(project: Project) -> list[str]:
    """Return the user's own specs, as paths below the project; `SpecError` when they are more than specs."""
    if project.folder == project.roots[-1]:
        return []
    found = [
        path
        for name in _PROJECT_FOLDERS
        for path in sorted((project.folder / name).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    ]
    if sum(path.stat().st_size for path in found) > _MOST_PROJECT:
        raise SpecError(
            f"the project's {', '.join(_PROJECT_FOLDERS)} have more than {size_text(_MOST_PROJECT)}",
            where=str(project.folder),
            next_step="put data elsewhere, and bring it with --data PATH",
        )
    return [str(path.relative_to(project.folder)) for path in found]


def remote_rlbox(connection: Connection, disk: str, words: Sequence[str]) -> Mapping[str, Any]:
    """Return what a command line of rlbox says there as JSON."""
    command = f"{find_tool(disk)}; $tool/bin/rlbox {shlex.join(words)} --data {shlex.quote(disk)} --json"
    told = parse_json(connection.need(command, f"rlbox {words[0]} fails there"))
    return told if isinstance(told, dict) else {}


def wanted_files(
    connection: Connection, disk: str, more: Iterable[str] = ()
) -> tuple[tuple[RemoteFile, ...], tuple[str, ...]]:
    """Return the files of an instance that come home, without their sums, and what of them cannot be read."""
    runs = remote_rlbox(connection, disk, ("runs",))["runs"]
    series = remote_rlbox(connection, disk, ("ckpt", "ls"))["series"]
    return list_files(connection, disk, sorted({*wanted_paths(runs, series, disk), *more}))


def home_of(number: int, folder: Path | None = None) -> Home:
    """Return what of an instance is on this machine; without a folder, in the one that was used before."""
    return Home(_home(number) / _MANIFEST, folder)


def _home(number: int) -> Path:
    return state_folder("vast", str(number))
