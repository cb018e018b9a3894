"""The same scores, problem by problem: alone, beside a load of four times the cores, on one core and on two."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playbox import Player, adding, export, judge_argv, playing, write_rows

from rlbox.cli.root import run_root

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
RUN_S = 3
KINDS = {
    "right": "def add(x):\n    return plus(x, {n})",
    "wrong": "def add(x):\n    return x - 1 - {n}",
    "raises": "def add(x):\n    raise ValueError(x)",
    "endless": "def add(x):\n    while True:\n        pass",
    "half of the time": (
        "import time\ndef add(x):\n    end = time.process_time() + {half}\n"
        "    while time.process_time() < end:\n        pass\n    return plus(x, {n})"
    ),
    "sleeps a while": "import time\ndef add(x):\n    time.sleep({half})\n    return plus(x, {n})",
    "eats memory": "def add(x):\n    return len(bytearray(1 << 40))",
    "never ends a recursion": "def add(x):\n    return add(x)",
    "syntax": "def add(x):\n    return (",
    "nothing": "",
}
"""Answers whose verdict a clock could change, and others; the tests call each twice."""
PROBLEMS = 4 * len(KINDS)


def played(ask: str, number: int) -> str:
    """Answer each problem with the program of its kind."""
    n = int(re.search(r"plus (\d+)\.", ask)[1])  # type: ignore[index]
    code = list(KINDS.values())[n % len(KINDS)].replace("{n}", str(n)).replace("{half}", str(RUN_S / 5))
    return f"```python\n{code}\n```" if code else "I do not know."


@contextlib.contextmanager
def sandbox(folder: Path, cores: int) -> Iterator[str]:
    """Yield the address of a sandbox that has so many cores; 0: all of them."""
    words = ["taskset", "-c", ",".join(map(str, sorted(os.sched_getaffinity(0))[:cores]))] if cores else []
    words += [sys.executable, "-m", "rlbox.sandbox", "serve", "--port", "0", "--scratch", str(folder)]
    with subprocess.Popen([*words, "--cpu-s", f"{RUN_S}"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        *_, last = server.stdout.readline(), server.stdout.readline()
        yield f"http://127.0.0.1:{int(last.rpartition(':')[2])}"
        server.terminate()


@contextlib.contextmanager
def burning(count: int) -> Iterator[None]:
    """Keep so many processes busy."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in loops:
            one.send_signal(signal.SIGKILL)
            one.wait()


def verdicts(site: Path, name: str, cores: int, load: int) -> dict[str, tuple[str, int, int]]:
    """Return outcome, runs and right runs of each problem."""
    scratch = site / f"scratch-{name}"
    scratch.mkdir()
    with sandbox(scratch, cores) as url, burning(load), playing(Player(played)) as player:
        more = ("--at-once", "16", "--out", str(site / name))
        assert run_root(judge_argv(site, site / "export", player.url, url, *more)) == 0
    rows: list[dict[str, Any]] = [json.loads(path.read_text()) for path in (site / name).rglob("per_problem/*/*.json")]
    return {row["problem"]: (row["outcome"], row["runs"], row["passed"]) for row in rows}


def test_no_verdict_depends_on_the_machine(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(site / "problems/adding.jsonl", adding(PROBLEMS))
    limits = f"[limits]\nrun_s = {RUN_S}\n"
    (site / "suites/adding.toml").write_text(f'title = "adding"\nfile = "adding.jsonl"\n{limits}')
    export(site / "export")
    cores = os.cpu_count() or 1
    alone = verdicts(site, "alone", 0, 0)
    assert len(alone) == PROBLEMS
    by_kind = {kind: {alone[f"Add/{n}"][0] for n in range(at, PROBLEMS, len(KINDS))} for at, kind in enumerate(KINDS)}
    assert by_kind["right"] == by_kind["half of the time"] == by_kind["sleeps a while"] == {"accepted"}
    assert by_kind["endless"] == {"timeout"}
    assert by_kind["nothing"] == {"no-code"}
    for name, held, load in (("loaded", 0, 4 * cores), ("one-core", 1, 0), ("two-cores", 2, 0), ("one-loaded", 1, 4)):
        assert verdicts(site, name, held, load) == alone, name
    with capsys.disabled():
        print(f"\n{PROBLEMS} problems alike on {cores} cores, beside {4 * cores} loops, on 1 and on 2 cores, and on 1 "
              f"beside 4 loops: {dict(Counter(outcome for outcome, *_ in alone.values()))}")  # fmt: skip
