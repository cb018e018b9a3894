"""One HTML file of the scores of checkpoints, and of each problem: what was asked, answered and found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlbox.evaluation.result import EvaluationResult
from rlbox.evaluation.results import ACCEPTED, RUNS
from rlbox.printable import printable
from rlbox.report.html import MOST_BYTES, page_template, page_words
from rlbox.report.read_answers import MOST_TEXT, ShownAnswer, ShownProblem, cut

_LEVELS = ((MOST_TEXT, 100_000), (4000, 100_000), (1200, 100_000), (400, 20_000), (160, 4000), (80, 800), (40, 100))
"""Characters of each text and how many problems, from all to little."""
_LOOKS = {"accepted": "passed", "timeout": "interrupted", "sandbox": "skipped", "": ""}


def render_scores(
    title: str, results: Sequence[EvaluationResult], problems: Sequence[ShownProblem], *, made_at: str
) -> str:
    """Return the page as one HTML document under `MOST_BYTES`, if need be with less of texts and problems.

    Problems that some checkpoints solved and others did not are the last that are left out.

    Parameters
    ----------
    title
        What the results are called.
    made_at
        The time, ISO 8601 in UTC.
    """
    words = page_words()
    template, text = page_template("scores.html.j2"), ""
    known = {"w": words, "title": printable(title), "made_at": made_at, "alone": len(problems) == 1}
    rows = [_row(one, suite) for one in results for suite in one.scores]
    locks = sorted({one.lock.digest for one in results})
    for most, count in _LEVELS:
        shown = _chosen(problems, count)
        hidden, views = len(problems) - len(shown), [_view(one, most, words) for one in shown]
        text = template.render(**known, rows=rows, locks=locks, problems=views, hidden=hidden, cut=most < MOST_TEXT)
        if len(text.encode("utf-8", "replace")) <= MOST_BYTES:
            break
    return text


def _chosen(problems: Sequence[ShownProblem], count: int) -> Sequence[ShownProblem]:
    if len(problems) <= count:
        return problems
    first = sorted(range(len(problems)), key=lambda at: (not problems[at].differs, at))[:count]
    return [problems[at] for at in sorted(first)]


def _view(problem: ShownProblem, most: int, words: Mapping[str, Any]) -> dict[str, Any]:
    answers = [_short(one, most) for one in problem.answers]
    outcomes = [one.outcome for one in problem.answers]
    found = [problem.suite, problem.name, *outcomes, *(words["outcomes"].get(one, "") for one in outcomes)]
    return {
        "suite": problem.suite,
        "name": problem.name,
        "ask": cut(problem.ask, most),
        "answers": [{**vars(one), "look": _LOOKS.get(one.outcome, "failed")} for one in answers],
        "several": len(answers) > len({one.checkpoint for one in answers}),
        "differs": problem.differs,
        "find": " ".join(dict.fromkeys([*found, words["differs"]] if problem.differs else found)),
    }


def _short(answer: ShownAnswer, most: int) -> ShownAnswer:
    return replace(answer, text=cut(answer.text, most), detail=cut(answer.detail, most))


def _row(result: EvaluationResult, suite: str) -> dict[str, Any]:
    row = result.scores[suite]
    return {
        "checkpoint": printable(result.name),
        "step": result.step if result.step >= 0 else "",
        "suite": suite,
        "problems": row.get("problems", ""),
        "accepted": _share(row, ACCEPTED),
        "runs": _share(row, RUNS),
        "outcomes": list(dict(row.get("outcomes") or {}).items()),
        "lock": result.lock.digest[:12],
    }


def _share(row: Mapping[str, Any], name: str) -> str:
    if not isinstance(row.get(name), (int, float)):
        return "–"
    low, high = row.get(f"{name}_interval") or (row[name], row[name])
    return f"{row[name]:.2%} ({low:.1%} – {high:.1%})"


def default_name(folder: Path, problem: str) -> str:
    """Return what a page's file is called: after the folder, and the problem where it is of one."""
    plain = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in problem)[:80]
    return f"{folder.resolve().name}-{plain}.html" if plain else f"{folder.resolve().name}.html"
