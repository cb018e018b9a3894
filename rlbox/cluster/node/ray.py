"""Ray on a machine: its logs, its processes where there is no engine, and the files of a cluster on the data disk."""

import binascii
import contextlib
import fnmatch
import json
import os
import re
import shutil
import signal
import subprocess
import time
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence

from rlbox.cluster.node.facts import (
    RayInstance,
    find_first_ended_part_with_code,
    list_ray_containers,
    read_boot_id,
    read_json_or_empty,
    read_live_process_stat,
    read_text_or_empty,
)

TEMP = "/tmp/ray"  # noqa: S108
PROCESS_PREFIX = "here-"
RecordId = str
_SESSION = re.compile(r"session_2[0-9A-Za-z_-]{0,80}")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.I)
_KILLED = 137
_POLL_S, _KILL_S = 0.3, 10.0


# ---- files below the data disk


class Owner(NamedTuple):
    uid: int
    gid: int


def resolve_below_disk(disk: str, relative_path: str) -> str:
    """Return the path below the data disk; `ValueError` where a link that a job planted leads out of it."""
    full = os.path.join(disk, relative_path)
    parent, top = os.path.realpath(os.path.dirname(full)), os.path.realpath(disk)
    if parent != top and not parent.startswith(top.rstrip("/") + "/"):
        raise ValueError(f"{relative_path} leads out of {disk}")
    return os.path.join(parent, os.path.basename(full))


def _make_directory(disk: str, path: str, owner: Optional[Owner]) -> None:
    """Make a directory and those above it: the first is everybody's, the others are for the owner alone."""
    parts = path.split("/")
    for depth in range(1, len(parts) + 1):
        full = resolve_below_disk(disk, "/".join(parts[:depth]))
        if not os.path.isdir(full):
            os.mkdir(full, 0o700)
            os.chmod(full, 0o700 if depth > 1 else 0o1777)
            if owner and depth > 1:
                os.chown(full, owner.uid, owner.gid)


def write_private_file(disk: str, relative_path: str, text: str, owner: Optional[Owner]) -> None:
    _make_directory(disk, os.path.dirname(relative_path), owner)
    full = resolve_below_disk(disk, relative_path)
    part = f"{full}.{os.getpid()}"
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text)
        if owner:
            os.fchown(handle, owner.uid, owner.gid)
    os.rename(part, full)


def remove_with_empty_parents(disk: str, relative_path: str) -> bool:
    """Remove a file or a directory with all in it, then the directories above it that are empty."""
    full = resolve_below_disk(disk, relative_path)
    existed = os.path.lexists(full)
    if os.path.isdir(full) and not os.path.islink(full):
        shutil.rmtree(full, ignore_errors=True)
    elif existed:
        os.unlink(full)
    with contextlib.suppress(OSError):
        while os.path.dirname(relative_path):
            relative_path = os.path.dirname(relative_path)
            os.rmdir(resolve_below_disk(disk, relative_path))
    return existed


def _remove_empty_directories(disk: str, path: str) -> None:
    for folder, __, __ in os.walk(os.path.join(disk, path), topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


# ---- Ray as processes of this user: the process that leads their session is recorded, and ended by its number


def _read_records(disk: str) -> List[Dict[str, Any]]:
    """Return the records of this user's clusters on a data disk that were not stopped."""
    found = []
    for folder, __, names in os.walk(os.path.join(disk, "clusters", str(os.getuid()))):
        record = read_json_or_empty(os.path.join(folder, "record.json")) if "record.json" in names else {}
        if "pid" in record:
            found.append(dict(record, folder=folder))
    return found


def _list_session_pids(record: Dict[str, Any]) -> List[int]:
    """Return the processes of the session that a recorded process leads; none once the machine was started anew."""
    if record["boot"] != read_boot_id():
        return []
    leader = read_live_process_stat(record["pid"])
    if leader and leader.start_ticks != record["born"]:  # its number is another process's now
        return []
    stats = {int(name): read_live_process_stat(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    return sorted(pid for pid, row in stats.items() if row and row.session_id == record["pid"])


def _list_ray_processes(disk: str) -> List[RayInstance]:
    rows = []
    for record in _read_records(disk):
        running = bool(_list_session_pids(record))
        code, __, finished = read_text_or_empty(os.path.join(record["folder"], "exit")).partition(" ")
        rows.append(
            RayInstance(
                id=record["id"],
                name=record["name"],
                image=record["image"],
                labels=record["labels"],
                status="running" if running else "exited",
                exit_code=0 if running else int(code or _KILLED),
                oom=False,
                finished="" if running else finished,
                first_ended_part="" if running else find_first_ended_part_with_code(_read_log(record)),
            )
        )
    return rows


def _read_log(record: Dict[str, Any]) -> str:
    return read_text_or_empty(os.path.join(record["folder"], "log"))


def _find_record(disk: str, record_id: str) -> Dict[str, Any]:
    for record in _read_records(disk):
        if record["id"] == record_id:
            return record
    raise ValueError("Ray's processes have no record here any more")


class InstalledProgram(NamedTuple):
    """A program of an installed target, and of which variables it has its environment."""

    install_directory: str
    argv: List[str]
    inherited_names: List[str]
    inherited_prefixes: List[str]
    path: str
    variables: Dict[str, str]


def build_program_environment(program: InstalledProgram) -> Dict[str, str]:
    """Return what a program of an installed target is started with; in a container of its image, the image's ENV."""
    shell = dict(os.environ)
    if os.path.exists(program.install_directory + "/share/applied.json"):
        names, prefixes = program.inherited_names, tuple(program.inherited_prefixes)
        env = {name: text for name, text in shell.items() if name in names or name.startswith(prefixes)}
        env["PATH"] = program.path
    else:
        rows = read_text_or_empty("/proc/1/environ").split("\0")
        first = dict(row.split("=", 1) for row in rows if "=" in row)
        found = [env for env in (first, shell) if "RLBOX_LIMITS" in env]
        if not found:  # sshd, as the first process, overwrites its own
            raise ValueError(
                "neither the first process of its container nor the shell has the image's environment: let a shell "
                "be the first process, and sshd its child"
            )
        env = {name: text for name, text in found[0].items() if not _SECRET.search(name)}
    env.setdefault("HOME", os.path.expanduser("~"))
    env.setdefault("USER", str(os.getuid()))
    return dict(env, **program.variables)


_WRAPPER = '"$@"; printf "%s %s" $? "$(date -u +%Y-%m-%dT%H:%M:%SZ)" >exit'


def start_ray_processes(
    disk: str,
    cluster_directory: str,
    program: InstalledProgram,
    container_name: str,
    image: str,
    labels: Dict[str, str],
) -> RecordId:
    """Start Ray in a session of its own and record its leader; return the record's id."""
    name = PROCESS_PREFIX + binascii.hexlify(os.urandom(6)).decode()
    path = f"{cluster_directory}/here/{name}"
    _make_directory(disk, path, None)
    folder, scratch = resolve_below_disk(disk, path), _scratch_directory(name)
    os.mkdir(scratch, 0o700)
    _link_temp(disk)
    env = dict(build_program_environment(program), TMPDIR=scratch, RAY_TMPDIR=os.path.dirname(TEMP))
    with open(os.path.join(folder, "log"), "ab") as log:
        process = subprocess.Popen(
            ["sh", "-c", _WRAPPER, "sh", *program.argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=env,
            cwd=folder,
            start_new_session=True,
        )
    row = read_live_process_stat(process.pid)
    process.returncode = 0  # it stays when this script ends
    record: Dict[str, Any] = {"name": container_name, "image": image, "labels": labels}
    record.update(id=name, pid=process.pid, born=row.start_ticks if row else 0, boot=read_boot_id())
    write_private_file(disk, path + "/record.json", json.dumps(record), None)
    return name


def _scratch_directory(name: str) -> str:
    return "/tmp/rlbox-" + name  # noqa: S108


def _link_temp(disk: str) -> None:
    """Have Ray's directory lie on the data disk, unless the machine has one already."""
    if not os.path.lexists(TEMP):
        path = f"ray-{os.getuid()}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.join(disk, path), 0o700)
        os.symlink(os.path.join(disk, path), TEMP)


def _end_session(record: Dict[str, Any], grace_s: float) -> None:
    """End the session of a record: its leader's child is asked first, then all of it is killed."""
    for number, patience in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _KILL_S)):
        until = time.monotonic() + patience
        pids = _list_session_pids(record)
        if number == signal.SIGTERM:
            stats = {pid: read_live_process_stat(pid) for pid in pids} if grace_s else {}
            pids = [pid for pid, row in stats.items() if row and row.parent_pid == record["pid"]]
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        while time.monotonic() < until and _list_session_pids(record):
            time.sleep(0.05)


def stop_ray_processes(disk: str, record_ids: Sequence[RecordId], grace_s: float) -> None:
    """Stop the processes of some records, which no longer count; their logs stay."""
    for record_id in record_ids:
        record = _find_record(disk, record_id)
        _end_session(record, grace_s)
        os.rename(os.path.join(record["folder"], "record.json"), os.path.join(record["folder"], "ended.json"))


class RemovedClusterParts(NamedTuple):
    """Whether there were sessions of Ray, and a directory, to remove."""

    sessions: bool
    folder: bool


def kill_and_remove_clusters(
    disk: str, cluster_directories: Sequence[str], remove_empty_cache_dirs: bool
) -> RemovedClusterParts:
    """Remove clusters' directories from the data disk, with what their processes left."""
    removed = []
    for path in cluster_directories:
        full = resolve_below_disk(disk, path)
        for record in _read_records(disk):
            if record["folder"].startswith(full + "/"):
                _end_session(record, 0)
        for name in list_directory_or_empty(full + "/here"):
            shutil.rmtree(_scratch_directory(name), ignore_errors=True)
        sessions = [name for name in list_directory_or_empty(full + "/ray") if _SESSION.match(name)]
        removed.append((bool(sessions), remove_with_empty_parents(disk, path)))
    _remove_dead_sessions(disk)
    if remove_empty_cache_dirs:
        _remove_empty_directories(disk, "cache")  # where programs in them compile
    return RemovedClusterParts(sessions=any(row[0] for row in removed), folder=any(row[1] for row in removed))


def _remove_dead_sessions(disk: str) -> None:
    """Remove Ray's sessions that no process has, and with the last of them the link to where they are."""
    own = os.path.join(disk, f"ray-{os.getuid()}")
    if os.path.realpath(TEMP) != os.path.realpath(own):
        return
    commands = "\0".join(read_text_or_empty(f"/proc/{pid}/cmdline") for pid in os.listdir("/proc") if pid.isdigit())
    sessions = [name for name in list_directory_or_empty(own) if _SESSION.match(name)]
    dead = [name for name in sessions if name not in commands]
    for name in dead:
        shutil.rmtree(os.path.join(own, name), ignore_errors=True)
    if dead == sessions:
        os.unlink(TEMP)
        shutil.rmtree(own, ignore_errors=True)


def list_directory_or_empty(path: str) -> List[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def exec_program(program: InstalledProgram) -> None:
    """Become a program of an installed target."""
    os.chdir("/")
    os.execvpe(program.argv[0], program.argv, build_program_environment(program))  # noqa: S606


def read_ray_process_output(disk: str, record_id: RecordId, max_lines: int) -> str:
    return "\n".join(_read_log(_find_record(disk, record_id)).splitlines()[-max_lines:])


# ---- what is watched and read


def list_ray_instances(disk: str, leave_out_containers: bool) -> List[RayInstance]:
    """Return Ray's containers and processes of all clusters here."""
    rows = _list_ray_processes(disk)
    return rows if leave_out_containers else rows + list_ray_containers()


def _newest_logs_directory(ray_temp_directory: str) -> str:
    top = os.path.realpath(ray_temp_directory)
    sessions = [name for name in list_directory_or_empty(top) if _SESSION.match(name)]
    return os.path.join(top, sessions[-1] if sessions else "none", "logs")


class LogText(NamedTuple):
    """What a file gained, and when it was last written."""

    file: str
    text: str
    at: float


class LogReport(NamedTuple):
    first: bool
    now: float
    logs: List[LogText]


class _LogReader:
    """The files of a directory as they grow; of each at most the last bytes are read at first. No link is followed."""

    def __init__(self, patterns: Sequence[str], max_bytes: int) -> None:
        self._patterns, self._max_bytes = patterns, max_bytes
        self._offsets: Dict[str, int] = {}

    def read_new(self, folder: str, last: bool) -> List[LogText]:
        """Return what each file gained, with when it was last written; `last`: with its unfinished line."""
        rows = []
        for name in list_directory_or_empty(folder):
            path = os.path.join(folder, name)
            if any(fnmatch.fnmatch(name, pattern) for pattern in self._patterns) and not os.path.islink(path):
                with contextlib.suppress(OSError), open(path, "rb") as file:
                    text = self._read(file, last)
                    if text:
                        rows.append(LogText(name, text, os.fstat(file.fileno()).st_mtime))
        return rows

    def _read(self, file: BinaryIO, last: bool) -> str:
        size, is_new = os.fstat(file.fileno()).st_size, file.name not in self._offsets
        offset = self._offsets.get(file.name, max(0, size - self._max_bytes))
        file.seek(offset)
        data = file.read(self._max_bytes)
        end = len(data) if last or len(data) == self._max_bytes else data.rfind(b"\n") + 1
        begin = data.find(b"\n") + 1 if is_new and offset else 0
        self._offsets[file.name] = offset + end
        return data[begin:end].decode("utf-8", "replace")


def follow_ray_logs(
    ray_temp_directory: str,
    file_patterns: Sequence[str],
    max_bytes: int,
    wait_for_end: Optional[Callable[[float], bool]],
) -> Iterator[LogReport]:
    """Yield what the newest session's logs hold, then what they gain until `wait_for_end` of some seconds is true."""
    reader, first, last = _LogReader(file_patterns, max_bytes), True, wait_for_end is None
    while True:
        rows = reader.read_new(_newest_logs_directory(ray_temp_directory), last)
        if rows or first:
            yield LogReport(first, time.time(), rows)
        if last or wait_for_end is None:
            return
        first, last = False, wait_for_end(_POLL_S)
