"""Values with a unit: what may be written, what a command gets, and every message about a wrong one."""

from __future__ import annotations

from fractions import Fraction
from typing import get_args

import pytest
from fakes import load_cases
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

CASES = load_cases("config", "test_units")


@pytest.mark.parametrize(("kind", "written", "unit", "value"), CASES["what_a_command_gets"])
def test_what_a_command_gets(kind: UnitKind, written: str | float, unit: str, value: float) -> None:
    found = convert_from_base_unit(parse_to_base_unit(kind, written), unit)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(("kind", "written", "message"), CASES["what_is_no_value"])
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
