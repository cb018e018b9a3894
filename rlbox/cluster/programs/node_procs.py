"""Processes of a life of Ray on a node without an engine: which they are, their control group, how they end.

What belongs to a life is in its control group, where one can be made, below its keeper, or carries its mark. A process
is known by its number and the moment it began; nothing ends by name.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    Life = dict[str, Any]

MARK = "RLBOX_LIFE"
_KILL_S, _LOOK_S = 10.0, 0.05


class Processes:
    """The processes of this machine at one moment: parent, session, and when each began, by number."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[int, int, int]] = {}
        for name in os.listdir("/proc"):
            row = _stat(int(name)) if name.isdigit() else None
            if row:
                self.rows[int(name)] = row

    def alive(self, pid: int, born: int) -> bool:
        """Whether a process is the one that began then."""
        return pid in self.rows and self.rows[pid][2] == born

    def below(self, roots: set[int]) -> set[int]:
        """Return `roots` with all that they started."""
        found, more = set(roots), True
        while more:
            new = {pid for pid, row in self.rows.items() if row[0] in found and pid not in found}
            found, more = found | new, bool(new)
        return found


def _stat(pid: int) -> tuple[int, int, int] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    if len(words) < 20 or words[0] in (b"Z", b"X"):
        return None
    return int(words[1]), int(words[3]), int(words[19])


def born(pid: int) -> int:
    """Return when a process began, in ticks since the machine did; 0 where there is none."""
    row = _stat(pid)
    return row[2] if row else 0


def boot() -> str:
    """Return what is another after each start of the machine."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def members(life: Life, table: Processes | None = None) -> set[int]:
    """Return the processes of a life."""
    known = table or Processes()
    if life.get("boot") != boot():
        return set()
    roots = {int(life[key]) for key in ("pid", "child") if known.alive(int(life[key]), int(life[f"{key}_born"]))}
    found = known.below(roots | _grouped(life) | _marked(life["id"], known))
    return found & set(known.rows)


def unrecorded(name: str) -> Life:
    """Return a life whose record is torn: what carries its mark is known to be of it, and no more."""
    return {"id": name, "boot": boot(), "group": "", "pid": 0, "pid_born": 0, "child": 0, "child_born": 0}


def _grouped(life: Life) -> set[int]:
    if os.path.basename(life["group"]) != group_name(life["id"]):
        return set()
    try:
        with open(os.path.join(life["group"], "cgroup.procs")) as file:
            return {int(line) for line in file}
    except (OSError, ValueError):
        return set()


def _marked(name: str, table: Processes) -> set[int]:
    mark, found = f"{MARK}={name}".encode(), set()
    for pid in table.rows:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if mark in file.read().split(b"\0"):
                found.add(pid)
    return found


def group_name(life: str) -> str:
    """Return the name of a life's control group."""
    return f"rlbox-{life}"


def enter_group(name: str) -> str:
    """Put this process into a control group of a life's own, which limits nothing; return it, empty where none is."""
    for folder in _own_groups():
        made = os.path.join(folder, group_name(name))
        try:
            os.mkdir(made)
            with open(os.path.join(made, "cgroup.procs"), "w") as file:
                file.write(str(os.getpid()))
        except OSError:
            with contextlib.suppress(OSError):
                os.rmdir(made)
            continue
        return made
    return ""


def leave_group(group: str) -> None:
    """Put this process, which is in the group, back where it came from."""
    with contextlib.suppress(OSError), open(os.path.join(os.path.dirname(group), "cgroup.procs"), "w") as file:
        file.write(str(os.getpid()))


def remove_group(life: Life) -> None:
    """Remove the group of a life that has ended."""
    for _ in range(20):
        if os.path.basename(life["group"]) != group_name(life["id"]) or not os.path.isdir(life["group"]):
            return
        try:
            os.rmdir(life["group"])
        except OSError:  # what was killed is not yet collected
            time.sleep(_LOOK_S)


def _own_groups() -> Iterable[str]:
    """Yield the folders of the groups that this process is in, where another changes nothing for who is in it."""
    with contextlib.suppress(OSError):
        with open("/proc/self/cgroup") as file:
            groups = [line.strip().split(":", 2) for line in file]
        with open("/proc/self/mountinfo") as file:
            mounts = [line.split(" - ") for line in file if " - cgroup" in line]
        for wanted in ("", "freezer", "pids"):
            for _, known, path in groups:
                for head, tail in mounts if wanted in known.split(",") else ():
                    root, top = head.split(" ")[3:5]
                    names = tail.split()[-1].split(",") if tail.startswith("cgroup ") else [""]
                    if wanted in names:
                        below = path[len(root.rstrip("/")) :] if path.startswith(root) else path
                        yield os.path.join(top, below.strip("/"))


# ---- their end


def is_there(life: Life, key: str) -> bool:
    """Whether the keeper of a life (`pid`), or what it started (`child`), is still there."""
    return bool(life["boot"] == boot() and born(life[key]) == life[f"{key}_born"] != 0)


def tell(life: Life, key: str, number: int) -> None:
    """Send a signal to the keeper of a life, or to what it started, if it is still that."""
    with contextlib.suppress(OSError):
        if is_there(life, key):
            os.kill(life[key], number)


def wait_gone(lives: Iterable[Life], key: str, patience: float) -> None:
    """Wait until none of these is there, or the time is over."""
    until, left = time.monotonic() + patience, list(lives)
    while time.monotonic() < until and any(is_there(life, key) for life in left):
        time.sleep(_LOOK_S)


def end_lives(lives: Iterable[Life], grace: float) -> None:
    """End lives: what was started first ends its own, and then whatever is left is killed."""
    known = list(lives)
    going = [life for life in known if members(life)]
    for life in going:
        tell(life, "child", signal.SIGTERM)
    wait_gone(going, "child", grace)
    for life in going:
        tell(life, "child", signal.SIGKILL)  # its keeper sees to the rest
    wait_gone(going, "pid", _KILL_S)
    for life in going:
        kill_all(life)
    for life in known:  # also of those whose keeper was killed
        remove_group(life)


def kill_all(life: Life) -> None:
    """Kill every process of a life but this one, until there is none, or none more ends."""
    until = time.monotonic() + _KILL_S
    while time.monotonic() < until:
        left = members(life) - {os.getpid()}
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            return
        collect()
        time.sleep(_LOOK_S)


def collect() -> dict[int, int]:
    """Return what has ended below this process, with its exit code as a shell tells it."""
    found: dict[int, int] = {}
    with contextlib.suppress(OSError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            found[pid] = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return found
