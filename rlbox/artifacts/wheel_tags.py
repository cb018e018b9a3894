"""Which of a version's wheels an installer takes: the most specific one that the target's interpreter can load."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

# glibc versions that manylinux tags name; uv has already left out what is too new for the platform.
_GLIBC = range(45, 4, -1)
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}  # source: PEP 600, "Legacy manylinux tags"


def best_wheel(names: Iterable[str], python: str, platform: str) -> str | None:
    """Return the file name that an installer prefers, or None when there is no wheel for the interpreter.

    Parameters
    ----------
    python
        `3.11`.
    platform
        uv's name: `x86_64-unknown-linux-gnu`, `aarch64-…`, `x86_64-manylinux_2_28`.
    """
    order = _order(python, platform.partition("-")[0])
    ranked = sorted((_rank(name, order), name) for name in names)
    return next((name for (place, _), name in ranked if place < len(order)), None)


def _rank(name: str, order: dict[Tag, int]) -> tuple[int, tuple[int, str]]:
    try:
        _, _, build, tags = parse_wheel_filename(name)
    except InvalidWheelFilename:
        return len(order), (0, "")
    number, suffix = build or (0, "")
    return min((order.get(tag, len(order)) for tag in tags), default=len(order)), (-number, suffix)


@cache
def _order(python: str, machine: str) -> dict[Tag, int]:
    major, minor = (int(part) for part in python.split("."))
    platforms = list(_platforms(machine))
    tags = [*cpython_tags((major, minor), platforms=platforms)]
    tags += compatible_tags((major, minor), interpreter=f"cp{major}{minor}", platforms=platforms)
    return {tag: place for place, tag in enumerate(dict.fromkeys(tags))}


def _platforms(machine: str) -> Iterator[str]:
    for minor in _GLIBC:
        yield f"manylinux_2_{minor}_{machine}"
        if minor in _LEGACY:
            yield f"{_LEGACY[minor]}_{machine}"
    yield f"linux_{machine}"
