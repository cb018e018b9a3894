"""Answer the one request of a call: a line of JSON on standard input; every line of the answer begins with a mark."""

import contextlib
import json
import os
import queue
import socket
import sys
import threading
import time
from typing import Any, Callable, Dict, Optional

from rlbox.cluster.node.facts import (
    find_installation,
    query_engine,
    query_gpus,
    read_directory_facts,
    read_machine_facts,
    read_text_or_empty,
)
from rlbox.cluster.node.network import (
    attempt_connections,
    list_external_addresses,
    list_tcp_listeners,
    open_port_listeners,
)
from rlbox.cluster.node.ray import (
    TEMP,
    InstalledProgram,
    Owner,
    exec_program,
    follow_ray_logs,
    kill_and_remove_clusters,
    list_directory_or_empty,
    list_ray_instances,
    read_ray_process_output,
    remove_with_empty_parents,
    resolve_below_disk,
    start_ray_processes,
    stop_ray_processes,
    write_private_file,
)

MARK = "rlbox:"
LOCK_NAME = "\0rlbox-cluster"
_SILENCE_S = 90.0
_Request = Dict[str, Any]


# ---- lines in and out


def _emit(answer: Any) -> None:
    sys.stdout.write(MARK + json.dumps(_to_json(answer)) + "\n")
    sys.stdout.flush()


def _to_json(value: Any) -> Any:
    """Return a value whose named tuples are objects."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: _to_json(item) for key, item in value.items()}
    return [_to_json(item) for item in value] if isinstance(value, (list, tuple)) else value


class _InputLines:
    """The lines that follow the request, read by a thread."""

    def __init__(self) -> None:
        self._lines: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin.buffer:
            self._lines.put(line)
        self._lines.put(b"")

    def next(self, timeout_s: Optional[float]) -> bytes:
        """Return the next line, empty at the end; `queue.Empty` where none comes in time."""
        return self._lines.get(timeout=timeout_s)

    def wait(self, timeout_s: float) -> bool:
        """Return whether a line or the end came in time."""
        try:
            self._lines.get(timeout=timeout_s)
        except queue.Empty:
            return False
        return True


# ---- calls with one answer


def _report(request: _Request) -> _Request:
    """Report everything about this machine at once; with its time before and after."""
    began, disk, engine = time.time(), request["disk"], query_engine()
    return dict(
        read_machine_facts()._asdict(),
        addresses=list_external_addresses(),
        listening=sorted({row.port for row in list_tcp_listeners()}),
        gpu=query_gpus(),
        engine=engine,
        disk=read_directory_facts(disk),
        clusters=list_ray_instances(disk, leave_out_containers=engine.state != "ok"),
        installation=find_installation(request["target"]),
        paths=[path for path in request["paths"] if os.path.exists(path)],
        clock_before_after_s=[began, time.time()],
    )


def _watch(request: _Request) -> _Request:
    """Return containers, where the engine answers, processes and the data disk."""
    facts: _Request = {"disk": read_directory_facts(request["disk"])}
    with contextlib.suppress(OSError, ValueError):
        facts["clusters"] = list_ray_instances(request["disk"], request["here"])
    return facts


def _create_helper_state(request: _Request) -> _Request:
    """Return what a container beside the engine is given: its socket's group, and where rlbox keeps its state."""
    home = os.path.expanduser("~")
    state = os.path.join(os.environ.get("XDG_STATE_HOME") or os.path.join(home, ".local/state"), "rlbox")
    os.makedirs(state, exist_ok=True)
    return {"group": os.stat(request["socket"]).st_gid, "home": home, "state": state}


def _write(request: _Request) -> _Request:
    owner = Owner(*request["owner"]) if request.get("owner") else None
    write_private_file(request["disk"], request["path"], request["text"], owner)
    return {}


def _read_program(request: _Request) -> InstalledProgram:
    return InstalledProgram(
        install_directory=request["own"],
        argv=request["argv"],
        inherited_names=request["names"],
        inherited_prefixes=request["kinds"],
        path=request["path"],
        variables=request["env"],
    )


def _start_processes(request: _Request) -> _Request:
    record_id = start_ray_processes(
        request["disk"],
        request["folder"],
        _read_program(request),
        container_name=request["container"],
        image=request["image"],
        labels=request["labels"],
    )
    return {"id": record_id}


def _stop_processes(request: _Request) -> _Request:
    stop_ray_processes(request["disk"], request["ids"], request["grace"])
    return {}


_CALLS: Dict[str, Callable[[_Request], Any]] = {
    "identify": lambda request: read_machine_facts(),
    "report": _report,
    "clusters": _watch,
    "reach": lambda request: {"said": attempt_connections([(host, port) for host, port in request["targets"]])},
    "helper": _create_helper_state,
    "write": _write,
    "read": lambda request: {"text": read_text_or_empty(resolve_below_disk(request["disk"], request["path"]))},
    "names": lambda request: {"names": list_directory_or_empty(resolve_below_disk(request["disk"], request["path"]))},
    "remove": lambda request: {"removed": remove_with_empty_parents(request["disk"], request["path"])},
    "start-processes": _start_processes,
    "stop-processes": _stop_processes,
    "process-output": lambda request: {
        "text": read_ray_process_output(request["disk"], request["id"], request["lines"])
    },
    "clear": lambda request: kill_and_remove_clusters(request["disk"], request["paths"], request["containers"]),
    "execute": lambda request: exec_program(_read_program(request)),
}


# ---- calls that go on until the input ends


def _listen(request: _Request, lines: _InputLines) -> None:
    listeners = open_port_listeners(request["ports"])
    _emit({"taken": listeners.holder_by_taken_port})
    while lines.next(None):
        pass


def _follow_logs(request: _Request, lines: _InputLines) -> None:
    ray_temp = TEMP if request["here"] else os.path.join(request["disk"], request["folder"], "ray")
    wait_for_end = lines.wait if request["follow"] else None
    for report in follow_ray_logs(ray_temp, request["names"], request["most"], wait_for_end):
        _emit(report)


def _hold_lock(request: _Request, lines: _InputLines) -> None:
    """Hold the lock of this machine until the input ends, or nothing is heard of the caller."""
    server = socket.socket(socket.AF_UNIX)
    try:
        server.bind(LOCK_NAME)
    except OSError:
        _emit({"held": False})
        return
    _emit({"held": True})
    with contextlib.suppress(queue.Empty):
        while lines.next(_SILENCE_S):
            pass


_STREAMS: Dict[str, Callable[[_Request, _InputLines], None]] = {
    "listen": _listen,
    "logs": _follow_logs,
    "lock": _hold_lock,
}


def answer_request_on_stdin() -> None:
    request = json.loads(sys.stdin.buffer.readline().decode())
    try:
        if request["call"] in _STREAMS:
            _STREAMS[request["call"]](request, _InputLines())
        else:
            _emit(_CALLS[request["call"]](request))
    except BrokenPipeError:
        pass
    except (OSError, ValueError) as error:
        with contextlib.suppress(OSError):
            _emit({"error": str(error) or type(error).__name__})
    os._exit(0)  # the thread that reads is not waited for


if __name__ == "__main__":
    answer_request_on_stdin()
