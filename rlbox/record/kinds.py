"""Values of records from the JSON that holds them; what reads a kind is built once a process, for it takes its time."""

from __future__ import annotations

import functools
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")


def parse_as(kind: type[T], data: object) -> T | None:
    """Return the value of a kind that parsed JSON holds; None for what is torn or of another kind."""
    try:
        return type_adapter(kind).validate_python(data)
    except ValidationError:
        return None


def type_adapter(kind: type[T]) -> TypeAdapter[T]:
    """Return what reads a kind, for whoever tells why it cannot be read."""
    return _adapter(cast(Any, kind))


@functools.cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
