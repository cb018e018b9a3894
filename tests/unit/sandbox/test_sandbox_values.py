"""What is asked, what a request may take, what is answered, and what the filter of system calls says."""

from __future__ import annotations

import errno
import importlib.util
import math
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
from rlbox.sandbox.answer import answer, verdict
from rlbox.sandbox.isolation import IsolationLevel
from rlbox.sandbox.limits import ProgramLimits
from rlbox.sandbox.request import InvalidRequestError, read_request


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
    own = ProgramLimits(cpu_s=30, memory_mb=1024)
    assert own.lowered(asked, asked, asked) == own


def test_a_request_lowers() -> None:
    lowered = ProgramLimits().lowered(1.5, 2, 64.9)
    assert (lowered.cpu_s, lowered.compile_s, lowered.memory_mb) == (1.5, 2, 64)
    assert ProgramLimits.from_json(lowered.as_json()) == lowered
    assert ProgramLimits().lowered(None, None, 1e-9).memory_mb == 1


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
        ({"code": "", "files": {"../a": ""}}, "'../a' is no path below the program's folder"),
        ({"code": "", "files": {"/a": ""}}, "'/a' is no path below the program's folder"),
        ({"code": "", "files": {"a": "%"}}, "files: 'a' is no base64"),
        ({"code": "", "files": {"a": 3}}, "files: 'a' is no base64"),
        ({"code": "", "fetch_files": ["a/../b"]}, "'a/../b' is no path below the program's folder"),
        ({"code": "", "fetch_files": "a"}, "fetch_files: no list of names"),
        ({"code": "", "fetch_files": ["a"] * 1001}, "fetch_files: more than 1000"),
        ({"code": "", "files": {str(number): "" for number in range(1001)}}, "files: more than 1000"),
        ({"code": "x" * ((8 << 20) + 1)}, "code: longer than 8388608 characters"),
    ],
)
def test_requests_that_are_none(asked: Any, says: str | None) -> None:
    if says is None:
        assert read_request(asked).files == {}
        return
    with pytest.raises(InvalidRequestError) as caught:
        read_request(asked)
    assert str(caught.value) == says


def test_a_check_has_tests_and_names() -> None:
    asked = {"code": "c", "tests": "t", "before": "b", "names": ["f"]}
    found = read_request(asked, checks=True).check
    assert found
    assert found.as_json() == {"check": "t", "before": "b", "names": ("f",)}
    assert read_request(asked).check is None
    with pytest.raises(InvalidRequestError, match="tests: no text"):
        read_request({"code": "c"}, checks=True)
    with pytest.raises(InvalidRequestError, match="names: 'a b' is no name"):
        read_request({**asked, "names": ["a b"]}, checks=True)


# -------------------------------------------------------------------------------------------------------------- answer


def told(**more: Any) -> dict[str, Any]:
    program = {"return_code": 0, "stdout": "o", "stderr": ""}
    known = {"limit": "", "cpu_s": 0.1, "wall_s": 0.2, "memory_mb": 3, "alive": False, "files": {}, "word": ""}
    return {**known, "layers": ["seccomp"], "missing": {}, "programs": [program, program], **more}


@pytest.mark.parametrize(
    ("limit", "word", "found"),
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
def test_accepted_is_the_checkers_word_alone(limit: str, word: str, found: str) -> None:
    """A program under test that ended well, as here, says nothing."""
    assert verdict(told(limit=limit, word=word))["verdict"] == found


def test_what_could_not_run_is_no_verdict() -> None:
    broken = {"limit": "start", "message": "no wall"}
    assert answer(broken)["status"] == verdict(broken)["status"] == "SandboxError"
    assert answer(told(limit="cancelled"))["status"] == "SandboxError"


def test_what_a_wall_is() -> None:
    for layers, contained in (
        (("namespaces", "landlock", "seccomp", "forks"), True),
        (("landlock", "seccomp"), True),
        (("namespaces", "seccomp"), True),
        (("namespaces", "landlock"), False),
        (("seccomp", "forks"), False),
        ((), False),
    ):
        strength = IsolationLevel.of(layers, {})
        assert (strength.contained, strength.name) == (contained, "+".join(layers) if contained else "limits only")


# -------------------------------------------------------------------------------------------------------------- filter

ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, NOTIFY, KILL, REFUSED = "allow", "notify", "kill", "refused"


def filtered(machine: str, number: int, *args: int, arch: int = 0, **how: Any) -> str:
    """Run both filters as the kernel does: what the stricter one says counts."""
    main = _carried_out(seccomp.build_filter(machine, **how), machine, number, args, arch)
    births = _carried_out(seccomp.build_fork_filter(machine), machine, number, args, arch)
    return births if main == ALLOW else main


def _carried_out(program: bytes, machine: str, number: int, args: tuple[int, ...], arch: int) -> str:
    code = list(struct.iter_unpack("=HBBI", program))
    data = struct.pack("=IIQ6Q", number, arch or ARCH[machine], 0, *(args + (0,) * 6)[:6])
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


def test_the_filter_on_x86() -> None:
    def call(*words: int, **how: Any) -> str:
        return filtered("x86_64", *words, **how)

    no = "refused EPERM"
    assert [call(number) for number in (0, 1, 2, 9, 59, 61, 231)] == [
        ALLOW
    ] * 7  # read write open mmap execve wait exit
    assert [call(number) for number in (41, 42, 49, 101, 165, 272, 321, 425, 29, 240, 248, 319)] == [no] * 12
    assert [call(number) for number in (90, 91, 268, 92, 280, 188)] == ["nothing"] * 6
    assert (call(0, arch=ARCH["aarch64"]), call(0x40000000 + 1), call(470)) == (
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
    assert (call(62, 7), call(62, 7, pid=7), call(62, 8, pid=7), call(200, 7, pid=7)) == (ALLOW, ALLOW, no, no)
    assert (call(76), call(76, truncate=False)) == (ALLOW, no)


@pytest.mark.parametrize(("number", "before"), [(2, ()), (257, (0,))], ids=["open", "openat"])
def test_a_file_that_is_opened_to_be_read_is_not_cut(number: int, before: tuple[int, ...]) -> None:
    """Landlock before its third version lets a file be cut that may only be read (seen with its rights)."""
    for mode, result in ((0, "refused EPERM"), (1, ALLOW), (2, ALLOW), (3, "refused EPERM")):
        words = (*before, 0, mode | 0o100)
        cutting = (*before, 0, mode | 0o1100)
        assert filtered("x86_64", number, *words, truncate=False) == ALLOW
        assert filtered("x86_64", number, *cutting, truncate=False) == result
        assert filtered("x86_64", number, *cutting) == ALLOW
    assert (filtered("x86_64", 437), filtered("x86_64", 437, truncate=False)) == (ALLOW, "refused ENOSYS")


def test_the_filter_on_arm() -> None:
    def call(*words: int) -> str:
        return filtered("aarch64", *words)

    assert (call(63), call(198), call(117), call(220, 17), call(53), call(0)) == (
        ALLOW, "refused EPERM", "refused EPERM", NOTIFY, "nothing", ALLOW,
    )  # fmt: skip
    assert (seccomp.is_supported_machine("aarch64"), seccomp.is_supported_machine("riscv64")) == (True, False)


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
    found = wire.decode(wire.encode(value, pytest.fail), pytest.fail)
    assert (found, type(found)) == (value, type(value))


class Liar(int):
    """A number that says it equals everything."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


def test_a_liar_comes_back_as_what_it_is_made_of() -> None:
    found = wire.decode(wire.encode([Liar(3)], pytest.fail), pytest.fail)
    assert (found == [4], type(found[0])) == (False, int)


@pytest.mark.parametrize(
    "sent", [{"k": "int", "v": 3}, {"k": "set", "v": [[]]}, {"k": "dict", "v": [1]}, {"k": "range", "v": "x"},
             {"k": "Decimal", "v": "x"}, {"k": "Fraction", "v": "1/0"}, {"k": "bytes", "v": "zz"}, {"k": []},
             {"k": "complex", "v": 1}],
)  # fmt: skip
def test_what_is_no_value_is_refused(sent: Any) -> None:
    with pytest.raises(wire.WireError):
        wire.decode(sent, pytest.fail)


def test_kinds_that_are_whole() -> None:
    assert wire.decode({"k": "Decimal", "v": "1.10"}, pytest.fail) == Decimal("1.10")
    assert wire.decode({"k": "Fraction", "v": "1/3"}, pytest.fail) == Fraction(1, 3)
