"""Every fix on the real engine: its fault is there without it, and gone with it."""

from __future__ import annotations

import pytest
from faultbox import cases, load_case, load_fix, problems


@pytest.mark.parametrize("name", cases())
def test_the_fault_is_gone_with_the_fix(name: str) -> None:
    assert problems(load_case(name), load_fix(name)) == []
