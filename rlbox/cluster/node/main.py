"""Answer the one request of a call: a line of JSON on standard input; every line of the answer begins with a mark."""

import contextlib
import json
import os
import queue
import socket
import sys
import threading
import time

from rlbox.cluster.node.facts import (
    disk_facts,
    engine_facts,
    gpu_facts,
    installation_facts,
    machine_facts,
    read_text,
)
from rlbox.cluster.node.network import list_addresses, list_listeners, listen, reach
from rlbox.cluster.node.ray import (
    clear_cluster,
    cluster_rows,
    execute,
    follow_logs,
    inside,
    list_names,
    process_output,
    process_rows,
    remove_path,
    start_processes,
    stop_request,
    watch,
    write_file,
)

MARK = "rlbox:"
LOCK_NAME = "\0rlbox-cluster"
_SILENCE_S = 90.0


def emit(row):
    sys.stdout.write(MARK + json.dumps(row) + "\n")
    sys.stdout.flush()


class Lines:
    """The lines that follow the request, read by a thread; `ended` once there are no more."""

    def __init__(self):
        self._lines, self.ended = queue.Queue(), False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in sys.stdin.buffer:
            self._lines.put(line)
        self.ended = True
        self._lines.put(b"")

    def next(self, seconds):
        """Return the next line, empty at the end; `queue.Empty` where none comes in time."""
        return self._lines.get(timeout=seconds)

    def wait(self, seconds):
        """Return whether a line or the end came within some seconds."""
        try:
            self._lines.get(timeout=seconds)
        except queue.Empty:
            return False
        return True


def report(request):
    """Report everything about this machine at once; with its time before and after."""
    began, facts, disk = time.time(), machine_facts(), request["disk"]
    facts["addresses"] = list_addresses()
    facts["listening"] = sorted({port for port, __, __ in list_listeners()})
    facts["gpu"] = gpu_facts()
    facts["engine"] = engine_facts()
    facts["disk"] = disk_facts(disk)
    facts["clusters"] = process_rows(disk) if facts["engine"]["state"] != "ok" else cluster_rows(request)
    facts["installation"] = installation_facts(request["target"])
    facts["paths"] = [path for path in request["paths"] if os.path.exists(path)]
    facts["clock_before_after_s"] = [began, time.time()]
    return facts


def helper_facts(request):
    """Return what a container beside the engine is given: its socket's group, and where rlbox keeps its state."""
    home = os.path.expanduser("~")
    state = os.path.join(os.environ.get("XDG_STATE_HOME") or os.path.join(home, ".local/state"), "rlbox")
    os.makedirs(state, exist_ok=True)
    return {"group": os.stat(request["socket"]).st_gid, "home": home, "state": state}


def hold_lock(request, emit, lines):
    """Hold the lock of this machine until the input ends, or nothing is heard of the caller."""
    server = socket.socket(socket.AF_UNIX)
    try:
        server.bind(LOCK_NAME)
    except OSError:
        emit({"held": False})
        return
    emit({"held": True})
    with contextlib.suppress(queue.Empty):
        while lines.next(_SILENCE_S):
            pass


CALLS = {
    "identify": lambda request: machine_facts(),
    "report": report,
    "clusters": watch,
    "reach": reach,
    "helper": helper_facts,
    "write": write_file,
    "read": lambda request: {"text": read_text(inside(request["disk"], request["path"]))},
    "names": lambda request: {"names": list_names(inside(request["disk"], request["path"]))},
    "remove": lambda request: {"removed": remove_path(request["disk"], request["path"])},
    "start-processes": start_processes,
    "stop-processes": stop_request,
    "process-output": process_output,
    "clear": clear_cluster,
    "execute": execute,
}
STREAMS = {"listen": listen, "logs": follow_logs, "lock": hold_lock}


def main():
    request = json.loads(sys.stdin.buffer.readline().decode())
    try:
        if request["call"] in STREAMS:
            STREAMS[request["call"]](request, emit, Lines())
        else:
            emit(CALLS[request["call"]](request))
    except BrokenPipeError:
        pass
    except (OSError, ValueError) as error:
        with contextlib.suppress(OSError):
            emit({"error": str(error) or type(error).__name__})
    os._exit(0)  # the thread that reads is not waited for


if __name__ == "__main__":
    main()
