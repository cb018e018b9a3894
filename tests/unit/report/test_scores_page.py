"""The page of scores and problems: what was answered stands there as it was, and steers nothing; it stays small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from reportbox import Page

from rlbox.evaluation.files import AnswerStore, compute_cache_key_by_suite, write_result_with_sample_answers
from rlbox.evaluation.lock import LOCK_PARTS, EvaluationLock
from rlbox.evaluation.result import build_result
from rlbox.report.html import MOST_BYTES
from rlbox.report.scores_page import load_own_or_subfolder_results, read_masked_answers, render_capped_scores_html
from rlbox.secrets.masks import SecretMasker

NO_MASKS = SecretMasker({})
MADE = "2026-11-26T06:00:00Z"
HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J\"'&\u202e\ud800"


def write_results(
    out: Path, *, problems: int = 3, steps: tuple[int, ...] = (100, 200), text: str = "def f(): ...", samples: int = 1
) -> Path:
    """Write the results of checkpoints: problem N is solved from step 100 * N on."""
    for step in steps:
        parts = {name: {} for name in LOCK_PARTS} | {"suites": {"adding": {"problems": problems}}}
        lock = EvaluationLock(parts=parts, subject={"weights": f"w{step}"})
        kept = AnswerStore(out / f"step_{step}", compute_cache_key_by_suite(lock))
        rows = []
        for number in range(problems):
            right = step >= 100 * number
            for sample in range(samples):
                verdict = {"outcome": "accepted" if right else "wrong", "runs": 4, "passed": 4 if right else 1}
                row = {"problem": f"Add/{number}", "number": sample, "ask": f"Add {number}: {text}", "text": text}
                row |= {"finish": "stop", "tokens": 7, "executed": True, "detail": f"printed {text}", **verdict}
                rows.append(kept.replace_answer_with_cache_key("adding", row))
        result = build_result(f"step_{step}", step, lock, {"adding": rows})
        write_result_with_sample_answers(out / f"step_{step}", result, {"adding": rows}, {})
    return out


def page(out: Path, masks: SecretMasker = NO_MASKS) -> str:
    found = load_own_or_subfolder_results(out)
    results, problems = [result for _, result in found], list(read_masked_answers(found, masks))
    return render_capped_scores_html(out.name, results, problems, made_at=MADE)


def test_each_problem_has_what_was_asked_answered_and_found(tmp_path: Path) -> None:
    found = Page(page(write_results(tmp_path / "eval")))
    problems = [one for one in found.all("details") if one.get("id", "").startswith("p")]
    assert [one["data-find"] for one in problems] == [
        "adding Add/0 accepted",
        "adding Add/1 accepted",
        "adding Add/2 wrong accepted checkpoints differ",
    ]
    for text in ("Add 2: def f(): ...", "printed def f(): ...", "1/4 runs right · 7 tokens", "66.67% ("):
        assert text in found.text


def test_what_a_model_wrote_steers_nothing(tmp_path: Path) -> None:
    write_results(tmp_path / "eval", text=HOSTILE)
    html = page(tmp_path / "eval")
    html.encode()
    found = Page(html)
    assert (len(found.all("script")), found.all("img")) == (1, [])
    assert "<script>alert(1)</script><img src=x onerror=alert(2)>" in found.text
    assert not {"\x1b", "\u202e", "\ud800"} & set(html)
    policy = next(one["content"] for one in found.all("meta") if one.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; ")


def test_secrets_are_masked(tmp_path: Path) -> None:
    write_results(tmp_path / "eval", text="my key is hunter2-hunter2-hunter2")
    html = page(tmp_path / "eval", masks=SecretMasker({"API_KEY": "hunter2-hunter2-hunter2"}))
    assert "hunter2" not in html


@pytest.mark.parametrize(("problems", "size"), [(4, 1 << 19), (600, 3000)])
def test_it_stays_small_and_says_what_is_missing(tmp_path: Path, problems: int, size: int) -> None:
    write_results(tmp_path / "eval", problems=problems, text="&" * size)
    html = page(tmp_path / "eval")
    assert len(html.encode()) <= MOST_BYTES
    found = Page(html)
    assert "Long texts are cut in their middle" in found.text
    shown = [one for one in found.all("details") if one.get("id", "").startswith("p")]
    assert any("checkpoints differ" in one["data-find"] for one in shown)
    if len(shown) < problems:
        assert f"{problems - len(shown)} more problems are not shown" in found.text


def test_several_answers_to_a_problem_are_told_apart(tmp_path: Path) -> None:
    found = Page(page(write_results(tmp_path / "eval", samples=2, steps=(100,))))
    assert "step_100 · 2 accepted" in found.text


def test_an_answer_that_was_not_kept_is_said(tmp_path: Path) -> None:
    write_results(tmp_path / "eval", steps=(100,))
    (tmp_path / "eval/step_100/per_problem/adding/Add_1-9f9f9f9f9f.0.json").unlink(missing_ok=True)
    for path in (tmp_path / "eval").rglob("per_problem/adding/Add_1*"):
        path.write_text("{")
    assert "Add/1 adding not judged" in Page(page(tmp_path / "eval")).text


def test_two_locks_are_warned_of(tmp_path: Path) -> None:
    write_results(tmp_path / "eval")
    path = tmp_path / "eval/step_200/summary.json"
    row = json.loads(path.read_text())
    parts = row["lock"]["parts"] | {"engine": {"version": "9"}}
    row["lock"] = EvaluationLock(parts=parts, subject=row["lock"]["subject"]).as_json()
    path.write_text(json.dumps(row))
    assert "made with different evaluation fingerprints" in page(tmp_path / "eval")
