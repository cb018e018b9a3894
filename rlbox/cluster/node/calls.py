"""Calls of a node: its report, Ray's processes, files and logs; each is a function of this script, asked by its name.

The request is a line of JSON on standard input: a function and its arguments. What it returns or yields is a line of
the answer, which begins with a mark. A function that yields holds something until the input ends.
"""

import binascii
import concurrent.futures
import contextlib
import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

from rlbox.cluster.node.facts import (
    DiskFacts,
    NodeFacts,
    RayInstance,
    find_first_ended_part_with_code,
    find_installation,
    list_external_ipv4_addresses_ssh_first,
    list_ray_containers,
    list_tcp_ports_inodes_uids,
    query_engine,
    query_gpus,
    read_boot_id,
    read_disk_facts_or_error,
    read_json_or_empty,
    read_live_process_stat,
    read_stripped_text_or_empty,
    read_user_and_memory_facts,
)

_MARK = "rlbox:"
_LOCK_NAME = "\0rlbox-cluster"
_LOCK_S = 3600
"""After a power cut of the caller nobody ends the input."""
_REACH_S, _AT_ONCE = 3.0, 256
TEMP = "/tmp/ray"  # noqa: S108
_SESSIONS = "/session_2*"
_KILLED = 137
_KILL_S = 10.0
_LOG_BYTES = 1 << 22


# ---- what a machine is, and what reaches it


def report_node(disk: str, target: str, paths: List[str]) -> NodeFacts:
    began, engine, (gpus, gpu_error) = time.time(), query_engine(), query_gpus()
    return NodeFacts(
        machine=read_user_and_memory_facts(),
        engine=engine,
        gpus=gpus,
        gpu_error=gpu_error,
        disk=read_disk_facts_or_error(disk),
        addresses=list_external_ipv4_addresses_ssh_first(),
        listening=sorted({listener[0] for listener in list_tcp_ports_inodes_uids()}),
        clusters=list_ray_instances(disk, leave_out_containers=engine.state != "ok"),
        installation=find_installation(target),
        existing_paths=[path for path in paths if os.path.exists(path)],
        own_clock_before_after_s=(began, time.time()),
    )


def report_instances(disk: str, leave_out_containers: bool) -> Tuple[DiskFacts, Optional[List[RayInstance]]]:
    found = None
    with contextlib.suppress(OSError, ValueError):
        found = list_ray_instances(disk, leave_out_containers)
    return read_disk_facts_or_error(disk), found


def attempt_connections(endpoints: List[Tuple[str, int]]) -> List[str]:
    """Return for each endpoint why it cannot be connected to, empty where it can."""
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(_attempt_connection, endpoints))


def _attempt_connection(endpoint: Tuple[str, int]) -> str:
    try:
        socket.create_connection(endpoint, _REACH_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def hold_lock() -> Iterator[bool]:
    """Hold the lock of this machine, for an hour at most; False: another has it."""
    signal.alarm(_LOCK_S)
    server = socket.socket(socket.AF_UNIX)
    try:
        server.bind(_LOCK_NAME)
    except OSError:
        yield False
    yield True


def listen_and_find_holders(ports: List[int]) -> Iterator[Dict[int, str]]:
    """Listen; yield the ports that could not be had, each with who has it."""
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
    for port, inode, uid in list_tcp_ports_inodes_uids() if taken else ():
        if port in taken:
            taken[port] = _describe_socket_process(inode) or f"uid {uid}"
    yield taken


def _describe_socket_process(inode: str) -> str:
    for path in glob.iglob("/proc/[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(path) == f"socket:[{inode}]":
                pid = path.split("/")[2]
                command = read_stripped_text_or_empty(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
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


def write_private_file(disk: str, path: str, text: str) -> None:
    full = os.path.join(_make_directory(disk, os.path.dirname(path)), os.path.basename(path))
    part = f"{full}.{os.getpid()}"
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    os.rename(part, full)


def _remove_directory_with_empty_parents(disk: str, path: str) -> bool:
    full = _resolve_below_disk(disk, path)
    existed = os.path.isdir(full)
    shutil.rmtree(full, ignore_errors=True)
    with contextlib.suppress(OSError):
        while os.path.dirname(path):
            path = os.path.dirname(path)
            os.rmdir(_resolve_below_disk(disk, path))
    return existed


# ---- Ray as processes of this user: the process that leads their session is recorded, and ended by its number


def _list_process_directories(disk: str) -> List[str]:
    pattern = os.path.join(glob.escape(disk), "clusters", str(os.getuid()), "*", "*", "here", "*", "record.json")
    return [os.path.dirname(path) for path in glob.glob(pattern)]


def _list_session_processes(directory: str) -> Dict[int, int]:
    """Return the processes of the session that a recorded process leads, with their parents; none after a reboot."""
    record = read_json_or_empty(directory + "/record.json")
    leader = read_live_process_stat(record.get("pid", 0))
    if record.get("boot") != read_boot_id() or (leader and leader.start_ticks != record["born"]):
        return {}  # its number is another process's now
    stats = {int(name): read_live_process_stat(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    return {pid: row.parent_pid for pid, row in stats.items() if row and row.session_id == record["pid"]}


def _read_instance(directory: str) -> RayInstance:
    record = read_json_or_empty(directory + "/record.json")
    found = RayInstance(directory, record["name"], record["image"], record["labels"], status="running")
    if _list_session_processes(directory):
        return found
    code, __, finished = read_stripped_text_or_empty(directory + "/exit").partition(" ")
    part = find_first_ended_part_with_code(read_stripped_text_or_empty(directory + "/log"))
    return found._replace(
        status="exited", exit_code=int(code or _KILLED), finished=finished, first_ended_part_with_code=part
    )


def list_ray_instances(disk: str, leave_out_containers: bool) -> List[RayInstance]:
    rows = [_read_instance(directory) for directory in _list_process_directories(disk)]
    return rows if leave_out_containers else rows + list_ray_containers()


def _build_environment(program: Dict[str, Any]) -> Dict[str, str]:
    env = {name: text for name, text in os.environ.items() if re.match(program["inherited_name"], name)}
    env.setdefault("HOME", os.path.expanduser("~"))
    env.setdefault("USER", str(os.getuid()))
    return dict(env, **program["variables"])


_WRAPPER = '"$@"; printf "%s %s" $? "$(date -u +%Y-%m-%dT%H:%M:%SZ)" >exit'


def start_ray_get_dir(disk: str, cluster_directory: str, program: Dict[str, Any], description: Dict[str, Any]) -> str:
    """Start Ray in a session of its own and record its leader; return the directory of that."""
    path = f"{cluster_directory}/here/{binascii.hexlify(os.urandom(6)).decode()}"
    directory = _make_directory(disk, path)
    scratch = _scratch_directory(directory)
    os.mkdir(scratch, 0o700)
    if not os.path.lexists(TEMP):  # Ray's directory is to lie on the data disk
        own = os.path.join(disk, f"ray-{os.getuid()}")
        os.makedirs(own, 0o700, exist_ok=True)
        os.symlink(own, TEMP)
    env = dict(_build_environment(program), TMPDIR=scratch, RAY_TMPDIR=os.path.dirname(TEMP))
    with open(directory + "/log", "ab") as log:
        process = subprocess.Popen(
            ["sh", "-c", _WRAPPER, "sh", *program["argv"]],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=env,
            cwd=directory,
            start_new_session=True,
        )
    row = read_live_process_stat(process.pid)
    process.returncode = 0  # it stays when this script ends
    record = dict(description, pid=process.pid, born=row.start_ticks if row else 0, boot=read_boot_id())
    write_private_file(disk, path + "/record.json", json.dumps(record))
    return directory


def _scratch_directory(directory: str) -> str:
    return "/tmp/rlbox-here-" + os.path.basename(directory)  # noqa: S108


def stop_and_remove_processes(directory: str, grace_s: float) -> None:
    """End a recorded session: its leader's child is asked first, then all of it is killed; remove the record."""
    leader = read_json_or_empty(directory + "/record.json").get("pid")
    for number, patience in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _KILL_S)):
        until = time.monotonic() + patience
        for pid, parent in _list_session_processes(directory).items() if patience else ():
            if number == signal.SIGKILL or parent == leader:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
        while time.monotonic() < until and _list_session_processes(directory):
            time.sleep(0.05)
    for path in (_scratch_directory(directory), directory):
        shutil.rmtree(path, ignore_errors=True)


def run_program_ignoring_exit(program: Dict[str, Any]) -> str:
    argv, env = program["argv"], _build_environment(program)
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=env, cwd="/", check=False)
    return done.stdout.decode("utf-8", "replace")


def kill_clusters_list_removed(disk: str, paths: List[str]) -> List[str]:
    """Remove clusters' directories from the data disk, with what their processes left; return what there was."""
    removed = []
    for path in paths:
        processes = _resolve_below_disk(disk, path) + "/here"
        had_containers = not os.path.isdir(processes)
        for folder in glob.glob(glob.escape(processes) + "/*"):
            stop_and_remove_processes(folder, 0)
        if _remove_directory_with_empty_parents(disk, path):
            removed.append("its folder")
            for folder, __, __ in os.walk(os.path.join(disk, "cache"), topdown=False) if had_containers else ():
                with contextlib.suppress(OSError):  # what programs in containers compiled into
                    os.rmdir(folder)
    _remove_dead_sessions(disk)
    return removed


def _remove_dead_sessions(disk: str) -> None:
    """Remove Ray's sessions, and the link to where they are, once no process has one of them."""
    own = os.path.join(disk, f"ray-{os.getuid()}")
    if os.path.realpath(TEMP) == os.path.realpath(own):
        commands = "\0".join(read_stripped_text_or_empty(path) for path in glob.glob("/proc/[0-9]*/cmdline"))
        if not any(os.path.basename(path) in commands for path in glob.glob(glob.escape(own) + _SESSIONS)):
            os.unlink(TEMP)
            shutil.rmtree(own, ignore_errors=True)


# ---- logs


def tail_ray_logs(
    ray_directory: str, patterns: List[str], offsets: Dict[str, int], with_unfinished_lines: bool
) -> Dict[str, Tuple[str, float, int]]:
    """Return what logs of the newest session gained since `offsets`: text, time of writing, the offset behind it.

    Of a log without an offset that is its end. No link is followed.
    """
    folder = max(glob.glob(glob.escape(os.path.realpath(ray_directory)) + _SESSIONS), default="/none") + "/logs"
    rows = {}
    for path in {path for pattern in patterns for path in glob.glob(glob.escape(folder) + "/" + pattern)}:
        if not os.path.islink(path):
            name = os.path.basename(path)
            with contextlib.suppress(OSError):
                rows[name] = _read_gain(path, offsets.get(name), with_unfinished_lines)
    return {name: row for name, row in rows.items() if row[0]}


def _read_gain(path: str, offset: Optional[int], with_unfinished_line: bool) -> Tuple[str, float, int]:
    with open(path, "rb") as file:
        found = os.fstat(file.fileno())
        start = max(0, found.st_size - _LOG_BYTES) if offset is None else offset
        file.seek(start)
        data = file.read(_LOG_BYTES)
    end = len(data) if with_unfinished_line or len(data) == _LOG_BYTES else data.rfind(b"\n") + 1
    begin = data.find(b"\n") + 1 if offset is None and start else 0
    return data[begin:end].decode("utf-8", "replace"), found.st_mtime, start + end


def answer_request_on_stdin() -> None:
    name, arguments = json.loads(sys.stdin.buffer.readline().decode())
    try:
        answer = globals()[name](**arguments)
        holds = hasattr(answer, "__next__")
        row = {"answer": next(answer) if holds else answer}
    except (OSError, ValueError) as error:
        holds, row = False, {"error": str(error) or type(error).__name__}
    sys.stdout.write(_MARK + json.dumps(row) + "\n")
    sys.stdout.flush()
    if holds:
        sys.stdin.buffer.read()


if __name__ == "__main__":
    answer_request_on_stdin()
