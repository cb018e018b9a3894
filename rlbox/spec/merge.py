"""How an included spec and the one that includes it become one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `under` with `over` laid on top.

    Tables merge key by key. Lists of tables that all have a `name` of their own merge by that name, keeping the
    order of `under` and appending what is new. Everything else in `over` replaces what was there.
    """
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[key] = merge(below, value)
        elif _named(below) and _named(value):
            merged[key] = _merge_named(below, value)
        else:
            merged[key] = value
    return merged


def _named(value: Any) -> bool:
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        return False
    names = [item.get("name") for item in value]
    return bool(names) and all(isinstance(name, str) for name in names) and len(set(names)) == len(names)


def _merge_named(below: Any, above: Any) -> list[Mapping[str, Any]]:
    result = {item["name"]: item for item in below}
    for item in above:
        result[item["name"]] = merge(result.get(item["name"], {}), item)
    return list(result.values())
