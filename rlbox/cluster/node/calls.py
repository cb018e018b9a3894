"""Calls of a node: its report, Ray's processes, files and logs; each is a function of this script, asked by its name.

The request is a line of JSON on standard input: a function and its arguments. What it returns, or each thing that it
yields until the input ends, is a line of the answer, which begins with a mark.
"""

import binascii
import concurrent.futures
import contextlib
import fnmatch
import glob
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Dict, Iterator, List, Tuple

from rlbox.cluster.node.facts import (
    PROCESS_PREFIX,
    InstanceReport,
    NodeFacts,
    RayInstance,
    find_first_ended_part_with_code,
    find_installation,
    list_external_addresses,
    list_ray_containers,
    list_tcp_listeners,
    query_engine,
    query_gpus,
    read_boot_id,
    read_disk_facts,
    read_json_or_empty,
    read_live_process_stat,
    read_machine_facts,
    read_text_or_empty,
)

_MARK = "rlbox:"
_LOCK_NAME = "\0rlbox-cluster"
_LOCK_S = 3600.0
"""After a power cut of the caller nobody ends the input."""
_REACH_S, _AT_ONCE = 3.0, 256
TEMP = "/tmp/ray"  # noqa: S108
_SESSION = re.compile(r"session_2[0-9A-Za-z_-]{0,80}")
_KILLED = 137
_POLL_S, _KILL_S = 0.3, 10.0
_LOG_BYTES = 1 << 22


# ---- what a machine is, and what reaches it


def report_node(disk: str, target: str, paths: List[str]) -> NodeFacts:
    began, engine = time.time(), query_engine()
    return NodeFacts(
        machine=read_machine_facts(),
        engine=engine,
        gpu=query_gpus(),
        disk=read_disk_facts(disk),
        addresses=list_external_addresses(),
        listening=sorted({row.port for row in list_tcp_listeners()}),
        clusters=list_ray_instances(disk, leave_out_containers=engine.state != "ok"),
        installation=find_installation(target),
        existing_paths=[path for path in paths if os.path.exists(path)],
        own_clock_before_after_s=(began, time.time()),
    )


def report_instances(disk: str, leave_out_containers: bool) -> InstanceReport:
    found = None
    with contextlib.suppress(OSError, ValueError):
        found = list_ray_instances(disk, leave_out_containers)
    return InstanceReport(read_disk_facts(disk), found)


def attempt_connections(endpoints: List[Tuple[str, int]]) -> List[str]:
    """Return for each endpoint why it cannot be connected to, empty where it can."""
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(_attempt_connection, endpoints))


def _attempt_connection(endpoint: Tuple[str, int]) -> str:
    try:
        socket.create_connection(endpoint, _REACH_S).close()
    except socket.timeout:  # noqa: UP041 - it is another one before Python 3.10
        return "it did not answer"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _wait_for_input(timeout_s: float) -> bool:
    return bool(select.select([0], [], [], timeout_s)[0])


def hold_lock() -> Iterator[bool]:
    """Hold the lock of this machine until the input ends, for an hour at most; False: another has it."""
    server = socket.socket(socket.AF_UNIX)
    try:
        server.bind(_LOCK_NAME)
    except OSError:
        yield False
        return
    yield True
    _wait_for_input(_LOCK_S)


def listen_on_ports(ports: List[int]) -> Iterator[Dict[int, str]]:
    """Listen until the input ends; yield the ports that could not be had, each with who has it."""
    taken, servers = {}, []
    for port in ports:
        server = socket.socket()
        servers.append(server)
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("", port))
            server.listen(1024)
        except OSError as error:
            taken[port] = error.strerror or str(error)
    for row in list_tcp_listeners() if taken else ():
        if row.port in taken:
            taken[row.port] = _describe_socket_process(row.socket_inode) or f"uid {row.uid}"
    yield taken
    sys.stdin.buffer.read()


def _describe_socket_process(inode: str) -> str:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            handles = os.listdir(f"/proc/{pid}/fd")
            if any(os.readlink(f"/proc/{pid}/fd/{handle}") == f"socket:[{inode}]" for handle in handles):
                command = read_text_or_empty(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
                return f"process {pid} ({command[:120]})"
    return ""


# ---- files below the data disk


def _resolve_below_disk(disk: str, relative_path: str) -> str:
    """Return the path below the data disk; `ValueError` where a link that a job planted leads out of it."""
    full = os.path.join(disk, relative_path)
    parent, top = os.path.realpath(os.path.dirname(full)), os.path.realpath(disk)
    if parent != top and not parent.startswith(top.rstrip("/") + "/"):
        raise ValueError(f"{relative_path} leads out of {disk}")
    return os.path.join(parent, os.path.basename(full))


def _make_directory(disk: str, path: str) -> str:
    """Make a directory and those above it: the first is everybody's, the others are for the owner alone."""
    full, parts = "", path.split("/")
    for depth in range(1, len(parts) + 1):
        full = _resolve_below_disk(disk, "/".join(parts[:depth]))
        if not os.path.isdir(full):
            os.mkdir(full, 0o700)
            os.chmod(full, 0o700 if depth > 1 else 0o1777)
    return full


def read_disk_text_or_empty(disk: str, path: str) -> str:
    return read_text_or_empty(_resolve_below_disk(disk, path))


def list_disk_directory_or_empty(disk: str, path: str) -> List[str]:
    return _list_or_empty(_resolve_below_disk(disk, path))


def _list_or_empty(path: str) -> List[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def write_private_file(disk: str, path: str, text: str) -> None:
    full = os.path.join(_make_directory(disk, os.path.dirname(path)), os.path.basename(path))
    part = f"{full}.{os.getpid()}"
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    os.rename(part, full)


def remove_with_empty_parents(disk: str, path: str) -> bool:
    full = _resolve_below_disk(disk, path)
    existed = os.path.lexists(full)
    if os.path.isdir(full) and not os.path.islink(full):
        shutil.rmtree(full, ignore_errors=True)
    elif existed:
        os.unlink(full)
    with contextlib.suppress(OSError):
        while os.path.dirname(path):
            path = os.path.dirname(path)
            os.rmdir(_resolve_below_disk(disk, path))
    return existed


# ---- Ray as processes of this user: the process that leads their session is recorded, and ended by its number


def _read_records(disk: str) -> List[Dict[str, Any]]:
    pattern = os.path.join(glob.escape(disk), "clusters", str(os.getuid()), "*", "*", "here", "*", "record.json")
    records = [dict(read_json_or_empty(path), folder=os.path.dirname(path)) for path in glob.glob(pattern)]
    return [record for record in records if "pid" in record]


def _find_record(disk: str, record_id: str) -> Dict[str, Any]:
    for record in _read_records(disk):
        if record["id"] == record_id:
            return record
    raise ValueError("Ray's processes have no record here any more")


def _list_session_processes(record: Dict[str, Any]) -> Dict[int, int]:
    """Return the processes of the session that a recorded process leads, with their parents; none after a reboot."""
    leader = read_live_process_stat(record["pid"])
    if record["boot"] != read_boot_id() or (leader and leader.start_ticks != record["born"]):
        return {}  # its number is another process's now
    stats = {int(name): read_live_process_stat(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    return {pid: row.parent_pid for pid, row in stats.items() if row and row.session_id == record["pid"]}


def _read_instance(record: Dict[str, Any]) -> RayInstance:
    found = RayInstance(record["id"], record["name"], record["image"], record["labels"], status="running")
    if _list_session_processes(record):
        return found
    code, __, finished = read_text_or_empty(os.path.join(record["folder"], "exit")).partition(" ")
    part = find_first_ended_part_with_code(read_text_or_empty(os.path.join(record["folder"], "log")))
    return found._replace(
        status="exited", exit_code=int(code or _KILLED), finished=finished, first_ended_part_with_code=part
    )


def list_ray_instances(disk: str, leave_out_containers: bool) -> List[RayInstance]:
    rows = [_read_instance(record) for record in _read_records(disk)]
    return rows if leave_out_containers else rows + list_ray_containers()


def _build_program_environment(inherited_name: str, variables: Dict[str, str]) -> Dict[str, str]:
    env = {name: text for name, text in os.environ.items() if re.match(inherited_name, name)}
    env.setdefault("HOME", os.path.expanduser("~"))
    env.setdefault("USER", str(os.getuid()))
    return dict(env, **variables)


_WRAPPER = '"$@"; printf "%s %s" $? "$(date -u +%Y-%m-%dT%H:%M:%SZ)" >exit'


def start_ray_processes(
    disk: str,
    cluster_directory: str,
    argv: List[str],
    inherited_name: str,
    variables: Dict[str, str],
    name: str,
    image: str,
    labels: Dict[str, str],
) -> str:
    """Start Ray in a session of its own and record its leader; return the record's id."""
    record_id = PROCESS_PREFIX + binascii.hexlify(os.urandom(6)).decode()
    path = f"{cluster_directory}/here/{record_id}"
    folder, scratch = _make_directory(disk, path), _scratch_directory(record_id)
    os.mkdir(scratch, 0o700)
    if not os.path.lexists(TEMP):  # Ray's directory is to lie on the data disk
        own = os.path.join(disk, f"ray-{os.getuid()}")
        os.makedirs(own, 0o700, exist_ok=True)
        os.symlink(own, TEMP)
    env = _build_program_environment(inherited_name, variables)
    with open(os.path.join(folder, "log"), "ab") as log:
        process = subprocess.Popen(
            ["sh", "-c", _WRAPPER, "sh", *argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=dict(env, TMPDIR=scratch, RAY_TMPDIR=os.path.dirname(TEMP)),
            cwd=folder,
            start_new_session=True,
        )
    row = read_live_process_stat(process.pid)
    process.returncode = 0  # it stays when this script ends
    record: Dict[str, Any] = {"name": name, "image": image, "labels": labels}
    record.update(id=record_id, pid=process.pid, born=row.start_ticks if row else 0, boot=read_boot_id())
    write_private_file(disk, path + "/record.json", json.dumps(record))
    return record_id


def _scratch_directory(record_id: str) -> str:
    return "/tmp/rlbox-" + record_id  # noqa: S108


def _end_session(record: Dict[str, Any], grace_s: float) -> None:
    """End the session of a record: its leader's child is asked first, then all of it is killed."""
    for number, patience in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _KILL_S)):
        until = time.monotonic() + patience
        for pid, parent in _list_session_processes(record).items() if patience else ():
            if number == signal.SIGKILL or parent == record["pid"]:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
        while time.monotonic() < until and _list_session_processes(record):
            time.sleep(0.05)


def stop_ray_processes(disk: str, record_id: str, grace_s: float) -> None:
    record = _find_record(disk, record_id)
    _end_session(record, grace_s)
    os.rename(os.path.join(record["folder"], "record.json"), os.path.join(record["folder"], "ended.json"))


def read_ray_process_output(disk: str, record_id: str, max_lines: int) -> str:
    text = read_text_or_empty(os.path.join(_find_record(disk, record_id)["folder"], "log"))
    return "\n".join(text.splitlines()[-max_lines:])


def run_installed_program(argv: List[str], inherited_name: str, variables: Dict[str, str], timeout_s: float) -> str:
    env = _build_program_environment(inherited_name, variables)
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=env, cwd="/")
    try:
        return process.communicate(timeout=timeout_s)[0].decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        process.kill()
        raise ValueError("a program of the target has not ended in time") from None


def kill_and_remove_clusters(disk: str, paths: List[str], remove_empty_cache_dirs: bool) -> List[str]:
    """Remove clusters' directories from the data disk, with what their processes left; return what there was."""
    has_sessions, existed = False, False
    for path in paths:
        full = _resolve_below_disk(disk, path)
        for record in _read_records(disk):
            if record["folder"].startswith(full + "/"):
                _end_session(record, 0)
        for name in _list_or_empty(full + "/here"):
            shutil.rmtree(_scratch_directory(name), ignore_errors=True)
        has_sessions = has_sessions or any(map(_SESSION.match, _list_or_empty(full + "/ray")))
        existed = remove_with_empty_parents(disk, path) or existed
    _remove_dead_sessions(disk)
    if remove_empty_cache_dirs:  # where programs in containers compile
        for folder, __, __ in os.walk(os.path.join(disk, "cache"), topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
    return ["logs of Ray"] * has_sessions + ["its folder"] * existed


def _remove_dead_sessions(disk: str) -> None:
    """Remove Ray's sessions, and the link to where they are, once no process has one of them."""
    own = os.path.join(disk, f"ray-{os.getuid()}")
    if os.path.realpath(TEMP) == os.path.realpath(own):
        commands = "\0".join(read_text_or_empty(f"/proc/{pid}/cmdline") for pid in os.listdir("/proc") if pid.isdigit())
        if not any(name in commands for name in _list_or_empty(own) if _SESSION.match(name)):
            os.unlink(TEMP)
            shutil.rmtree(own, ignore_errors=True)


# ---- logs


def follow_ray_logs(
    disk: str, cluster_directory: str, is_inplace: bool, patterns: List[str], follow: bool
) -> Iterator[List[Tuple[str, str, float]]]:
    """Yield the end of the newest session's logs, with `follow` what they gain until the input ends.

    Each log is its name, text and when it was last written. No link is followed; a line that is not finished is kept
    back until the end.
    """
    top = os.path.realpath(TEMP if is_inplace else os.path.join(disk, cluster_directory, "ray"))
    offsets: Dict[str, int] = {}
    first, last = True, not follow
    while True:
        sessions = ["none", *filter(_SESSION.match, _list_or_empty(top))]
        folder, rows = os.path.join(top, sessions[-1], "logs"), []
        for name in _list_or_empty(folder):
            path = os.path.join(folder, name)
            if any(fnmatch.fnmatch(name, pattern) for pattern in patterns) and not os.path.islink(path):
                with contextlib.suppress(OSError):
                    text, written = _read_gain(path, offsets, last)
                    rows += [(name, text, written)] if text else []
        if rows or first:
            yield rows
        if last:
            return
        first, last = False, _wait_for_input(_POLL_S)


def _read_gain(path: str, offsets: Dict[str, int], last: bool) -> Tuple[str, float]:
    """Return what a file gained since its offset, which is moved, and when it was written."""
    with open(path, "rb") as file:
        found = os.fstat(file.fileno())
        is_new, offset = path not in offsets, offsets.get(path, max(0, found.st_size - _LOG_BYTES))
        file.seek(offset)
        data = file.read(_LOG_BYTES)
    end = len(data) if last or len(data) == _LOG_BYTES else data.rfind(b"\n") + 1
    begin = data.find(b"\n") + 1 if is_new and offset else 0
    offsets[path] = offset + end
    return data[begin:end].decode("utf-8", "replace"), found.st_mtime


def answer_request_on_stdin() -> None:
    def emit(row: Dict[str, Any]) -> None:
        sys.stdout.write(_MARK + json.dumps(row) + "\n")
        sys.stdout.flush()

    name, arguments = json.loads(sys.stdin.buffer.readline().decode())
    with contextlib.suppress(BrokenPipeError):
        try:
            answer = globals()[name](**arguments)
            for one in answer if hasattr(answer, "__next__") else [answer]:
                emit({"answer": one})
        except BrokenPipeError:
            pass
        except (OSError, ValueError) as error:
            emit({"error": str(error) or type(error).__name__})


if __name__ == "__main__":
    answer_request_on_stdin()
