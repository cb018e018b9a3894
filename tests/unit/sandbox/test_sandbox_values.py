"""What is asked, what a request may take, what is answered, and what the filter of system calls says."""

from __future__ import annotations

import errno
import importlib.util
import math
import re
import struct
from decimal import Decimal
from fractions import Fraction
from types import ModuleType
from typing import Any

import pytest
from fakes import CHECKOUT
from hypothesis import given
from hypothesis import strategies as st

from rlbox.sandbox import seccomp
from rlbox.sandbox.plan import PlanOutcome, ProgramExit, format_isolation_strength, has_landlock_and_seccomp
from rlbox.sandbox.request import RequestLimits, parse_program_request
from rlbox.sandbox.response import build_run_response, build_verdict_response


def _wire() -> ModuleType:
    spec = importlib.util.spec_from_file_location("wire", CHECKOUT / "rlbox/sandbox/programs/wire.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


wire = _wire()


# -------------------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("asked", [None, -1, 0, math.inf, math.nan, 1e300])
def test_no_request_raises_a_limit(asked: float | None) -> None:
    own = RequestLimits(cpu_s=30, memory_mb=1024)
    assert own.lower_to_request(asked, asked, asked) == own


def test_a_request_lowers() -> None:
    lowered = RequestLimits().lower_to_request(1.5, 2, 64.9)
    assert (lowered.cpu_s, lowered.compile_s, lowered.memory_mb) == (1.5, 2, 64)
    assert RequestLimits().lower_to_request(None, None, 1e-9).memory_mb == 1


# ------------------------------------------------------------------------------------------------------------- request


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ([], "a request is a JSON object"),
        ({}, "code: no text"),
        ({"code": 1}, "code: no text"),
        ({"code": "", "run_timeout": "1"}, "run_timeout: no number"),
        ({"code": "", "run_timeout": True}, "run_timeout: no number"),
        ({"code": "", "memory_limit_MB": math.nan}, "memory_limit_MB: no number"),
        ({"code": "", "files": []}, None),
        ({"code": "", "files": [1]}, "files: no object"),
        ({"code": "", "files": {"../a": ""}}, "'../a' is not a path below the program's folder"),
        ({"code": "", "files": {"/a": ""}}, "'/a' is not a path below the program's folder"),
        ({"code": "", "files": {"a": "%"}}, "files: 'a' is not base64"),
        ({"code": "", "files": {"a": 3}}, "files: 'a' is not base64"),
        ({"code": "", "fetch_files": ["a/../b"]}, "'a/../b' is not a path below the program's folder"),
        ({"code": "", "files": {"a\ud800": ""}}, "'a\\ud800' is not a path below the program's folder"),
        ({"code": "", "fetch_files": "a"}, "fetch_files: no list of names"),
        ({"code": "", "fetch_files": ["a"] * 1001}, "fetch_files: more than 1000"),
        ({"code": "", "files": {str(number): "" for number in range(1001)}}, "files: more than 1000"),
        ({"code": "x" * ((8 << 20) + 1)}, "code: longer than 8388608 characters"),
    ],
)
def test_requests_that_are_none(asked: Any, says: str | None) -> None:
    if says is None:
        assert parse_program_request(asked, RequestLimits()).files == {}
        return
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        parse_program_request(asked, RequestLimits())


def test_a_check_has_tests_and_names() -> None:
    asked = {"code": "c", "tests": "t", "before": "b", "names": ["f"]}
    found = parse_program_request(asked, RequestLimits(), has_tests=True).check
    assert found
    assert found == {"tests": "t", "before": "b", "called_functions": ["f"]}
    assert parse_program_request(asked, RequestLimits()).check is None
    with pytest.raises(match="tests: no text"):
        parse_program_request({"code": "c"}, RequestLimits(), has_tests=True)
    with pytest.raises(match="names: 'a b' is not a valid name"):
        parse_program_request({**asked, "names": ["a b"]}, RequestLimits(), has_tests=True)


# -------------------------------------------------------------------------------------------------------------- answer


PROGRAM = ProgramExit(return_code=0, stdout="o", stderr="")


@pytest.mark.parametrize(
    ("limit", "line", "verdict"),
    [
        ("", "passed", "accepted"),
        ("", "passed by", "failed"),
        ("", "wrong", "wrong"),
        ("", "failed ValueError: x", "failed"),
        ("", "", "failed"),
        ("", "elsewhere passed", "failed"),
        ("cpu", "passed", "timeout"),
        ("sleep", "passed", "timeout"),
        ("memory", "passed", "failed"),
    ],
)
def test_check_response_accepts_the_checkers_line_alone(limit: str, line: str, verdict: str) -> None:
    """A program under test that ended well, as here, says nothing."""
    outcome = PlanOutcome(limit=limit, verdict=line, programs=[PROGRAM, PROGRAM])
    assert build_verdict_response(outcome)["verdict"] == verdict


@pytest.mark.parametrize("limit", ["start", "cancelled"])
def test_response_without_a_run_is_no_verdict(limit: str) -> None:
    outcome = PlanOutcome(limit=limit, message="no wall")
    assert build_run_response(outcome)["status"] == build_verdict_response(outcome)["status"] == "SandboxError"
    assert "verdict" not in build_verdict_response(outcome)


def test_what_a_wall_is() -> None:
    layers: tuple[str, ...]
    for layers in (("landlock", "seccomp", "forks", "group"), ("landlock", "seccomp")):
        assert (has_landlock_and_seccomp(layers), format_isolation_strength(layers)) == (True, "+".join(layers))
    for layers in (("landlock", "forks"), ("seccomp", "forks"), ()):
        assert (has_landlock_and_seccomp(layers), format_isolation_strength(layers)) == (False, "limits only")


# -------------------------------------------------------------------------------------------------------------- filter

X86_64, ARM = 0xC000003E, 0xC00000B7
ALLOW, NOTIFY, KILL, REFUSED = "allow", "notify", "kill", "refused"


def call(number: int, *args: int, arch: int = X86_64, **how: Any) -> str:
    """Run both filters as the kernel does: what the stricter one says counts."""
    main = _carried_out(seccomp.build_syscall_filter(**how), number, args, arch)
    births = _carried_out(seccomp.build_fork_notify_filter(), number, args, arch)
    return births if main == ALLOW else main


def _carried_out(program: bytes, number: int, args: tuple[int, ...], arch: int) -> str:
    code = list(struct.iter_unpack("=HBBI", program))
    data = struct.pack("=IIQ6Q", number, arch, 0, *(args + (0,) * 6)[:6])
    held, at = 0, 0
    while True:
        kind, yes, no, value = code[at]
        at += 1
        match kind:
            case 0x20:
                held = struct.unpack_from("=I", data, value)[0]
            case 0x06:
                names = {0x7FFF0000: ALLOW, 0x7FC00000: NOTIFY, 0x80000000: KILL, 0x50000: "nothing"}
                return names.get(value) or f"{REFUSED} {errno.errorcode[value & 0xFFFF]}"
            case 0x54:
                held &= value
            case _:
                test = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[kind]
                at += yes if test else no


def test_what_the_filter_refuses() -> None:
    no = "refused EPERM"
    assert [call(number) for number in (0, 1, 2, 9, 59, 61, 231)] == [
        ALLOW
    ] * 7  # read write open mmap execve wait exit
    assert [call(number) for number in (41, 42, 49, 101, 165, 272, 321, 425, 29, 240, 248, 319)] == [no] * 12
    assert [call(number) for number in (90, 91, 268, 92, 280, 188)] == ["nothing"] * 6
    assert (call(0, arch=ARM), call(0x40000000 + 1), call(470)) == (
        KILL,
        "refused ENOSYS",
        "refused ENOSYS",
    )
    assert (call(56, 17), call(56, 17 | 0x10000000), call(435), call(57), call(58)) == (
        NOTIFY, no, "refused ENOSYS", NOTIFY, NOTIFY,
    )  # fmt: skip
    assert (call(53, 1), call(53, 2)) == (ALLOW, no)
    anywhere = (0x1000, 1 << 32, (1 << 32) + 1)  # an address whose lower half is nought is one, too
    assert [call(44, 3, 0, 0, 0, address) for address in (0, *anywhere)] == [ALLOW, no, no, no]
    assert [call(number) for number in (46, 307, 253, 294, 457, 458)] == [no] * 6
    assert (call(285), call(9, 0, 0, 0, 0x22), call(9, 0, 0, 0, 0x40022)) == (
        "refused ENOTSUP", ALLOW, "refused ENOMEM",
    )  # fmt: skip
    assert (call(72, 3, 1024), call(72, 3, 1026), call(162), call(306)) == (no, no, "nothing", "nothing")
    assert (call(302, 0), call(302, 7), call(141, 0, 0), call(141, 0, 7), call(141, 1, 0)) == (ALLOW, no, ALLOW, no, no)
    assert (call(157, 15), call(157, 1), call(157, 4), call(72, 3, 2), call(72, 3, 8), call(16, 0, 0x5412)) == (
        ALLOW, no, no, ALLOW, no, no,
    )  # fmt: skip
    assert [call(112), call(109)] == ["nothing"] * 2
    assert [call(62, pid, 9) for pid in (0, 1 << 31, (1 << 32) - 1)] == [no] * 3  # a group of processes
    assert (call(62, 7), call(62, 7, signal_pid=7), call(62, 8, signal_pid=7), call(200, 7, signal_pid=7)) == (
        ALLOW,
        ALLOW,
        no,
        no,
    )
    assert (call(76), call(76, allow_truncate=False)) == (ALLOW, no)


@pytest.mark.parametrize(("number", "before"), [(2, ()), (257, (0,))], ids=["open", "openat"])
def test_a_file_that_is_opened_to_be_read_is_not_cut(number: int, before: tuple[int, ...]) -> None:
    """Landlock before its third version lets a file be cut that may only be read (seen with its rights)."""
    for mode, result in ((0, "refused EPERM"), (1, ALLOW), (2, ALLOW), (3, "refused EPERM")):
        words = (*before, 0, mode | 0o100)
        cutting = (*before, 0, mode | 0o1100)
        assert call(number, *words, allow_truncate=False) == ALLOW
        assert call(number, *cutting, allow_truncate=False) == result
        assert call(number, *cutting) == ALLOW
    assert (call(437), call(437, allow_truncate=False)) == (ALLOW, "refused ENOSYS")


# ---------------------------------------------------------------------------------------------------------------- wire

KEYS = st.text() | st.integers() | st.tuples(st.text())
NUMBERS = st.integers() | st.floats(allow_nan=False) | st.decimals(allow_nan=False) | st.fractions()
SETS = st.sets(st.integers() | st.text()) | st.frozensets(st.text())
PLAIN = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text() | st.binary() | st.complex_numbers(allow_nan=False) | SETS,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner),
    max_leaves=20,
)


@given(PLAIN)
def test_values_come_back_as_they_were(value: Any) -> None:
    found = wire.decode_value(wire.encode_value(value, pytest.fail), pytest.fail)
    assert (found, type(found)) == (value, type(value))


class Liar(int):
    """A number that says it equals everything."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


def test_a_liar_comes_back_as_what_it_is_made_of() -> None:
    found = wire.decode_value(wire.encode_value([Liar(3)], pytest.fail), pytest.fail)
    assert (found == [4], type(found[0])) == (False, int)


@pytest.mark.parametrize(
    "sent", [{"k": "int", "v": 3}, {"k": "set", "v": [[]]}, {"k": "dict", "v": [1]}, {"k": "range", "v": "x"},
             {"k": "Decimal", "v": "x"}, {"k": "Fraction", "v": "1/0"}, {"k": "bytes", "v": "zz"}, {"k": []},
             {"k": "complex", "v": 1}],
)  # fmt: skip
def test_what_is_no_value_is_refused(sent: Any) -> None:
    with pytest.raises(wire.WireError):
        wire.decode_value(sent, pytest.fail)


def test_kinds_that_are_whole() -> None:
    assert wire.decode_value({"k": "Decimal", "v": "1.10"}, pytest.fail) == Decimal("1.10")
    assert wire.decode_value({"k": "Fraction", "v": "1/3"}, pytest.fail) == Fraction(1, 3)
