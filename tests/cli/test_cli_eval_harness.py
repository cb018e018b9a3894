"""`rlbox eval compare` and `choose` on results that lm-eval 0.4.13 and inspect-ai 0.3.285 wrote."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from fakes import Folder, Rlbox

RESULTS = Path(__file__).parents[1] / "cases/evaluation/harness-results.tar.xz"
LM, INSPECT = "sums/exact_match,none", "sums/match"


@pytest.fixture
def results(folder: Folder) -> Path:
    """The working folder, with lm-eval/{step_100,step_200,limit} and the same three in inspect-ai/."""
    with tarfile.open(RESULTS) as archive:
        archive.extractall(folder.path)
    return folder.path


@pytest.mark.parametrize(
    ("harness", "suite", "problems", "won"), [("lm-eval", LM, 40, 12), ("inspect-ai", INSPECT, 6, 4)]
)
def test_results_with_samples_are_paired_by_problem(
    results: Path, rlbox: Rlbox, harness: str, suite: str, problems: int, won: int
) -> None:
    said = rlbox("eval", "compare", f"{harness}/step_200", f"{harness}/step_100", "--json")
    pair = said.data["compare"]["suites"][suite]
    assert (pair["paired"], pair["problems"], len(pair["won"]) - len(pair["lost"])) == (True, problems, won)
    assert pair["difference"] == pytest.approx(won / problems)
    words = ("--by", suite, "--guard", suite, "--baseline", f"{harness}/step_100")
    best = rlbox("eval", "choose", harness, *words, "--json").data["best"]  # `limit` has no step: it is no checkpoint
    assert (best["step"], best["comparison"]["difference"]) == (200, pytest.approx(won / problems))


def test_results_without_samples_are_compared_by_their_means(results: Path, rlbox: Rlbox) -> None:
    for path in results.glob("lm-eval/**/samples_*.jsonl"):  # as without --log_samples
        path.unlink()
    paths = ("lm-eval/step_200", "lm-eval/step_100")
    pair = rlbox("eval", "compare", *paths, "--json").data["compare"]["suites"][LM]
    assert (pair["paired"], pair["difference"]) == (False, pytest.approx(0.3))
    assert pair["interval"] == pytest.approx([0.3 - 1.96 * 0.10254, 0.3 + 1.96 * 0.10254], abs=1e-3)
    assert "which are not paired" in rlbox("eval", "compare", *paths).out
    assert "best checkpoint: step 200" in rlbox("eval", "choose", "lm-eval", "--by", LM).out


@pytest.mark.parametrize(
    ("other", "pattern", "old", "new", "field"),
    [
        ("lm-eval/limit", "*.json", "", "", f"suites.{LM}.problems: 40 and 20"),
        ("inspect-ai/limit", "*.json", "", "", "engine.harness: 'lm-eval' and 'inspect-ai'"),
        ("lm-eval/step_100", "*.json", '"sums": 1.0', '"sums": 2.0', f"suites.{LM}.version: 1.0 and 2.0"),
        ("lm-eval/step_100", "*.json", 'template_sha": null', 'template_sha": "a"', "tokenizer.chat_template_sha"),
        ("lm-eval/step_100", "*.jsonl", '"prompt_hash": "', '"prompt_hash": "0', f"prompts.{LM}: "),
    ],
)
def test_what_is_not_comparable_is_refused_with_the_field(
    results: Path, rlbox: Rlbox, other: str, pattern: str, old: str, new: str, field: str
) -> None:
    path = next((results / other).rglob(pattern))
    path.write_text(path.read_text().replace(old, new, 1))
    said = rlbox("eval", "compare", "lm-eval/step_200", other)
    assert (said.code, field in said.err) == (1, True)
    assert f"rlbox eval compare lm-eval/step_200 {other} --across" in said.err


def test_a_log_that_is_none_or_did_not_succeed_is_refused_by_name(results: Path, rlbox: Rlbox) -> None:
    log = next(results.glob("inspect-ai/step_200/*.json"))
    log.write_text(json.dumps(json.loads(log.read_text()) | {"status": "error"}))
    said = rlbox("eval", "show", str(log))
    assert (said.code, "did not succeed: error" in said.err, log.name in said.err) == (2, True, True)
    for torn in (log, next(results.glob("inspect-ai/step_100/*.eval"))):
        torn.write_bytes(torn.read_bytes()[:-200])
        assert (rlbox("eval", "show", str(torn)).code, torn.suffix) == (2, torn.suffix)
    assert "several results" in rlbox("eval", "show", "lm-eval").err
