"""Planted hangs, each a real process, are found in time with their phase, and it is said what they wait for."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from supervised import Bench, free_port, python, service

from rlbox.config.toml_files import load_toml
from rlbox.job.job import Phase

TABLE: dict[str, dict[str, Any]] = load_toml(Path(__file__).parents[1] / "cases" / "hang.toml")
HANGS = [name for name, case in TABLE.items() if "passes" not in case]
SECRET = "correct-horse-battery-staple"


@dataclass
class Planted:
    """A case, and the run of it."""

    case: dict[str, Any]
    bench: Bench
    code: int = -1

    @property
    def evidence(self) -> Path:
        return self.bench.run_dir / self.bench.stages[0].directory / "evidence"

    @property
    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.evidence / "hang.json").read_text())
        return found


def planted(name: str, folder: Path) -> Planted:
    case, bench, script, port = TABLE[name], Bench(folder / name), folder / f"{name}.py", free_port()
    script.write_text(case["script"])
    code, start_s = case.get("service", ""), case.get("start_s", 30.0)
    services = (service("server", port, python(code, str(port)), start_s=start_s),) if code else ()
    ranks = ("env", f"RANK={case['rank']}") if "rank" in case else ()
    bench.environment = {"PLANTED_TOKEN": SECRET}
    bench.stage(
        "train",
        (
            *ranks,
            sys.executable,
            str(script),
            *([str(port)] if services else []),
            *([SECRET] * case.get("secret", False)),
        ),
        silence_s=case["silence_s"],
        total_s=case.get("total_s", 60.0),
        services=services,
        phases=tuple(Phase.model_validate(phase) for phase in case.get("phases", ())),
    )
    return Planted(case, bench)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Planted]]:
    """All cases at once: each waits for its limit, and only one of them needs a core."""
    folder = tmp_path_factory.mktemp("hangs")
    found = {name: planted(name, folder) for name in TABLE}
    try:
        for one in found.values():
            one.bench.start()
        for one in found.values():
            one.code = one.bench.finish()[0]
        yield found
    finally:
        for one in found.values():
            if one.bench.supervisor and one.bench.supervisor.poll() is None:
                one.bench.supervisor.send_signal(signal.SIGKILL)
            for pid in one.bench.marked():
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def run(runs: dict[str, Planted], request: pytest.FixtureRequest) -> Planted:
    return runs[request.param]


# a rank that spins needs a core of its own: beside busy processes it is reported as starved
NEEDS_A_CORE = {"spinning-collective"}
every_hang = pytest.mark.parametrize(
    "run",
    [pytest.param(name, marks=[pytest.mark.slow] if name in NEEDS_A_CORE else []) for name in HANGS],
    indirect=True,
)


@every_hang
def test_it_is_found_in_time_with_its_phase(run: Planted) -> None:
    limit_s = run.case.get("limit_s", run.case["silence_s"])
    cause, kind = run.bench.cause(), run.case.get("kind", "silence")
    assert (run.code, cause.kind, cause.phase) == (1 if kind == "service" else 7, kind, run.case["phase"])
    if kind == "silence":
        assert run.facts["limit_s"] == limit_s
        assert run.facts["silent_s"] >= limit_s
        assert run.bench.last("train").phase == run.case["phase"]


@every_hang
def test_it_says_what_it_waits_for(run: Planted) -> None:
    first, *others = run.facts["processes"]
    rank, _, waits = run.case["first"].rpartition("|")
    assert re.search(waits, first["waits"]), first
    assert rank in ("", f"rank {first['rank']}")
    assert first["waits"] in run.bench.cause().waits
    rank, _, waits = run.case.get("also", "").rpartition("|")
    assert not waits or [p for p in others if re.search(waits, p["waits"]) and rank in ("", f"rank {p['rank']}")], (
        others
    )


@every_hang
def test_the_page_names_the_remedy(run: Planted) -> None:
    cause = run.bench.cause()
    page = (run.bench.run_dir / cause.report).read_text()
    assert run.case.get("remedy", "") in cause.next_step
    assert run.case.get("remedy", "") in page
    assert cause.waits.partition(") ")[2].partition("; pid")[0] in page


@every_hang
def test_stacks_were_taken_before_it_was_stopped(run: Planted) -> None:
    for process in run.facts["processes"]:
        text = (run.evidence / "stacks" / f"{process['pid']}.txt").read_text()
        assert process["command"] in text
        assert process["stack"] or process["trouble"]
    assert "<module>" in text


@every_hang
def test_the_phase_is_an_event(run: Planted) -> None:
    events = [event["phase"] for event in run.bench.events() if event["event"] == "phase"]
    shown = run.case["phase"] if run.case.get("kind") != "ready" else ""
    assert events == ([shown] if shown else [])


@every_hang
def test_no_secret_is_in_what_was_kept(run: Planted) -> None:
    kept = [path for path in run.evidence.rglob("*") if path.is_file()]
    assert [path for path in kept if SECRET in path.read_text(errors="replace")] == []


def test_a_slow_load_with_steady_reading_is_none(runs: dict[str, Planted]) -> None:
    run = runs["slow-load"]
    assert (run.code, run.bench.states()) == (0, ["passed"])
    assert [event["event"] for event in run.bench.events() if event["event"] == "hang"] == []
    assert run.bench.last("train").phase == "load"
