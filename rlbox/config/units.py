"""Values with a unit: durations ("30s", "2h"), sizes ("512MiB" of 2^20, "80GB" of 10^9), fractions ("70%", 0.7)."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from rlbox.config.schema import did_you_mean_hint
from rlbox.i18n import _

UnitKind = Literal["duration", "size", "fraction"]

DURATIONS = {"ms": Fraction(1, 1000), "s": Fraction(1), "min": Fraction(60), "h": Fraction(3600), "d": Fraction(86400)}
SIZES = {"B": Fraction(1)}
SIZES |= {f"{letter}B": Fraction(1000**power) for power, letter in enumerate("kMGTP", start=1)}
SIZES |= {f"{letter}iB": Fraction(1024**power) for power, letter in enumerate("KMGTP", start=1)}
FRACTIONS = {"%": Fraction(1, 100)}
_WRITTEN: dict[UnitKind, dict[str, Fraction]] = {"duration": DURATIONS, "size": SIZES, "fraction": FRACTIONS}

# What a command may want, by the name that `unit` has in a parameter.
PARAMETER_UNITS: dict[str, tuple[UnitKind, Fraction]] = {
    "milliseconds": ("duration", DURATIONS["ms"]),
    "seconds": ("duration", DURATIONS["s"]),
    "minutes": ("duration", DURATIONS["min"]),
    "hours": ("duration", DURATIONS["h"]),
    "days": ("duration", DURATIONS["d"]),
    "bytes": ("size", SIZES["B"]),
    **{name: ("size", size) for name, size in SIZES.items() if name != "B"},
    "fraction": ("fraction", Fraction(1)),
    "percent": ("fraction", FRACTIONS["%"]),
}
Unit = Literal[
    "milliseconds", "seconds", "minutes", "hours", "days",
    "bytes", "kB", "MB", "GB", "TB", "PB", "KiB", "MiB", "GiB", "TiB", "PiB",
    "fraction", "percent",
]  # fmt: skip

_EXAMPLES: dict[UnitKind, str] = {
    "duration": "30s, 10min, 2h, 1h30min",
    "size": "512MiB (2^20), 80GB (10^9)",
    "fraction": "70% or 0.7",
}
_PART = re.compile(r"(\d{1,18}(?:\.\d{1,18})?) ?([A-Za-z%]+)", re.ASCII)
_NUMBER = re.compile(r"\d{1,18}(?:\.\d{1,18})?", re.ASCII)


def parse_to_base_unit(kind: UnitKind, value: str | float) -> Fraction:
    """Return what was written, in seconds, bytes or as a fraction of 1.

    A number alone is a fraction of 1 (at most 1: more than all of something is written as a percentage); of the other
    kinds only 0 needs no unit.

    Raises ValueError: it is no value of that kind; the message says what one looks like.
    """
    text = value.strip() if isinstance(value, str) else repr_without_exponent(value).removesuffix(".0")
    if _NUMBER.fullmatch(text):
        number = Fraction(text)
        if number == 0 or (kind == "fraction" and number <= 1):
            return number
        raise ValueError(_("must carry its unit: {examples} (got {text})").format(examples=_EXAMPLES[kind], text=text))
    parts = _PART.findall(text)
    if not parts or re.sub(r"\s", "", "".join(n + u for n, u in parts)) != re.sub(r"\s", "", text):
        raise ValueError(
            _("must be a {kind}: {examples} (got {written!r})").format(
                kind=kind, examples=_EXAMPLES[kind], written=value
            )
        )
    values = [Fraction(number) * _factor(kind, unit) for number, unit in parts]
    units = [_factor(kind, unit) for __, unit in parts]
    if len(parts) > 1 and (kind != "duration" or units != sorted(set(units), reverse=True)):
        raise ValueError(
            _("must be one {kind}, the largest unit first: {examples} (got {written!r})").format(
                kind=kind, examples=_EXAMPLES[kind], written=value
            )
        )
    return sum(values, Fraction(0))


def convert_from_base_unit(quantity: Fraction, unit: str) -> int | float:
    """Return `quantity` (seconds, bytes, a fraction of 1) in a unit of `PARAMETER_UNITS`."""
    value = quantity / PARAMETER_UNITS[unit][1]
    return int(value) if value.denominator == 1 else float(value)


def repr_without_exponent(value: float) -> str:
    """Return a number as a command reads it: no exponent, no rounding that is seen in 12 digits."""
    if isinstance(value, int):
        return str(value)
    text = repr(value)
    return text if "e" not in text else f"{value:.18f}".rstrip("0").rstrip(".")


def _factor(kind: UnitKind, unit: str) -> Fraction:
    known = _WRITTEN[kind]
    if unit in known:
        return known[unit]
    if unit.upper() in ("K", "M", "G", "T", "P") and kind == "size":
        decimal, binary = f"{unit.upper().replace('K', 'k')}B", f"{unit.upper()}iB"
        raise ValueError(
            _("{unit!r} may mean two sizes: write {decimal} (a power of 1000) or {binary} (of 1024)").format(
                unit=unit, decimal=decimal, binary=binary
            )
        )
    if unit == "m" and kind == "duration":
        raise ValueError(_("'m' may mean two things: write min for minutes, ms for milliseconds"))
    exact = [name for name in known if name.lower() == unit.lower()]
    near = _(" (did you mean {exact!r}?)").format(exact=exact[0]) if exact else did_you_mean_hint(unit, list(known))
    raise ValueError(
        _("{unit!r} is not a unit of a {kind}{near}; known: {known}").format(
            unit=unit, kind=kind, near=near, known=", ".join(known)
        )
    )


def _seconds(value: Any) -> Any:
    return float(parse_to_base_unit("duration", value)) if isinstance(value, str) else value


Seconds = Annotated[
    float,
    Field(gt=0),
    BeforeValidator(_seconds),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "examples": ["30s", "10min"]}]}
    ),
]
"""Seconds as a number, or a duration as text."""
