"""What `.env` files say: the same as a shell reads, bad lines named, values never shown."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from fakes import load_cases
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlbox.secrets.env_file import ParsedEnvFile, parse_env_with_problems

CASES = load_cases("secrets", "test_env_file")


@pytest.mark.parametrize(("text", "values"), CASES["values"])
def test_values(text: str, values: dict[str, str]) -> None:
    assert parse_env_with_problems(text.encode()) == ParsedEnvFile(values=values)


@pytest.mark.parametrize(
    ("data", "problems"),
    [
        (b"A=1\nplanted-secret\nB=2", ["line 2: no '=' in it: write NAME=value"]),
        (b"export A", ["line 1: no '=' in it: write NAME=value"]),
        (b"2A=planted", ["line 1: the text before '=' is not a name: letters, digits and _, no digit first"]),
        (b"=planted", ["line 1: the text before '=' is not a name: letters, digits and _, no digit first"]),
        (b"A B=planted", ["line 1: the text before '=' is not a name: letters, digits and _, no digit first"]),
        (b"A='planted\nB=2", ["line 1: the quote that begins the value of A is never closed"]),
        (b'A="planted\\"\nB=2', ["line 1: the quote that begins the value of A is never closed"]),
        (b"A='planted' too", ["line 1: text follows the closing quote of A: put quotes around the complete value"]),
        (b"A=plan'ted", ["line 1: a quote inside the value of A: put quotes around the complete value"]),
        (
            b"export A=planted B=2",
            ["line 1: two assignments on one line: part them, or quote the value"],
        ),
        (b"A=planted\n\nA=other", ["line 3: A has another value on line 1 already"]),
        (b"A='x\ny'\nB=1\nnope", ["line 4: no '=' in it: write NAME=value"]),
        (b"A=a\0b", ["line 1: the value of A holds a NUL character, which no environment can"]),
        (b"A=1\nB=\xff", ["line 2: not UTF-8 text"]),
        ("A=1".encode("utf-16"), ["line 1: not UTF-8 text (it looks like UTF-16)"]),
        (b"nope\nA=1\nno 'pe", ["line 1: no '=' in it: write NAME=value", "line 3: no '=' in it: write NAME=value"]),
    ],
)
def test_bad_lines_are_named_without_a_value(data: bytes, problems: list[str]) -> None:
    parsed = parse_env_with_problems(data)
    assert list(parsed.problems) == problems
    assert "planted" not in "".join(parsed.problems)


def test_good_lines_beside_bad_ones_are_read() -> None:
    assert parse_env_with_problems(b"A=1\nnope\nB='x\nC=3").values == {"A": "1", "C": "3"}


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    parsed = parse_env_with_problems(data)
    assert all(name and "\0" not in value for name, value in parsed.values.items())


PLAIN = st.text("abcXYZ019_./:+,@%=-", min_size=0, max_size=12).filter(lambda text: not text.startswith("~"))
TEXT = st.text(st.characters(codec="ascii", exclude_characters="\0\r"), max_size=16)
SINGLE = TEXT.map(lambda text: "'" + text.replace("'", "") + "'")
DOUBLE = TEXT.map(lambda text: '"' + "".join(f"\\{c}" if c in '"\\$`' else c for c in text.replace("\\", "")) + '"')
VALUE = st.one_of(PLAIN, SINGLE, DOUBLE, st.tuples(SINGLE, DOUBLE).map("".join))
BEFORE = st.sampled_from(["", "  ", "export ", "\texport  "])
AFTER = st.sampled_from(["", " ", ' # it\'s a "comment"', "\t"])
LINE = st.tuples(BEFORE, VALUE, AFTER)


@pytest.mark.allow("processes")
@settings(max_examples=25, deadline=None)
@example(lines=[("export ", "'a b'", " # c"), ("", '"x \\" y"', "")])
@given(lines=st.lists(LINE, min_size=1, max_size=12))
def test_what_a_shell_reads(tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[str, str, str]]) -> None:
    """Where a shell and this reader promise the same, they read the same."""
    file = tmp_path_factory.getbasetemp() / "shell.env"
    text = "".join(f"{before}V{number}={value}{after}\n" for number, (before, value, after) in enumerate(lines))
    file.write_bytes(text.encode())
    read = shell_reading(file, len(lines))
    assert parse_env_with_problems(text.encode()) == ParsedEnvFile(values=read)


def shell_reading(file: Path, count: int) -> dict[str, str]:
    words = " ".join(f'"$V{number}"' for number in range(count))
    command = f'. "$1" && printf "%s\\0" {words}'
    path = {"PATH": "/bin:/usr/bin"}
    done = subprocess.run(["sh", "-c", command, "sh", str(file)], capture_output=True, check=True, env=path)
    return {f"V{number}": value for number, value in enumerate(done.stdout.decode().split("\0")[:-1])}
