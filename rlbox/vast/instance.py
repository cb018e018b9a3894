"""An instance over ssh: wait until it is ready, upload and start a job, find and list what it made."""

from __future__ import annotations

import hashlib
import shlex
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlbox.amounts import decimal_size_text, exact_duration_text
from rlbox.app import App
from rlbox.config.packs import PACK_FOLDERS
from rlbox.config.project import Project
from rlbox.errors import LockHeld, MachineError, TimedOut, WorkFailed
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _
from rlbox.image.context import write_rlbox_wheel
from rlbox.ssh.connection import SshAddress, SshConnection
from rlbox.ssh.files import DownloadDirectory, Listing, list_remote_files, replace_remote_tree, resume_verified_upload
from rlbox.system.command import DEVNULL
from rlbox.system.files import compute_file_sha256, state_path
from rlbox.system.progress import show_byte_progress
from rlbox.vast.api import Instance
from rlbox.vast.remote_job import (
    ENDED_FILE,
    FOLLOWED_FILE,
    JOB_FILE,
    LOG_FILE,
    PROJECT_DIRECTORY,
    REFUSED_FILE,
    RUN_FILE,
    RemoteJob,
    format_job_agent_start_shell,
    format_shell_setting_tool_to_rlbox_dir,
    list_run_and_complete_checkpoint_dirs,
)

_POLL_S = 5.0
_START_TIMEOUT_S = 180.0
_PROJECT_FOLDERS = ("images", "jobs", "sources", "templates")
_SENT_DIGEST = "sent.sha256"
_HAS_IMAGE = "[ -e /opt/rlbox/share/lock.json ] && [ ! -e /opt/rlbox/share/applied.json ]"
"""Whether the instance was started from an image of rlbox: `apply` leaves a record beside its lock."""


@dataclass(frozen=True, kw_only=True)
class JobUpload:
    """A job for an instance: local files with their places on its data disk, its secrets, its on-start script.

    `timeout_s` is how long the instance may take until it is ready.
    """

    instance_id: int
    job: RemoteJob
    uploads: Sequence[tuple[Path, str]]
    env_file: Path | None
    onstart: str
    timeout_s: float


def require_ssh_address(instance: Instance) -> SshAddress:
    if not instance.ssh_command_or_empty:
        raise MachineError(
            _("instance {id} has no address: it is {status}").format(id=instance.id, status=instance.status),
            next_step=f"rlbox vast start {instance.id}",
        )
    hosts = _state_directory(instance.id) / "known_hosts"
    return SshAddress(host=instance.host, user="root", port=instance.port, known_hosts=hosts)


def wait_for_onstart_and_print_changes(
    app: App, connection: SshConnection, data_disk: str, instance_id: int, timeout_s: float
) -> None:
    """Wait until the on-start script has ended well, and say each change of its last word."""
    end, last_state = time.monotonic() + timeout_s, ""
    look = _("rlbox vast ssh {number} 'tail -n 40 {disk}/onstart.log'").format(number=instance_id, disk=data_disk)
    while True:
        state = connection.run(f"cat {shlex.quote(data_disk)}/onstart.status").stdout.strip()
        if state != last_state:
            last_state = state
            text = _("instance {number}: on-start {state}")
            app.print_status(text.format(number=instance_id, state=state or _("begins")))
        if state.startswith("ready"):
            return
        if state.startswith("failed"):
            what = _("the on-start script of instance {number} {state}").format(number=instance_id, state=state)
            raise WorkFailed(what, next_step=look)
        if time.monotonic() >= end:
            raise TimedOut(
                _("instance {number} was not ready within {timeout_s}: {state}").format(
                    number=instance_id, timeout_s=exact_duration_text(timeout_s), state=state or _("nothing")
                ),
                next_step=look,
            )
        time.sleep(_POLL_S)


def ensure_job_uploaded_and_run_started(app: App, connection: SshConnection, rented: JobUpload) -> str:
    """Bring all that a job needs, and start it, unless all that was done before; return its run.

    Raises
    ------
    LockHeld
        The instance carries out a run of another job.
    """
    job, text = rented.job, rented.job.to_json_text()
    folder = shlex.quote(job.folder)
    earlier_job = connection.run(f"cat {folder}/{JOB_FILE}").stdout
    if earlier_job not in ("", text):
        _require_no_run_in_progress(connection, job, rented.instance_id)
    specs = _list_spec_files(app.project)
    if specs:
        replace_remote_tree(connection, specs, f"{job.folder}/{PROJECT_DIRECTORY}")
    if not connection.run(_HAS_IMAGE).ok:
        _sync_rlbox(app, connection, rented, specs)
    wait_for_onstart_and_print_changes(app, connection, job.disk, rented.instance_id, rented.timeout_s)
    files = list(_list_uploads(rented.uploads))
    with show_byte_progress(app, "upload", sum(file.stat().st_size for file, __ in files)) as report_bytes:
        for file, goal in files:
            resume_verified_upload(connection, file, f"{job.disk}/{goal}", report_bytes)
    if rented.env_file:
        command = f"umask 077; cat >{shlex.quote(job.disk)}/.env"
        connection.check_output(command, _("the secrets cannot be sent"), rented.env_file.read_text("utf-8"))
    if earlier_job != text:
        forget = f"rm -f {folder}/{RUN_FILE} {folder}/{ENDED_FILE}"
        write = f"cat >{folder}/{JOB_FILE}.new && mv {folder}/{JOB_FILE}.new {folder}/{JOB_FILE}"
        connection.check_output(f"mkdir -p {folder} && {forget} && {write}", _("the job cannot be written"), text)
    return _start_agent_and_await_run(connection, job, rented.instance_id)


def _require_no_run_in_progress(connection: SshConnection, job: RemoteJob, number: int) -> None:
    for row in _run_remote_rlbox(connection, job.disk, "runs")["runs"]:
        if row["state"] in ("starting", "running"):
            tool = connection.run(f"{format_shell_setting_tool_to_rlbox_dir(job.disk)}; echo $tool").stdout.strip()
            raise LockHeld(
                _("the instance carries out run {going}").format(going=row["run"]),
                where=connection.ssh_destination,
                next_step=_(
                    "wait for its end, or end it: rlbox vast ssh {number} '{tool}/bin/rlbox stop {going} --data {disk}'"
                ).format(number=number, tool=tool, going=row["run"], disk=job.disk),
            )


def _sync_rlbox(app: App, connection: SshConnection, rented: JobUpload, specs: Mapping[str, Path]) -> None:
    """Bring rlbox to an instance whose image has none.

    Its on-start script waits for it the first time. It is started again where it failed, or where rlbox or the user's
    specs changed.
    """
    job, folder = rented.job, rented.job.folder
    status = connection.run(f"cat {job.disk}/onstart.status").stdout
    with tempfile.TemporaryDirectory(prefix="rlbox-wheel-") as made:
        wheel = write_rlbox_wheel(Path(made))
        total = hashlib.sha256(wheel.read_bytes())
        for name, path in specs.items():
            total.update(f"{name}\0{compute_file_sha256(path)}\n".encode())
        digest = total.hexdigest()
        if connection.run(f"cat {folder}/{_SENT_DIGEST}").stdout.strip() == digest:
            if status.startswith("failed"):
                _restart_onstart(connection, job, rented.onstart)
            return
        app.print_status(
            _("instance {instance_id}: sending rlbox ({size})").format(
                instance_id=rented.instance_id, size=decimal_size_text(wheel.stat().st_size)
            )
        )
        connection.check_output(f"mkdir -p {folder}; cd {folder} && rm -f rlbox-*.whl", _("rlbox cannot be sent"))
        resume_verified_upload(connection, wheel, f"{folder}/{wheel.name}", lambda size: None)
    if status.startswith(("failed", "ready")):
        connection.check_output("rm -f /opt/rlbox-cli/whole", _("rlbox cannot be replaced"))
        _restart_onstart(connection, job, rented.onstart)
    connection.check_output(f"echo {digest} >{folder}/{_SENT_DIGEST}", _("rlbox cannot be sent"))


def _restart_onstart(connection: SshConnection, job: RemoteJob, onstart: str) -> None:
    """Start the on-start script as the platform does at a start of the instance: with the container's environment."""
    path = f"{job.folder}/onstart.sh"
    connection.check_output(
        f"cat >{path} && echo again >{job.disk}/onstart.status", _("the on-start script cannot be sent"), onstart
    )
    begin = f'exec setsid env "$@" sh {path} </dev/null >/dev/null 2>&1 &'
    connection.check_output(
        f"xargs -0 -a /proc/1/environ sh -c {shlex.quote(begin)} sh", _("the on-start script does not start")
    )


def _list_uploads(uploads: Sequence[tuple[Path, str]]) -> Iterator[tuple[Path, str]]:
    for path, goal in uploads:
        if path.is_file():
            yield path, goal
        for file in sorted(path.rglob("*")):
            if file.is_file():
                yield file, f"{goal}/{file.relative_to(path)}"


def _list_spec_files(project: Project) -> dict[str, Path]:
    """Return the files of project and packs, by their path in the project folder of the instance: it has no packs."""
    roots = [(pack.folder, PACK_FOLDERS) for pack in reversed(project.packs)]
    if project.folder != project.roots[-1]:
        roots.append((project.folder, _PROJECT_FOLDERS))
    return {
        str(path.relative_to(root)): path
        for root, folders in roots
        for name in folders
        for path in sorted((root / name).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def _start_agent(connection: SshConnection, job: RemoteJob) -> None:
    connection.check_output(format_job_agent_start_shell(job.disk), _("the job cannot be started"))


def _start_agent_and_await_run(connection: SshConnection, job: RemoteJob, instance_id: int) -> str:
    end, folder = time.monotonic() + _START_TIMEOUT_S, shlex.quote(job.folder)
    connection.check_output(f"rm -f {folder}/{REFUSED_FILE}", _("the job cannot be started"))
    while time.monotonic() < end:
        if run := connection.run(f"cat {folder}/{RUN_FILE}").stdout.strip():
            return run
        if refused := connection.run(f"cat {folder}/{REFUSED_FILE}").stdout.strip():
            raise WorkFailed(
                _("the job does not start there: {refused}").format(refused=refused),
                next_step=_("mend it, then type the same with --instance {number}").format(number=instance_id),
            )
        _start_agent(connection, job)  # one that ends a job may still be there
        time.sleep(_POLL_S)
    raise TimedOut(
        _("no run began within {started_s}").format(started_s=exact_duration_text(_START_TIMEOUT_S)),
        next_step=f"rlbox vast ssh {instance_id} 'tail -n 40 {job.folder}/{LOG_FILE}'",
    )


def start_agent_and_await_run_end(app: App, connection: SshConnection, job: RemoteJob, run: str) -> Mapping[str, Any]:
    """Wait until the agent says that a run has ended, say each new stage, and return what the agent says.

    While that goes on, and 2 minutes longer, the agent does not stop the instance.
    """
    _start_agent(connection, job)  # where it was killed; it runs once at a time
    folder, record = shlex.quote(job.folder), shlex.quote(f"{job.disk}/runs/{run}/run.json")
    look = f"cd {folder} && : >{FOLLOWED_FILE} && {{ cat {ENDED_FILE} 2>/dev/null || {{ echo; cat {record}; }}; }}"
    last_stage = ""
    while True:
        text = connection.run(look).stdout
        row = _parse_object(text)
        if not text.startswith("\n") and row.get("run") == run:
            return row
        going = [stage["name"] for stage in row.get("stages", ()) if stage["state"] in ("starting", "running")]
        if going and going[0] != last_stage:
            last_stage = going[0]
            app.print_status(_("run {run}: stage {stage}").format(run=run, stage=last_stage))
        time.sleep(_POLL_S)


def _parse_object(text: str) -> dict[str, Any]:
    try:
        row = parse_untrusted_json(text)
    except ValueError:  # it is written at this moment, or not there yet
        return {}
    return row if isinstance(row, dict) else {}


@contextmanager
def keep_agent_from_stopping_instance(connection: SshConnection, job: RemoteJob) -> Iterator[None]:
    touched = f"{shlex.quote(job.folder)}/{FOLLOWED_FILE}"
    process = connection.start(f"while : >{touched} && echo; do sleep 10; done", stdin=DEVNULL, stdout=DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.communicate()
    connection.run(f"rm -f {touched}")


def _run_remote_rlbox(connection: SshConnection, disk: str, *words: str) -> dict[str, Any]:
    command = (
        f"{format_shell_setting_tool_to_rlbox_dir(disk)}; "
        f"$tool/bin/rlbox {shlex.join(words)} --data {shlex.quote(disk)} --json"
    )
    return _parse_object(connection.check_output(command, _("rlbox {command} fails there").format(command=words[0])))


def list_run_and_complete_checkpoint_files(connection: SshConnection, disk: str) -> Listing:
    runs = _run_remote_rlbox(connection, disk, "runs")["runs"]
    series = _run_remote_rlbox(connection, disk, "ckpt", "ls")["series"]
    return list_remote_files(connection, disk, list_run_and_complete_checkpoint_dirs(runs, series, disk))


def reuse_or_choose_download_directory(instance_id: int, directory: Path | None = None) -> DownloadDirectory:
    """Return where what is fetched of an instance goes: the folder that is named, the one used before, or `vast-ID`."""
    record = _state_directory(instance_id) / "fetched.json"
    home = DownloadDirectory(record, directory.absolute() if directory else None)
    if directory is None and not home.has_recorded_verified_files:
        return DownloadDirectory(record, Path(f"vast-{instance_id}").absolute())
    return home


def _state_directory(instance_id: int) -> Path:
    return state_path("vast", str(instance_id))
