"""What the kernel says about this container's memory and other limits, in either version of its cgroup files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlbox.foreign import whole_number
from rlbox.machine.act.process_table import read_text

_ROOT, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_UNLIMITED = 1 << 60
"""The first version writes a number near 2**63 for no limit."""


@dataclass(frozen=True, kw_only=True)
class MemoryFacts:
    """`kills`: how often the kernel ended a process for memory here; `limit_bytes` None: no limit.

    `cache_bytes` are those of `used_bytes` that hold pages of files.
    """

    kills: int = 0
    limit_bytes: int | None = None
    used_bytes: int | None = None
    cache_bytes: int = 0


def probe_memory(root: Path = _ROOT, own: Path = _OWN) -> MemoryFacts:
    """Return the facts of the cgroup that this process is in; zeros and None where the kernel tells nothing."""
    kills = group_text("memory", "events", "oom_control", root, own)
    if not kills:
        return MemoryFacts()
    return MemoryFacts(
        kills=_kills(kills),
        limit_bytes=group_number("memory", "max", "limit_in_bytes", root, own),
        used_bytes=group_number("memory", "current", "usage_in_bytes", root, own),
        cache_bytes=_cache(group_text("memory", "stat", "stat", root, own)),
    )


def available_bytes() -> int:
    """Return how much memory the machine can still give, caches that it would drop included."""
    return _of_machine("MemAvailable")


def total_bytes() -> int:
    """Return how much memory the machine has."""
    return _of_machine("MemTotal")


def _of_machine(name: str) -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        rows = dict(line.split(":", 1) for line in file)
    return int(rows[name].split()[0]) * 1024


def group_number(controller: str, second: str, first: str, root: Path = _ROOT, own: Path = _OWN) -> int | None:
    """Return a number of the cgroup that this process is in; None for no limit, or where the kernel tells none."""
    number = whole_number(group_text(controller, second, first, root, own).strip(), digits=20)
    return number if number is not None and number < _UNLIMITED else None


def group_text(controller: str, second: str, first: str, root: Path = _ROOT, own: Path = _OWN) -> str:
    """Return a file of the cgroup that this process is in; empty where there is none.

    `second` and `first` are what it is called in the two versions: `max` and `limit_in_bytes` of `memory`.
    """
    for line in read_text(own).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        top, name = (root / controller, first) if controllers else (root, second)
        # inside a container the path is often that of the host, and the container's own files are at the top
        for folder in (top / path.lstrip("/"), top):
            if text := read_text(folder / f"{controller}.{name}"):
                return text
    return ""


def _kills(text: str) -> int:
    rows = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    return int(rows.get("oom_kill", 0))


def _cache(text: str) -> int:
    rows = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    names = ("active_file", "inactive_file")
    # The first version counts what is below it apart.
    return sum(int(rows.get(f"total_{name}", rows.get(name, 0))) for name in names)
