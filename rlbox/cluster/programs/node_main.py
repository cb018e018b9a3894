"""The program of a node: it answers what it is asked over its connection, and leaves nothing when that ends."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from rlbox.cluster.programs import (
    node_blobs,
    node_engine,
    node_facts,
    node_files,
    node_here,
    node_hold,
    node_keeper,
    node_net,
    node_ray,
    node_rules,
    node_run,
)
from rlbox.cluster.programs.node_hold import Node
from rlbox.cluster.programs.node_wire import NodeFailed, NodeWire

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlbox.cluster.programs.node_wire import Row


def _facts(node: Node, row: Row) -> Row:
    """Answer everything about this node in one go."""
    found = node_facts.machine_facts()
    found["addresses"] = node_net.addresses()
    found["names"] = node_net.resolve([found["host"], *row.get("names", ())])
    found["listening"] = node_net.listening()
    found["gpu"] = node_facts.gpu_facts()
    found["engine"] = node_engine.engine_facts(node.engine)
    ok = found["engine"]["state"] == "ok"
    found["clusters"] = node.lives.rows(ok)
    found["place"] = node_here.find_place(row["target"]) if row.get("target") else None
    found["image"] = node_engine.image_facts(node.engine, row["image"]) if ok and row.get("image") else None
    found["disk"] = node_files.disk_facts(row["disk"])
    found["record"] = node_files.read(row["disk"], row["record"])
    found["paths"] = [node_files.print_of(path) for path in row.get("paths", ())]
    return found


def _write(node: Node, row: Row) -> Row:
    node_files.write(row["disk"], row["path"], row["text"], row["mode"], row.get("owner", []))
    return {}


def _leave(node: Node, row: Row) -> Row:
    node.hold.leave()
    return {}


def _listen(node: Node, row: Row) -> Row:
    """Listen on ports; of those that are taken say who has them."""
    found = node.listeners.open(row["ports"], row["word"], row["family"])
    taken = {int(port) for port in found["taken"]}
    rows = [one for one in node_net.listening() if one["port"] in taken] if taken else []
    known = node_net.holders([one["inode"] for one in rows])
    for one in rows:
        who = known.get(one["inode"])
        words = f"process {who['pid']} ({who['words']})" if who else f"uid {one['uid']}"
        found["taken"][str(one["port"])] = words
    return found


def _serve(node: Node, row: Row, part: Callable[[Row], None], ended: threading.Event) -> Row:
    """Serve the parts of an image to the engine here, and to other nodes at `beside`; what is wanted is told."""
    blobs = node.blobs = node_blobs.Blobs(row["disk"], row["path"], row, part)
    beside = row.get("beside")
    part({"port": blobs.serve("127.0.0.1", 0), "beside": blobs.serve(*beside) if beside else 0})
    ended.wait()
    node.blobs = None
    blobs.close()
    return {"failed": blobs.failed}


def _take_blob(node: Node, row: Row) -> None:
    """Take the bytes behind a row; they are read in any case."""
    blocks = node.wire.blocks(row["bytes"])
    if node.blobs is not None:
        node.blobs.write(row["digest"], row["at"], blocks)
    for _ in blocks:
        pass


def _take_piece(node: Node, row: Row) -> None:
    """Take the bytes behind a row into a file; what was wrong is told to who asks for the file to be used."""
    blocks = node.wire.blocks(row["bytes"])
    try:
        node_ray.write_piece(row, blocks)
    except OSError as error:
        node.pieces[row["file"]] = error.strerror or str(error)
    for _ in blocks:
        pass


def _ask_ray(node: Node, row: Row) -> Row:
    failed = node.pieces.pop(row.get("file", ""), "")
    if failed:
        raise NodeFailed(failed, "disk")
    return node_ray.ask_ray(row)


def _tell_logs(node: Node, row: Row, part: Callable[[Row], None], ended: threading.Event) -> Row:
    return node_ray.tell_logs(row, lambda: node.lives.logs(row["container"], row["mount"]), part, ended)


def _watch(node: Node, row: Row, part: Callable[[Row], None], ended: threading.Event) -> Row:
    node.lives.tell_news(not row["here"], part, ended)
    return {}


def _end_at(ended: threading.Event, program: node_run.HeardProgram) -> None:
    ended.wait()
    program.end()


def _execute(node: Node, row: Row, part: Callable[[Row], None], ended: threading.Event) -> Row:
    """Run a program as those of a place are, and tell the lines that it prints."""
    program = node_run.HeardProgram(row["words"], node_here.environment(row))
    threading.Thread(target=_end_at, args=(ended, program), daemon=True).start()
    for line in program.lines():
        part({"line": line})
    return {}


def _open_door(node: Node, row: Row) -> Row:
    if node.door is None:
        node.door = node_ray.Door(os.path.join(node.folder, "door"), row["port"])
    return {}


def _beside(node: Node, row: Row) -> Row:
    """Tell where the engine listens, whose group that is, and where rlbox keeps what this host knows of its runs."""
    home = os.path.expanduser("~")
    state = os.path.join(os.environ.get("XDG_STATE_HOME") or os.path.join(home, ".local/state"), "rlbox")
    os.makedirs(state, exist_ok=True)
    return {"socket": node.engine, "group": os.stat(node.engine).st_gid, "home": home, "state": state}


def _quiet(node: Node, row: Row) -> Row:
    node.listeners.close()
    return {}


_DOES: dict[str, Callable[[Node, Row], Row]] = {
    "clock": lambda node, row: {"clock": time.time()},
    "facts": _facts,
    "listen": _listen,
    "quiet": _quiet,
    "routes": lambda node, row: {"sources": node_net.sources(row["goals"])},
    "reach": lambda node, row: {"reached": node_net.reach([(a, p) for a, p in row["goals"]], row["word"])},
    "take": lambda node, row: node.hold.take(row["who"]),
    "leave": _leave,
    "guard": node_hold.guard,
    "guard-file": node_hold.guard_file,
    "commit": node_hold.commit,
    "undo": node_hold.roll_back,
    "take-down": node_hold.take_down,
    "retire": node_hold.retire,
    "close-ports": lambda node, row: node_rules.close_ports(row["rules"], row["ports"], row["sources"]),
    "write": _write,
    "read": lambda node, row: {"text": node_files.read(row["disk"], row["path"])},
    "remove": lambda node, row: {"gone": node_files.remove(row["disk"], row["path"])},
    "containers": lambda node, row: {"containers": node.lives.rows(not row.get("here"))},
    "start-here": lambda node, row: node.lives.start_here(row),
    "output-here": lambda node, row: {"text": node.lives.output(row["container"], row["lines"])},
    "image": lambda node, row: {"image": node_engine.image_facts(node.engine, row["image"])},
    "audit": lambda node, row: {"listens": node.lives.listening(row["containers"])},
    "ray": _ask_ray,
    "beside": _beside,
    "names": lambda node, row: {"names": node_files.names(row["disk"], row["path"])},
    "door": _open_door,
    "blob-failed": lambda node, row: {"failed": node.blobs.failed if node.blobs is not None else ""},
}


_GOES_ON: dict[str, Callable[[Node, Row, Callable[[Row], None], threading.Event], Row]] = {
    "serve": _serve,
    "logs": _tell_logs,
    "execute-here": _execute,
    "watch": _watch,
}
"""What tells parts until it is told to end."""


def _answer(node: Node, row: Row) -> None:
    number = row.get("id", 0)
    try:
        if row["do"] in _GOES_ON:
            ended = node.ends[number] = threading.Event()
            tell = lambda part: node.wire.say({"id": number, "part": part})  # noqa: E731
            done = _GOES_ON[row["do"]](node, row, tell, ended)
        else:
            done = _DOES[row["do"]](node, row)
        node.wire.say({"id": number, "done": done})
    except NodeFailed as error:
        node.wire.say({"id": number, "failed": str(error), "kind": error.kind})
    except Exception as error:
        with contextlib.suppress(OSError, ValueError):
            node.wire.say({"id": number, "failed": f"{type(error).__name__}: {error}", "kind": "failed"})


def main() -> None:
    """Answer until the connection ends."""
    wire = NodeWire(sys.stdin.buffer, sys.stdout.buffer)
    node = Node(wire)
    try:
        first = wire.hear() or {}
        if "keep" in first:
            node_keeper.keep(first["keep"], wire.say)
            return
        wire.say({"rlbox": 1, "node": node.begin(first)})
        while True:
            row = wire.hear()
            node.heard = time.monotonic()
            if row is None:
                return
            if row.get("do") == "clock":
                _answer(node, row)
            elif row.get("do") == "blob":
                _take_blob(node, row)
            elif row.get("do") == "piece":
                _take_piece(node, row)
            elif row.get("do") == "end":
                node.ends.pop(row["of"], threading.Event()).set()
            elif row.get("do") != "beat":
                threading.Thread(target=_answer, args=(node, row), daemon=True).start()
    finally:
        node.end()
