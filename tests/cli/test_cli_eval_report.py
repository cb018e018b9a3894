"""`rlbox eval report`: the page of scores and problems, of what was really judged."""

from __future__ import annotations

from pathlib import Path

import pytest
import test_cli_eval as judging
from fakes import Rlbox, tree

pytestmark = pytest.mark.allow("processes", "sockets")
sandbox_url, site, results, judged = judging.sandbox_url, judging.site, judging.results, judging.judged


def test_the_page_is_written(judged: Path, rlbox: Rlbox) -> None:
    said = rlbox("eval", "report", "eval", "--json")
    assert said.code == 0, said.err
    assert (said.data["results"], said.data["problems"]) == (["step_100", "step_200"], 12)
    html = (judged / "eval.html").read_text()
    assert "def add(x):" in html
    assert "Return x plus 7." in html
    assert html.count("checkpoints differ") > 8
    assert "Return x plus 10." in rlbox("eval", "report", "eval/step_100", "--out", "-").out


def test_a_dry_run_writes_nothing(judged: Path, rlbox: Rlbox) -> None:
    before = tree(judged)
    said = rlbox("eval", "report", "eval", "--dry-run")
    assert said.out.splitlines()[-1].startswith("# verdict: this would write eval.html")
    assert tree(judged) == before


def test_what_has_no_results_is_chosen(judged: Path, rlbox: Rlbox) -> None:
    said = rlbox("eval", "report", "problems")
    assert (said.code, "there is no result of an evaluation" in said.err) == (2, True)
