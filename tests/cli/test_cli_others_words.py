"""What others wrote comes out of every view as they wrote it, whatever the language, and so does a command."""

from __future__ import annotations

import dataclasses
import html
import json
from pathlib import Path

import pytest
from fakes import ON_IMAGE, Folder, Rlbox
from otherwords import other_words

from rlbox.causes.cause import Cause
from rlbox.job.plan import load_run_plan
from rlbox.messages.language import PSEUDO
from rlbox.record.act.state import change_stage, new_run_state, write_run_state
from rlbox.secrets.masks import Masks

pytestmark = [pytest.mark.usefixtures("no_engine"), pytest.mark.allow("processes")]
LANGUAGES = ("zh", PSEUDO)
SEEDS = range(6)


@dataclasses.dataclass(frozen=True)
class Words:
    """What a user wrote, and programs of theirs."""

    target: str
    job: str
    stage: str
    argument: str
    parameter: str
    origin: str
    line: str
    why: str
    remedy: str
    phase: str


@pytest.fixture(params=SEEDS)
def words(request: pytest.FixtureRequest) -> Words:
    names = [field.name for field in dataclasses.fields(Words)]
    return Words(**dict(zip(names, other_words(request.param, len(names)), strict=True)))


@pytest.fixture
def own(folder: Folder, words: Words) -> Folder:
    """A project whose every text is somebody's own."""
    folder.target("mine", ON_IMAGE.replace("smallest target on an image", words.target.replace('"', "'")))
    folder.lock("mine")
    folder.job(
        "own",
        f"""
title = {json.dumps(words.job)}
target = "mine"
[params]
memory = {{ default = "disk", help = {json.dumps(words.parameter)} }}
[[stages]]
name = "running"
title = {json.dumps(words.stage)}
command = ["sh", "-c", {json.dumps(words.argument)}, "{{param.memory}}"]
[stages.gate]
forbid = [{{ pattern = "out of memory", why = {json.dumps(words.why)} }}]
""",
    )
    return folder


@pytest.fixture(params=LANGUAGES)
def language(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RLBOX_LANG", request.param)
    return str(request.param)


def recorded(rlbox: Rlbox, words: Words, disk: Path) -> None:
    """Leave a run that failed on the data disk, with a line, a phase and a remedy of others."""
    plan = rlbox("run", "own", "--dry-run", "--json", "--data", str(disk)).data["plan"]
    plan |= {"run_id": "own-1", "place": "here"}
    folder = disk / "runs/own-1"
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps(plan))
    state = new_run_state(load_run_plan(plan), 7)
    cause = Cause(
        kind="forbid",
        what="stage running was stopped",
        line=words.line,
        next_step=words.remedy,
        known="mine",
        phase=words.phase,
    )
    state = change_stage(state, "running", state="failed", cause=cause)
    write_run_state(folder, dataclasses.replace(state, state="failed", exit_code=1), Masks({}))


def test_a_dry_run(rlbox: Rlbox, own: Folder, words: Words, language: str) -> None:
    said = rlbox("run", "own", "--dry-run")
    assert f": {words.stage}\n" in said.out or f"：{words.stage}\n" in said.out
    assert words.argument.replace("'", "'\"'\"'") in said.out
    assert "memory = disk" in said.out
    assert "out of memory" in said.out


def test_the_list_of_targets_and_jobs(rlbox: Rlbox, own: Folder, words: Words, language: str) -> None:
    lines = rlbox("targets").out.splitlines()
    assert any(line.split()[1] == "mine" and line.endswith(words.target.replace('"', "'")) for line in lines)
    assert any(line.split()[1] == "own" and line.endswith(words.job) for line in lines)


def test_a_run_that_failed(rlbox: Rlbox, own: Folder, words: Words, language: str, tmp_path: Path) -> None:
    recorded(rlbox, words, tmp_path / "disk")
    said = rlbox("attach", "own-1", "--data", str(tmp_path / "disk"))
    assert f"  {words.line}\n" in said.err or f"：{words.line}\n" in said.err
    assert words.remedy in said.err
    assert rlbox("runs", "--data", str(tmp_path / "disk")).out.splitlines()[1].startswith("own-1  ")
    page = ("--lang", "zh") if language == PSEUDO else ()
    assert (
        rlbox("report", "own-1", "--data", str(tmp_path / "disk"), "--out", str(tmp_path / "x.html"), *page).code == 0
    )
    shown = html.unescape((tmp_path / "x.html").read_text())
    for text in (words.line, words.remedy, words.stage, words.phase):
        assert text in shown
