"""The keys of a spec as dotted paths: `env.OMP_NUM_THREADS`, `stack[torch].packages`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def dotted(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of every leaf; tables in a list go by their `name`, other lists are leaves."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from dotted(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value and all(isinstance(one, Mapping) and "name" in one for one in value):
        for one in value:
            inner = {key: text for key, text in one.items() if key != "name"}
            yield from dotted(inner, f"{path}[{one['name']}]")
    else:
        yield path, value
