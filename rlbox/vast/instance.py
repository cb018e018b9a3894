"""An instance over ssh: wait until it is ready, upload what a job needs, find and list what it made."""

from __future__ import annotations

import hashlib
import shlex
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlbox.amounts import decimal_size_text, exact_duration_text
from rlbox.config.project import Project
from rlbox.errors import LockHeld, NodeError, TimedOut, WorkFailed
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.image.context import write_rlbox_wheel
from rlbox.ssh.connection import SshAddress, SshConnection
from rlbox.ssh.files import DownloadDirectory, Listing, ReportBytes, list_files, replace_remote_tree, send_file
from rlbox.system.command import DEVNULL
from rlbox.system.files import compute_file_sha256, state_path
from rlbox.vast.remote_job import (
    ENDED_FILE,
    ENV_FILE,
    FOLLOWED_FILE,
    JOB_FILE,
    LOG_FILE,
    PROJECT_DIRECTORY,
    REFUSED_FILE,
    RUN_FILE,
    RemoteJob,
    format_job_agent_start_shell,
    format_rlbox_tool_assignment_shell,
    list_runs_and_complete_checkpoints,
)
from rlbox.vast.request import Instance

_POLL_S = 5.0
_STARTED_S = 180.0
_PROJECT_FOLDERS = ("images", "jobs", "sources", "templates")
_MANIFEST = "fetched.json"
_SENT = "sent.sha256"
_HAS_IMAGE = "[ -e /opt/rlbox/share/lock.json ] && [ ! -e /opt/rlbox/share/applied.json ]"
"""Whether the instance was started from an image of rlbox: `apply` leaves a record beside its lock."""

ReportLine = Callable[[str], None]


def ssh_address(instance: Instance) -> SshAddress:
    """Return how an instance is reached; `NodeError` while it has no address."""
    if not instance.ssh_command:
        raise NodeError(
            _("instance {id} has no address: it is {status}").format(
                id=instance.id, status=instance.status or _("being made")
            ),
            next_step=f"rlbox vast start {instance.id}",
        )
    hosts = _home(instance.id) / "known_hosts"
    return SshAddress(host=instance.host, user="root", port=instance.port, known_hosts=hosts)


def wait_for_onstart(
    connection: SshConnection, data_disk: str, instance_id: int, timeout_s: float, say: ReportLine
) -> None:
    """Wait until the on-start script has ended well; `say` hears each change of its last word.

    Raises
    ------
    WorkFailed
        A step of it failed.
    TimedOut
        It did not end in time.
    """
    end, told = time.monotonic() + timeout_s, ""
    look = _("rlbox vast ssh {number} 'tail -n 40 {disk}/onstart.log'").format(number=instance_id, disk=data_disk)
    while True:
        state = connection.run(f"cat {shlex.quote(data_disk)}/onstart.status").stdout.strip()
        if state != told:
            told = state
            say(f"instance {instance_id}: on-start {state or 'begins'}")
        if state.startswith("ready"):
            return
        if state.startswith("failed"):
            raise WorkFailed(
                _("the on-start script of instance {number} {state}").format(number=instance_id, state=state),
                next_step=look,
            )
        if time.monotonic() >= end:
            raise TimedOut(
                _("instance {number} was not ready within {timeout_s}: {state}").format(
                    number=instance_id, timeout_s=exact_duration_text(timeout_s), state=state or _("nothing")
                ),
                next_step=look,
            )
        time.sleep(_POLL_S)


def sync_rlbox_unless_in_image(
    connection: SshConnection, job: RemoteJob, project: Project, onstart_script: str, instance_id: int, say: ReportLine
) -> None:
    """Bring rlbox and the user's specs to an instance whose image has no rlbox.

    Its on-start script waits for them the first time. It is started again where it failed, or where they changed.

    Parameters
    ----------
    onstart_script
        The on-start script, as the instance was created with.

    Raises
    ------
    LockHeld
        The instance carries out a run of another job.
    """
    if connection.run(_HAS_IMAGE).ok:
        return
    _require_free(connection, job, instance_id)
    names, folder = _list_spec_files_to_upload(project), job.folder
    with tempfile.TemporaryDirectory(prefix="rlbox-wheel-") as made:
        wheel = write_rlbox_wheel(Path(made))
        total = hashlib.sha256(wheel.read_bytes())
        for name in names:
            total.update(f"{name}\0{compute_file_sha256(project.folder / name)}\n".encode())
        digest = total.hexdigest()
        if connection.run(f"cat {folder}/{_SENT}").stdout.strip() == digest:
            if connection.run(f"cat {job.disk}/onstart.status").stdout.startswith("failed"):
                _start_again(connection, job, onstart_script)
            return
        say(f"instance {instance_id}: sending rlbox ({decimal_size_text(wheel.stat().st_size)})")
        if names:
            replace_remote_tree(connection, project.folder, names, f"{folder}/{PROJECT_DIRECTORY}")
        connection.check_output(f"mkdir -p {folder}; cd {folder} && rm -f rlbox-*.whl", "rlbox cannot be sent")
        send_file(connection, wheel, f"{folder}/{wheel.name}", lambda size: None)
    status = connection.run(f"cat {job.disk}/onstart.status").stdout
    if status.startswith(("failed", "ready")):
        connection.check_output("rm -f /opt/rlbox-cli/whole", "rlbox cannot be replaced")
        _start_again(connection, job, onstart_script)
    connection.check_output(f"echo {digest} >{folder}/{_SENT}", "rlbox cannot be sent")


def _start_again(connection: SshConnection, job: RemoteJob, onstart: str) -> None:
    """Start the on-start script as the platform does at a start of the instance: with the container's environment."""
    path = f"{job.folder}/onstart.sh"
    connection.check_output(
        f"cat >{path} && echo again >{job.disk}/onstart.status", "the on-start script cannot be sent", onstart
    )
    begin = f'exec setsid env "$@" sh {path} </dev/null >/dev/null 2>&1 &'
    connection.check_output(
        f"xargs -0 -a /proc/1/environ sh -c {shlex.quote(begin)} sh", "the on-start script does not start"
    )


def _require_free(connection: SshConnection, job: RemoteJob, number: int) -> str:
    """Return the text of the job that is on the instance; `LockHeld` when it is another one whose run goes on."""
    before = connection.run(f"cat {shlex.quote(job.folder)}/{JOB_FILE}").stdout
    rows = _run_remote_rlbox(connection, job.disk, ("runs",))["runs"] if before not in ("", job.to_json_text()) else ()
    if going := [str(row["run"]) for row in rows if row["state"] in ("starting", "running")]:
        tool = connection.run(f"{format_rlbox_tool_assignment_shell(job.disk)}; echo $tool").stdout.strip()
        raise LockHeld(
            _("the instance carries out run {going}").format(going=going[0]),
            where=connection.ssh_destination,
            next_step=_(
                "wait for its end, or end it: rlbox vast ssh {number} '{tool}/bin/rlbox stop {going} --data {disk}'"
            ).format(number=number, tool=tool, going=going[0], disk=job.disk),
        )
    return before


def upload_job(
    connection: SshConnection, job: RemoteJob, project: Project, env_file: Path | None, instance_id: int
) -> None:
    """Bring to the instance the user's specs, the secrets' file and the job; one that is the same keeps its run.

    Raises
    ------
    LockHeld
        The instance carries out a run of another job.
    """
    folder, text = shlex.quote(job.folder), job.to_json_text()
    before = _require_free(connection, job, instance_id)
    if names := _list_spec_files_to_upload(project):
        replace_remote_tree(connection, project.folder, names, f"{job.folder}/{PROJECT_DIRECTORY}")
    if env_file:
        command = f"umask 077; cat >{shlex.quote(job.disk)}/{ENV_FILE}"
        connection.check_output(command, "the secrets cannot be sent", env_file.read_text("utf-8"))
    if before != text:
        forget = f"rm -f {folder}/{RUN_FILE} {folder}/{ENDED_FILE}"
        write = f"cat >{folder}/{JOB_FILE}.new && mv {folder}/{JOB_FILE}.new {folder}/{JOB_FILE}"
        connection.check_output(f"mkdir -p {folder} && {forget} && {write}", _("the job cannot be written"), text)


def upload_to_data_disk(
    connection: SshConnection,
    job: RemoteJob,
    local_to_disk_paths: Sequence[tuple[Path, str]],
    report_bytes: ReportBytes,
) -> None:
    """Bring files and folders of this machine to their places below the data disk."""
    for path, goal in local_to_disk_paths:
        if path.is_dir():
            for file in sorted(one for one in path.rglob("*") if one.is_file()):
                send_file(connection, file, f"{job.disk}/{goal}/{file.relative_to(path)}", report_bytes)
        else:
            send_file(connection, path, f"{job.disk}/{goal}", report_bytes)


def start_agent_and_await_run(connection: SshConnection, job: RemoteJob, instance_id: int) -> str:
    """Start what keeps the job going, unless it is there; return its run once there is one."""
    end, folder = time.monotonic() + _STARTED_S, shlex.quote(job.folder)
    connection.check_output(f"rm -f {folder}/{REFUSED_FILE}", "the job cannot be started")
    while time.monotonic() < end:
        if run := connection.run(f"cat {folder}/{RUN_FILE}").stdout.strip():
            return run
        if refused := connection.run(f"cat {folder}/{REFUSED_FILE}").stdout.strip():
            raise WorkFailed(
                _("the job does not start there: {refused}").format(refused=refused),
                next_step=_("mend it, then type the same with --instance {number}").format(number=instance_id),
            )
        connection.check_output(
            format_job_agent_start_shell(job.disk), "the job cannot be started"
        )  # one that ends a job may still be there
        time.sleep(_POLL_S)
    raise TimedOut(
        _("no run began within {started_s}").format(started_s=exact_duration_text(_STARTED_S)),
        next_step=f"rlbox vast ssh {instance_id} 'tail -n 40 {job.folder}/{LOG_FILE}'",
    )


def wait_for_run(connection: SshConnection, job: RemoteJob, run: str, say: ReportLine) -> Mapping[str, Any]:
    """Wait until the agent says that a run has ended, and return what it says; `say` hears each new stage.

    While that goes on, and 2 minutes longer, the agent does not stop the instance.
    """
    connection.check_output(
        format_job_agent_start_shell(job.disk), "the run cannot be followed"
    )  # where it was killed; it runs once at a time
    folder, record = shlex.quote(job.folder), shlex.quote(f"{job.disk}/runs/{run}/run.json")
    told = ""
    while True:
        look = f"cd {folder} && : >{FOLLOWED_FILE} && {{ cat {ENDED_FILE} 2>/dev/null || {{ echo; cat {record}; }}; }}"
        text = connection.run(look).stdout
        row = _object(text)
        if not text.startswith("\n") and row.get("run") == run:
            return row
        stages = [one for one in row.get("stages") or () if isinstance(one, Mapping)]
        now = next((str(one["name"]) for one in stages if one.get("state") in ("starting", "running")), "")
        if now and now != told:
            told = now
            say(f"run {run}: stage {now}")
        time.sleep(_POLL_S)


def _object(text: str) -> Mapping[str, Any]:
    try:
        row = parse_json(text)
    except ValueError:  # it is written at this moment, or not there yet
        return {}
    return row if isinstance(row, dict) else {}


@contextmanager
def prevent_instance_stop(connection: SshConnection, job: RemoteJob) -> Iterator[None]:
    """Keep the agent from stopping the instance while the block runs."""
    touched = f"{shlex.quote(job.folder)}/{FOLLOWED_FILE}"
    process = connection.start(f"while : >{touched} && echo; do sleep 10; done", stdin=DEVNULL, stdout=DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.communicate()
    connection.run(f"rm -f {touched}")


def _list_spec_files_to_upload(project: Project) -> list[str]:
    """Return the user's own specs, as paths below the project."""
    if project.folder == project.roots[-1]:
        return []
    found = [
        path
        for name in _PROJECT_FOLDERS
        for path in sorted((project.folder / name).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    ]
    return [str(path.relative_to(project.folder)) for path in found]


def _run_remote_rlbox(connection: SshConnection, disk: str, words: Sequence[str]) -> Mapping[str, Any]:
    """Return what a command line of rlbox says there as JSON."""
    command = (
        f"{format_rlbox_tool_assignment_shell(disk)}; "
        f"$tool/bin/rlbox {shlex.join(words)} --data {shlex.quote(disk)} --json"
    )
    told = parse_json(connection.check_output(command, f"rlbox {words[0]} fails there"))
    return told if isinstance(told, dict) else {}


def list_result_files(connection: SshConnection, disk: str, more: Iterable[str] = ()) -> Listing:
    """List the files of an instance that are fetched by default, without their checksums."""
    runs = _run_remote_rlbox(connection, disk, ("runs",))["runs"]
    series = _run_remote_rlbox(connection, disk, ("ckpt", "ls"))["series"]
    return list_files(connection, disk, sorted({*list_runs_and_complete_checkpoints(runs, series, disk), *more}))


def load_recorded_download_directory(instance_id: int, override_folder: Path | None = None) -> DownloadDirectory:
    """Return what of an instance is on this machine; without a folder, in the one that was used before."""
    return DownloadDirectory(_home(instance_id) / _MANIFEST, override_folder)


def _home(number: int) -> Path:
    return state_path("vast", str(number))
