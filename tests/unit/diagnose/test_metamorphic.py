"""What changes nothing of an answer: colours, prefixes, stamps, line ends, other names, a longer beginning."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from fakes import CHECKOUT
from test_cases import cases

from rlbox.config.project import Project
from rlbox.diagnose.diagnosis import LogStats, diagnose_events
from rlbox.diagnose.event_reader import EventReader, LogReader
from rlbox.diagnose.signatures import SignatureSet, load_signatures

LEAST = 0.98
CATALOGUE = load_signatures(Project(folder=CHECKOUT).own_pack_and_shipped_fix_files())
KNOWN = [(cause, log) for name in ("known", "unknown", "healthy") for cause, _, log in cases(name)]


def each_line(text: str, before: str, behind: str = "") -> str:
    return "\n".join(f"{before}{line}{behind}" if line.strip() else line for line in text.split("\n"))


CHANGES: dict[str, Callable[[str], str]] = {
    "colours": lambda log: each_line(log, "\x1b[36m", "\x1b[0m"),
    "line ends of Windows": lambda log: log.replace("\n", "\r\n"),
    "an actor of Ray": lambda log: each_line(log, "(Actor pid=4711) "),
    "srun's labels": lambda log: each_line(log, "3: "),
    "a container's stamps": lambda log: each_line(log, "2026-01-02T03:04:05.678901Z "),
    "a longer beginning": lambda log: "reading the configuration\n" * 99 + log,
    "other paths": lambda log: re.sub(r"/(?:opt|usr|tmp|data|srv|app|workspace)/", "/elsewhere/", log),
    "other processes": lambda log: re.sub(r"pid=(\d+)", lambda found: f"pid={int(found[1]) + 1000}", log),
    "other hosts": lambda log: re.sub(r"\b10\.0\.0\.(\d+)", r"192.168.7.\1", log),
}


def answer(log: str) -> dict[str, Any]:
    return read(log.encode("utf-8", "surrogateescape"))


def read(data: bytes, at: int = 1 << 20, catalogue: SignatureSet = CATALOGUE) -> dict[str, Any]:
    """Return the answer to bytes that come in pieces."""
    reader = LogReader(EventReader(catalogue))
    for begin in range(0, len(data), at):
        reader.feed(data[begin : begin + at])
    facts = LogStats(name="a.log", lines=reader.lines, bytes=len(data))
    return diagnose_events([reader.close()], [facts], catalogue).as_json()


@pytest.fixture(scope="module")
def plain() -> list[tuple[str, dict[str, Any]]]:
    return [(log, answer(log)) for _, log in KNOWN]


@pytest.mark.parametrize("name", CHANGES)
def test_the_answer_stays(name: str, plain: list[tuple[str, dict[str, Any]]]) -> None:
    change, other = CHANGES[name], []
    for log, before in plain:
        after = answer(change(log))
        said = (before["first_fatal"] or {}).get("text", "")
        said = change(said) if name.startswith("other") else said
        right = after["cause"] == before["cause"] and said in (after["first_fatal"] or {}).get("text", "")
        other += [] if right else [(before["cause"], said, after["cause"], after["first_fatal"])]
    assert len(other) <= (1 - LEAST) * len(plain), other


def test_a_log_without_its_end_says_so_or_the_same(plain: list[tuple[str, dict[str, Any]]]) -> None:
    for log, before in plain:
        if first := before["first_fatal"]:
            cut = "\n".join(log.split("\n")[: first["line"]])
            assert answer(cut)["first_fatal"]["line"] <= first["line"]


def test_pieces_of_any_size_give_the_same() -> None:
    for _, log in KNOWN[:40]:
        assert len({str(read(log.encode(), at=size)["first_fatal"]) for size in (7, 64, 4096)}) == 1
