"""What the kernel says about the memory limit of this container, in either version of its cgroup files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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


def probe_memory(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> MemoryFacts:
    """Return the facts of the cgroup that this process is in; zeros and None where the kernel tells nothing."""
    for folder, kills, limit, used in _places(root, own):
        if (folder / kills).is_file():
            return MemoryFacts(
                kills=_kills(folder / kills),
                limit_bytes=_number(folder / limit),
                used_bytes=_number(folder / used),
                cache_bytes=_cache(folder / "memory.stat"),
            )
    return MemoryFacts()


def _places(root: Path, own: Path) -> list[tuple[Path, str, str, str]]:
    second = ("memory.events", "memory.max", "memory.current")
    first = ("memory.oom_control", "memory.limit_in_bytes", "memory.usage_in_bytes")
    found: list[tuple[Path, str, str, str]] = []
    for line in _text(own).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        inner = path.lstrip("/")
        if not controllers:
            found += [(root / inner, *second), (root, *second)]
        elif "memory" in controllers.split(","):
            # inside a container the path is often that of the host, and the container's own files are at the top
            found += [(root / "memory" / inner, *first), (root / "memory", *first)]
    return found


def _kills(path: Path) -> int:
    for line in _text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == "oom_kill" and value.isdigit():
            return int(value)
    return 0


def _cache(path: Path) -> int:
    rows = dict(line.split(" ", 1) for line in _text(path).splitlines() if " " in line)
    names = ("active_file", "inactive_file")
    # The first version counts what is below it apart.
    return sum(int(rows.get(f"total_{name}", rows.get(name, 0))) for name in names)


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() and int(text) < _UNLIMITED else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
