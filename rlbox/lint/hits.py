"""What a check of the lint gets and gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from rlbox.lint.drift import DriftRule
from rlbox.lint.read.calls import Call
from rlbox.lint.read.document import Document, Setting


@dataclass(frozen=True, kw_only=True)
class Where:
    """What is known of the machine that a document is for; nothing by default."""

    target: str = ""
    platform: str = ""
    region: str = ""
    arch: str = ""


@dataclass(frozen=True, kw_only=True)
class Hit:
    """Where a rule found its defect; `begin` is where the command begins that it is in, `fields` fill the texts."""

    start: int
    begin: int = -1
    within: frozenset[str] = frozenset()
    fields: Mapping[str, str] = field(default_factory=dict)


Check = Callable[[Document, DriftRule, Where], Iterable[Hit]]


def hit_call(call: Call, start: int | None = None, **fields: str) -> Hit:
    """Return a hit in a call, at its beginning unless `start` says where."""
    outer = call
    while outer.outer:
        outer = outer.outer
    return Hit(start=call.start if start is None else start, begin=outer.start, within=call.within, fields=fields)


def hit_setting(setting: Setting) -> Hit:
    """Return a hit at a setting."""
    return Hit(start=setting.start, within=setting.within, fields={"name": setting.name, "value": setting.value})
