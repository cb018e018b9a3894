"""Answer the one request of a call: a line of JSON on standard input; every line of the answer begins with a mark."""

import concurrent.futures
import contextlib
import json
import os
import select
import socket
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from rlbox.cluster.node.facts import (
    InstanceReport,
    NodeFacts,
    find_installation,
    list_external_addresses,
    list_tcp_listeners,
    query_engine,
    query_gpus,
    read_disk_facts,
    read_machine_facts,
    read_text_or_empty,
)
from rlbox.cluster.node.ray import (
    TEMP,
    follow_ray_logs,
    kill_and_remove_clusters,
    list_disk_directory_or_empty,
    list_ray_instances,
    read_disk_text_or_empty,
    read_ray_process_output,
    remove_with_empty_parents,
    run_installed_program,
    start_ray_processes,
    stop_ray_processes,
    write_private_file,
)

MARK = "rlbox:"
LOCK_NAME = "\0rlbox-cluster"
_SILENCE_S = 90.0
_REACH_S, _AT_ONCE = 3.0, 256


def _emit(answer: Any) -> None:
    sys.stdout.write(MARK + json.dumps({"answer": answer}) + "\n")
    sys.stdout.flush()


def _wait_for_input(timeout_s: float) -> bool:
    """Return whether the caller wrote something, or ended, in time."""
    return bool(select.select([0], [], [], timeout_s)[0])


# ---- calls with one answer


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
        paths=[path for path in paths if os.path.exists(path)],
        clock_before_after_s=(began, time.time()),
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


class HelperState(NamedTuple):
    """What a container beside the engine is given: its socket's group, and where rlbox keeps its state."""

    socket_gid: int
    home: str
    state: str


def create_helper_state(engine_socket: str) -> HelperState:
    home = os.path.expanduser("~")
    state = os.path.join(os.environ.get("XDG_STATE_HOME") or os.path.join(home, ".local/state"), "rlbox")
    os.makedirs(state, exist_ok=True)
    return HelperState(os.stat(engine_socket).st_gid, home, state)


_CALLS: Tuple[Callable[..., Any], ...] = (
    read_machine_facts,
    report_node,
    report_instances,
    attempt_connections,
    create_helper_state,
    write_private_file,
    read_disk_text_or_empty,
    list_disk_directory_or_empty,
    remove_with_empty_parents,
    start_ray_processes,
    stop_ray_processes,
    read_ray_process_output,
    run_installed_program,
    kill_and_remove_clusters,
)


# ---- calls that go on until the input ends


def listen_on_ports(ports: List[int]) -> None:
    """Listen, and emit the ports that could not be had, each with who has it."""
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
    _emit(taken)
    sys.stdin.buffer.read()


def _describe_socket_process(inode: str) -> str:
    """Return the process that has a socket open, as far as this user may see it."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            handles = os.listdir(f"/proc/{pid}/fd")
            if any(os.readlink(f"/proc/{pid}/fd/{handle}") == f"socket:[{inode}]" for handle in handles):
                command = read_text_or_empty(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
                return f"process {pid} ({command[:120]})"
    return ""


def emit_ray_logs(
    disk: str, cluster_directory: str, is_inplace: bool, patterns: List[str], max_bytes: int, follow: bool
) -> None:
    ray_temp = TEMP if is_inplace else os.path.join(disk, cluster_directory, "ray")
    for report in follow_ray_logs(ray_temp, patterns, max_bytes, _wait_for_input if follow else None):
        _emit(report)


def hold_lock() -> None:
    """Hold the lock of this machine until the input ends, or nothing is heard of the caller."""
    server = socket.socket(socket.AF_UNIX)
    try:
        server.bind(LOCK_NAME)
    except OSError:
        _emit(False)
        return
    _emit(True)
    while _wait_for_input(_SILENCE_S) and os.read(0, 4096):
        pass


_STREAMS: Tuple[Callable[..., None], ...] = (listen_on_ports, emit_ray_logs, hold_lock)


def answer_request_on_stdin() -> None:
    name, arguments = json.loads(sys.stdin.buffer.readline().decode())
    calls: Dict[str, Callable[..., Any]] = {function.__name__: function for function in _CALLS + _STREAMS}
    try:
        answer = calls[name](**arguments)
        if calls[name] not in _STREAMS:
            _emit(answer)
    except BrokenPipeError:
        pass
    except (OSError, ValueError) as error:
        with contextlib.suppress(OSError):
            sys.stdout.write(MARK + json.dumps({"error": str(error) or type(error).__name__}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    answer_request_on_stdin()
