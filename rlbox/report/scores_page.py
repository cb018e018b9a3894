"""What checkpoints answered to each problem, read from the results below a folder for a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlbox.evaluation.files import (
    SUMMARY_FILE,
    AnswerStore,
    compute_cache_key_by_suite,
    read_result,
)
from rlbox.evaluation.result import ACCEPTED, EXECUTED, EvaluationResult
from rlbox.report.html import MOST_BYTES, load_english_page_labels, page_template
from rlbox.secrets.masks import SecretMasker
from rlbox.terminal import remove_controls

MOST_TEXT = 24_000
"""Characters of a text that are kept of it; an answer may have megabytes."""


@dataclass(frozen=True, kw_only=True)
class AnswerView:
    """One answer of a checkpoint to a problem; `outcome` is empty where it was not kept."""

    checkpoint: str
    number: int
    outcome: str = ""
    detail: str = ""
    text: str = ""
    finish: str = ""
    tokens: int = 0
    runs: int = 0
    passed: int = 0


@dataclass(frozen=True, kw_only=True)
class ProblemView:
    suite: str
    name: str
    ask: str
    answers: tuple[AnswerView, ...]

    @property
    def solved_by_some_checkpoints_only(self) -> bool:
        solved: dict[str, bool] = {}
        for one in self.answers:
            solved[one.checkpoint] = solved.get(one.checkpoint, False) or one.outcome == "accepted"
        return len(set(solved.values())) > 1


def read_answers(
    results_with_folders: Sequence[tuple[Path, EvaluationResult]], masks: SecretMasker, only_problem_name: str = ""
) -> Iterator[ProblemView]:
    """Yield the problems that results were judged on, suite by suite, or those of the name `only_problem_name`.

    Each result comes with the folder that it lies in.
    """
    kept = [
        (result, AnswerStore(folder, compute_cache_key_by_suite(result.lock)))
        for folder, result in results_with_folders
    ]
    suites = dict.fromkeys(suite for _, result in results_with_folders for suite in result.values)
    for suite in suites:
        for name in dict.fromkeys(
            name for _, result in results_with_folders for name in result.get_metric_values(suite, ACCEPTED)
        ):
            if only_problem_name in ("", name):
                yield _problem(suite, name, kept, masks)


def load_results_with_folders(folder: Path) -> list[tuple[Path, EvaluationResult]]:
    """Return the result that a folder is, or those below it by step, each with its folder; see `read_result`."""
    paths = [folder / SUMMARY_FILE] if (folder / SUMMARY_FILE).is_file() else sorted(folder.glob(f"*/{SUMMARY_FILE}"))
    found = [(path.parent, read_result(path)) for path in paths]
    return sorted(found, key=lambda one: (one[1].step, one[1].name))


def _problem(
    suite: str, name: str, kept: Sequence[tuple[EvaluationResult, AnswerStore]], masks: SecretMasker
) -> ProblemView:
    ask, answers = "", []
    for result, rows in kept:
        for number in range(len(result.get_metric_values(suite, ACCEPTED).get(name, ()))):
            row = rows.read(suite, name, number) or {}
            ask = ask or _text(row, "ask", masks)
            answers.append(_answer(result.name, number, row, masks))
    return ProblemView(suite=suite, name=remove_controls(name), ask=ask, answers=tuple(answers))


def _answer(checkpoint: str, number: int, row: Mapping[str, Any], masks: SecretMasker) -> AnswerView:
    return AnswerView(
        checkpoint=remove_controls(checkpoint),
        number=number + 1,
        outcome=remove_controls(str(row.get("outcome", "")))[:40],
        detail=_text(row, "detail", masks),
        text=_text(row, "text", masks),
        finish=remove_controls(str(row.get("finish", "")))[:40],
        **{name: row[name] for name in ("tokens", "runs", "passed") if isinstance(row.get(name), int)},
    )


def _text(row: Mapping[str, Any], name: str, masks: SecretMasker) -> str:
    return remove_controls(masks.mask_text(_shorten_middle(str(row.get(name) or ""), MOST_TEXT)))


def _shorten_middle(text: str, most: int) -> str:
    """Return a text with at most so many characters, of a longer one the beginning and the end."""
    if len(text) <= most:
        return text
    head, tail = most - most // 3, most // 3
    return f"{text[:head]}\n[… {len(text) - head - tail} …]\n{text[len(text) - tail :]}"


_LEVELS = ((MOST_TEXT, 100_000), (4000, 100_000), (1200, 100_000), (400, 20_000), (160, 4000), (80, 800), (40, 100))
"""Characters of each text and how many problems, from all to little."""
_LOOKS = {"accepted": "passed", "timeout": "interrupted", "sandbox": "skipped", "": ""}


def render_scores(
    title: str, results: Sequence[EvaluationResult], problems: Sequence[ProblemView], *, made_at: str
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
    words = load_english_page_labels()
    template, text = page_template("scores.html.j2"), ""
    known = {"w": words, "title": remove_controls(title), "made_at": made_at, "alone": len(problems) == 1}
    rows = [_row(one, suite) for one in results for suite in one.scores]
    locks = sorted({one.lock.digest_without_weights for one in results})
    for most, count in _LEVELS:
        shown = _chosen(problems, count)
        hidden, views = len(problems) - len(shown), [_view(one, most, words) for one in shown]
        text = template.render(**known, rows=rows, locks=locks, problems=views, hidden=hidden, cut=most < MOST_TEXT)
        if len(text.encode("utf-8", "replace")) <= MOST_BYTES:
            break
    return text


def _chosen(problems: Sequence[ProblemView], count: int) -> Sequence[ProblemView]:
    if len(problems) <= count:
        return problems
    first = sorted(range(len(problems)), key=lambda at: (not problems[at].solved_by_some_checkpoints_only, at))[:count]
    return [problems[at] for at in sorted(first)]


def _view(problem: ProblemView, most: int, words: Mapping[str, Any]) -> dict[str, Any]:
    answers = [_short(one, most) for one in problem.answers]
    outcomes = [one.outcome for one in problem.answers]
    found = [problem.suite, problem.name, *outcomes, *(words["outcomes"].get(one, "") for one in outcomes)]
    return {
        "suite": problem.suite,
        "name": problem.name,
        "ask": _shorten_middle(problem.ask, most),
        "answers": [{**vars(one), "look": _LOOKS.get(one.outcome, "failed")} for one in answers],
        "several": len(answers) > len({one.checkpoint for one in answers}),
        "differs": problem.solved_by_some_checkpoints_only,
        "find": " ".join(
            dict.fromkeys([*found, words["differs"]] if problem.solved_by_some_checkpoints_only else found)
        ),
    }


def _short(answer: AnswerView, most: int) -> AnswerView:
    return replace(answer, text=_shorten_middle(answer.text, most), detail=_shorten_middle(answer.detail, most))


def _row(result: EvaluationResult, suite: str) -> dict[str, Any]:
    row = result.scores[suite]
    return {
        "checkpoint": remove_controls(result.name),
        "step": result.step if result.step >= 0 else "",
        "suite": suite,
        "problems": row.get("problems", ""),
        "accepted": _share(row, ACCEPTED),
        "runs": _share(row, EXECUTED),
        "outcomes": list(dict(row.get("outcomes") or {}).items()),
        "lock": result.lock.digest_without_weights[:12],
    }


def _share(row: Mapping[str, Any], name: str) -> str:
    if not isinstance(row.get(name), (int, float)):
        return "–"
    low, high = row.get(f"{name}_interval") or (row[name], row[name])
    return f"{row[name]:.2%} ({low:.1%} – {high:.1%})"


def name_page_after_folder(folder: Path, problem_name: str) -> str:
    plain = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in problem_name)[:80]
    return f"{folder.resolve().name}-{plain}.html" if plain else f"{folder.resolve().name}.html"
