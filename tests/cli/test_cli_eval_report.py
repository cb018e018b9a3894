"""`rlbox eval report`: the page of scores and problems, of what was really judged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import test_cli_eval as judging
from fakes import Rlbox, tree
from following import Follow
from reportbox import write_run

pytestmark = pytest.mark.allow("processes", "sockets")
sandbox_url, site, results, judged = judging.sandbox_url, judging.site, judging.results, judging.judged


def test_the_page_is_written(judged: Path, rlbox: Rlbox) -> None:
    said = rlbox("eval", "report", "eval", "--open", "no", "--json")
    assert said.code == 0, said.err
    assert (said.data["results"], said.data["problems"]) == (["step_100", "step_200"], 12)
    html = (judged / "eval.html").read_text()
    assert "def add(x):" in html
    assert "Return x plus 7." in html
    assert html.count("checkpoints differ") > 8
    one = rlbox("eval", "report", "eval/step_100", "--problem", "Add/10", "--out", "-")
    assert "Return x plus 10." in one.out
    assert "Return x plus 7." not in one.out


def test_a_dry_run_writes_nothing(judged: Path, rlbox: Rlbox) -> None:
    before = tree(judged)
    said = rlbox("eval", "report", "eval", "--dry-run")
    assert said.out.splitlines()[-1].startswith("# verdict: this would write eval.html")
    assert tree(judged) == before


def test_a_problem_is_chosen(judged: Path, follow: Follow) -> None:
    step = follow("eval", "report", "eval", "--problem", "Add/l0", "--open", "no")
    assert "Add/10" in step.choices()
    follow.instead(step, "Add/l0", "Add/10")


def test_what_has_no_results_is_chosen(judged: Path, rlbox: Rlbox) -> None:
    said = rlbox("eval", "report", "problems")
    assert (said.code, "there is no result of an evaluation" in said.err) == (2, True)


@pytest.fixture
def run(judged: Path, tmp_path: Path) -> Path:
    """A run whose gate asked for those results, which lie on its data disk, named as its container saw it."""
    disk, name = tmp_path / "data", "sft-20260101-080000-aaaa"
    write_run(disk / "runs" / name, samples=1, steps=1)
    shutil.copytree(judged / "eval", disk / "work/outputs")
    path = disk / "runs" / name / "plan.json"
    plan = json.loads(path.read_text())
    plan["paths"] = {**plan.get("paths", {}), "data": "/data"}
    plan["stages"][-1]["files"] = [{"path": "/data/work/outputs/eval_history.jsonl", "format": "jsonl", "why": "P186"}]
    path.write_text(json.dumps(plan))
    return disk / "runs" / name


def test_the_page_of_a_run_links_to_its_scores(judged: Path, run: Path, rlbox: Rlbox) -> None:
    said = rlbox("report", f"{run}/", "--scores", "--out", "of run.html", "--open", "no", "--json")
    assert said.code == 0, said.err
    assert said.data["scores"] == "of run-scores.html"
    assert '<a href="of%20run-scores.html">of run-scores.html</a>' in (judged / "of run.html").read_text()
    scores = (judged / "of run-scores.html").read_text()
    assert ("step_200" in scores, "Return x plus 7." in scores) == (True, True)
    assert rlbox("report", f"{run}/", "--out", "alone.html", "--open", "no").code == 0
    assert "-scores.html" not in (judged / "alone.html").read_text()


def test_a_dry_run_writes_neither(judged: Path, run: Path, rlbox: Rlbox) -> None:
    before = tree(judged)
    assert rlbox("report", f"{run}/", "--scores", "--dry-run").code == 0
    assert tree(judged) == before


def test_a_run_without_scores_and_a_page_without_a_file(run: Path, rlbox: Rlbox, follow: Follow) -> None:
    said = rlbox("report", f"{run}/", "--scores", "--out", "-")
    assert (said.code, "--scores is a second file: name the first one with --out FILE." in said.err) == (2, True)
    shutil.rmtree(run.parents[1] / "work")
    step = follow("report", f"{run}/", "--scores", "--open", "no")
    follow.changed(step, [word for word in step.typed if word != "--scores"], 0)


def test_scores_that_lead_out_of_the_data_disk_are_left_alone(judged: Path, run: Path, rlbox: Rlbox) -> None:
    outputs = run.parents[1] / "work/outputs"
    shutil.rmtree(outputs)
    outputs.symlink_to(judged / "eval")
    assert rlbox("report", f"{run}/", "--scores", "--open", "no").code == 2
