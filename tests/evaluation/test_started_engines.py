"""`rlbox eval judge` of several checkpoints by an engine that it starts: how often, and that results are the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from playbox import Player, export, playing

SOLVED = {100: 4, 200: 9, 300: 12}


class Site:
    """Three exports of verl's form, and an interpreter that plays vLLM."""

    def __init__(self, folder: Path, sandbox: str) -> None:
        self.folder, self.sandbox = folder, sandbox
        self.starts, self.asked = folder / "starts", folder / "asked"
        self.engine = folder / "engine"
        program = Path(__file__).parent / "programs/played_engine.py"
        self.engine.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
        self.engine.chmod(0o755)
        for step, solved in SOLVED.items():
            export(folder / f"global_step_{step}/huggingface", seed=solved)

    def judge(self, out: str, *more: str, steps: tuple[int, ...] = tuple(SOLVED)) -> dict[str, Any]:
        self.starts.write_text("")
        self.asked.write_text("")
        exports = [str(self.folder / f"global_step_{step}") for step in steps]
        words = ["eval", "judge", *exports, "--project", str(self.folder), "--suite", "adding", "--json"]
        words += ["--problems", str(self.folder / "problems"), "--engine", str(self.engine), "--port", str(free_port())]
        words += ["--sandbox-url", self.sandbox, "--at-once", "4", "--out", str(self.folder / out), *more]
        told = {"PLAYED_ENGINE_LOG": str(self.asked), "PLAYED_ENGINE_STARTS": str(self.starts)}
        env = {**os.environ, **told, "XDG_CACHE_HOME": str(self.folder / "cache")}
        done = subprocess.run([sys.executable, "-m", "rlbox", *words], env=env, capture_output=True, text=True)
        found: dict[str, Any] = json.loads(done.stdout)
        return {**found, "code": done.returncode, "said": done.stderr}

    def started(self) -> list[str]:
        return sorted(self.starts.read_text().split())

    def summaries(self, out: str) -> dict[str, bytes]:
        return {path.parent.name: path.read_bytes() for path in (self.folder / out).glob("*/summary.json")}

    def servers(self, out: str) -> list[int]:
        return [json.loads(path.read_text())["servers"] for path in sorted((self.folder / out).glob("*/run_info.json"))]


def free_port() -> int:
    with playing(Player(lambda ask, number: "")) as player:
        return int(player.url.rpartition(":")[2])


@pytest.fixture
def engines(site: Path, sandbox_url: str) -> Site:
    return Site(site, sandbox_url)


def test_several_exports_have_an_engine_each_and_the_results_of_one(engines: Site) -> None:
    for step in SOLVED:
        assert engines.judge("alone", steps=(step,))["code"] == 0
    said = engines.judge("all")
    assert said["code"] == 0, said["said"]
    assert engines.started() == [f"global_step_{step}" for step in SOLVED]
    assert [row["name"] for row in said["results"]] == [f"step_{step}" for step in SOLVED]
    assert len(engines.summaries("alone")) == 3
    assert engines.summaries("alone") == engines.summaries("all")


def test_two_engines_share_the_problems(engines: Site) -> None:
    assert engines.judge("one")["code"] == 0
    said = engines.judge("two", "--servers", "2")
    assert said["code"] == 0, said["said"]
    assert (engines.started(), engines.servers("two")) == (
        sorted([f"global_step_{step}" for step in SOLVED] * 2),
        [2, 2, 2],
    )
    assert engines.summaries("one") == engines.summaries("two")
    assert set(Counter(engines.asked.read_text().splitlines()).values()) == {1}
    assert {path.name for path in (engines.folder / "two/step_100").glob("*.log")} == {"server.log", "server-2.log"}


def test_one_that_is_no_export_does_not_stop_the_others(engines: Site) -> None:
    (engines.folder / "global_step_200/huggingface/model.safetensors").unlink()
    said = engines.judge("out")
    assert said["code"] == 1
    assert [row["name"] for row in said["results"]] == ["step_100", "step_300"]
    assert "holds no weights" in said["failed"]["step_200"]
