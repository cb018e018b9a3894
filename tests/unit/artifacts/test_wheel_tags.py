"""Which of a version's wheels is locked: the one that an installer takes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from fakes import load_cases

from rlbox.artifacts.python_lock import choose_best_wheel

CASES = load_cases("artifacts", "test_wheel_tags")
X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
# From the best to the worst for CPython 3.11 on x86-64; names of files that indexes offer.
RANKED = CASES["RANKED"]
FOREIGN = CASES["FOREIGN"]


@pytest.mark.parametrize(("better", "worse"), list(pairwise(RANKED)))
def test_the_most_specific_wheel_wins(better: str, worse: str) -> None:
    assert choose_best_wheel([worse, better], "3.11", X86) == better
    assert choose_best_wheel([better, worse], "3.11", X86) == better


@pytest.mark.parametrize("name", FOREIGN)
def test_nothing_fits(name: str) -> None:
    assert choose_best_wheel([name], "3.11", X86) is None


@pytest.mark.parametrize(
    ("names", "best"),
    [
        (("x-1.0-1-py3-none-any.whl", "x-1.0-2-py3-none-any.whl"), "x-1.0-2-py3-none-any.whl"),
        (("x-1.0-10-py3-none-any.whl", "x-1.0-9-py3-none-any.whl"), "x-1.0-10-py3-none-any.whl"),
        (("x-1.0-py3-none-any.whl", "x-1.0-1-py3-none-any.whl"), "x-1.0-1-py3-none-any.whl"),
        (("x-1.0-9-py3-none-any.whl", RANKED[0]), RANKED[0]),
    ],
)
def test_the_highest_build_number_among_equals(names: tuple[str, str], best: str) -> None:
    assert choose_best_wheel(names, "3.11", X86) == best
    assert choose_best_wheel(names[::-1], "3.11", X86) == best


@pytest.mark.parametrize(
    ("python", "platform", "best"),
    [
        ("3.11", ARM, "x-1.0-cp311-cp311-manylinux_2_28_aarch64.whl"),
        ("3.11", "x86_64-manylinux_2_36", RANKED[0]),
        ("3.12", X86, "x-1.0-cp312-cp312-manylinux_2_28_x86_64.whl"),
        ("3.10", X86, "x-1.0-cp39-abi3-manylinux_2_31_x86_64.whl"),
        ("3.13", "riscv64-unknown-linux-gnu", "x-1.0-py3-none-any.whl"),
    ],
)
def test_interpreter_and_platform(python: str, platform: str, best: str) -> None:
    assert choose_best_wheel([*RANKED, *FOREIGN], python, platform) == best
