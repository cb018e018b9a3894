"""Values with a unit: what may be written, what a command gets, and every message about a wrong one."""

from __future__ import annotations

from fractions import Fraction
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlbox.config.units import (
    DURATIONS,
    PARAMETER_UNITS,
    SIZES,
    Unit,
    UnitKind,
    convert_from_base_unit,
    parse_to_base_unit,
)


@pytest.mark.parametrize(
    ("kind", "written", "unit", "value"),
    [
        ("duration", "30s", "seconds", 30),
        ("duration", "10min", "seconds", 600),
        ("duration", "2h", "minutes", 120),
        ("duration", "1h30min", "hours", 1.5),
        ("duration", "1h 30min 5s", "seconds", 5405),
        ("duration", "1.5 h", "seconds", 5400),
        ("duration", "250ms", "seconds", 0.25),
        ("duration", "2d", "hours", 48),
        ("duration", "0", "seconds", 0),
        ("duration", 0, "milliseconds", 0),
        ("size", "512MiB", "bytes", 536870912),
        ("size", "80GB", "bytes", 80000000000),
        ("size", "80GiB", "bytes", 85899345920),
        ("size", "80GiB", "GiB", 80),
        ("size", "80GB", "GiB", 74.50580596923828),
        ("size", "1.5GiB", "MiB", 1536),
        ("size", "4kB", "bytes", 4000),
        ("size", "4KiB", "bytes", 4096),
        ("size", "1B", "bytes", 1),
        ("fraction", "70%", "fraction", 0.7),
        ("fraction", 0.45, "percent", 45),
        ("fraction", "0.45", "fraction", 0.45),
        ("fraction", 1, "percent", 100),
        ("fraction", "150%", "fraction", 1.5),
        ("fraction", 1.0, "fraction", 1),
    ],
)
def test_what_a_command_gets(kind: UnitKind, written: str | float, unit: str, value: float) -> None:
    found = convert_from_base_unit(parse_to_base_unit(kind, written), unit)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("kind", "written", "message"),
    [
        ("duration", "30", "must carry its unit: 30s, 10min, 2h, 1h30min (got 30)"),
        ("duration", 30, "must carry its unit: 30s, 10min, 2h, 1h30min (got 30)"),
        ("duration", "30m", "'m' may mean two things: write min for minutes, ms for milliseconds"),
        ("duration", "30S", "'S' is not a unit of a duration (did you mean 's'?); known: ms, s, min, h, d"),
        ("duration", "5mins", "'mins' is not a unit of a duration (did you mean 'min'?); known: ms, s, min, h, d"),
        ("duration", "5GB", "'GB' is not a unit of a duration; known: ms, s, min, h, d"),
        ("duration", "-5s", "must be a duration: 30s, 10min, 2h, 1h30min (got '-5s')"),
        ("duration", "soon", "must be a duration: 30s, 10min, 2h, 1h30min (got 'soon')"),
        ("duration", "", "must be a duration: 30s, 10min, 2h, 1h30min (got '')"),
        ("duration", "5s later", "must be a duration: 30s, 10min, 2h, 1h30min (got '5s later')"),
        ("duration", "5min1h", "must be one duration, the largest unit first: 30s, 10min, 2h, 1h30min (got '5min1h')"),
        ("duration", "1h1h", "must be one duration, the largest unit first: 30s, 10min, 2h, 1h30min (got '1h1h')"),
        ("duration", "1e9s", "'e' is not a unit of a duration; known: ms, s, min, h, d"),
        ("size", "80", "must carry its unit: 512MiB (2^20), 80GB (10^9) (got 80)"),
        ("size", "80G", "'G' may mean two sizes: write GB (a power of 1000) or GiB (of 1024)"),
        ("size", "80k", "'k' may mean two sizes: write kB (a power of 1000) or KiB (of 1024)"),
        (
            "size",
            "80gb",
            "'gb' is not a unit of a size (did you mean 'GB'?); known: B, kB, MB, GB, TB, PB, KiB, MiB, GiB, TiB, PiB",
        ),
        ("size", "1GiB1MiB", "must be one size, the largest unit first: 512MiB (2^20), 80GB (10^9) (got '1GiB1MiB')"),
        ("fraction", "70", "must carry its unit: 70% or 0.7 (got 70)"),
        ("fraction", 1.2, "must carry its unit: 70% or 0.7 (got 1.2)"),
    ],
)
def test_what_is_no_value(kind: UnitKind, written: str | float, message: str) -> None:
    with pytest.raises(ValueError, match=r".*") as caught:
        parse_to_base_unit(kind, written)
    assert str(caught.value) == message


def test_units_of_the_schema() -> None:
    assert set(get_args(Unit)) == set(PARAMETER_UNITS)


@given(st.integers(0, 10**12), st.sampled_from(sorted(DURATIONS)), st.sampled_from(["", " "]))
def test_durations_are_exact(number: int, unit: str, blank: str) -> None:
    assert parse_to_base_unit("duration", f"{number}{blank}{unit}") == number * DURATIONS[unit]


@given(st.integers(0, 10**9), st.integers(0, 999), st.sampled_from(sorted(SIZES)))
def test_sizes_are_exact(whole: int, part: int, unit: str) -> None:
    assert parse_to_base_unit("size", f"{whole}.{part:03}{unit}") == (whole + Fraction(part, 1000)) * SIZES[unit]
