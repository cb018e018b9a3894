"""What checkpoints answered to each problem, read from the results below a folder for a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rlbox.evaluation.files import SUMMARY_FILE, AnswerStore, compute_cache_key_by_suite, read_result
from rlbox.evaluation.result import ACCEPTED, EXECUTED, EvaluationResult
from rlbox.report.html import MOST_BYTES, load_english_page_labels, load_page_template
from rlbox.secrets.masks import SecretMasker
from rlbox.terminal import sanitize_for_terminal

_MOST_TEXT = 24_000
"""Characters of a text that are kept of it; an answer may have megabytes."""
_LEVELS = ((_MOST_TEXT, 100_000), (4000, 100_000), (1200, 100_000), (400, 20_000), (160, 4000), (80, 800), (40, 100))
"""Characters of each text and how many problems, from all to little."""
_STYLES = {"accepted": "passed", "timeout": "interrupted", "sandbox": "skipped", "": ""}


class FolderAndResult(NamedTuple):
    folder: Path
    result: EvaluationResult


@dataclass(frozen=True, kw_only=True)
class CheckpointAnswer:
    """One answer of a checkpoint to a problem; `outcome` is empty where it was not kept."""

    checkpoint: str
    number: int
    outcome: str
    detail: str
    text: str
    finish: str
    tokens: int
    runs: int
    passed: int

    @property
    def css_class(self) -> str:
        return _STYLES.get(self.outcome, "failed")


@dataclass(frozen=True, kw_only=True)
class ProblemAnswers:
    suite: str
    name: str
    prompt: str
    answers: tuple[CheckpointAnswer, ...]

    @property
    def solved_by_some_checkpoints_only(self) -> bool:
        checkpoints = {answer.checkpoint for answer in self.answers}
        return 0 < len({one.checkpoint for one in self.answers if one.outcome == "accepted"}) < len(checkpoints)

    @property
    def has_several_answers_of_a_checkpoint(self) -> bool:
        return len(self.answers) > len({answer.checkpoint for answer in self.answers})


def load_own_or_subfolder_results(folder: Path) -> list[FolderAndResult]:
    paths = [folder / SUMMARY_FILE] if (folder / SUMMARY_FILE).is_file() else sorted(folder.glob(f"*/{SUMMARY_FILE}"))
    rows = [FolderAndResult(path.parent, read_result(path)) for path in paths]
    return sorted(rows, key=lambda row: (row.result.step, row.result.name))


def read_masked_answers(rows: Sequence[FolderAndResult], masks: SecretMasker) -> Iterator[ProblemAnswers]:
    stores = [(row.result, AnswerStore(row.folder, compute_cache_key_by_suite(row.result.lock))) for row in rows]
    for suite in dict.fromkeys(suite for result, _ in stores for suite in result.values):
        names = (name for result, _ in stores for name in result.get_metric_values_or_empty(suite, ACCEPTED))
        for name in dict.fromkeys(names):
            yield _read_problem(suite, name, stores, masks)


def _read_problem(
    suite: str, name: str, stores: Sequence[tuple[EvaluationResult, AnswerStore]], masks: SecretMasker
) -> ProblemAnswers:
    prompt, answers = "", []

    def read_text(record: Mapping[str, Any], key: str) -> str:
        return sanitize_for_terminal(masks.mask_text(_shorten_middle(str(record.get(key) or ""), _MOST_TEXT)))

    for result, store in stores:
        for number in range(len(result.get_metric_values_or_empty(suite, ACCEPTED).get(name, ()))):
            record = store.read_answer_dropping_sandbox_failure(suite, name, number) or {}
            prompt = prompt or read_text(record, "ask")
            answers.append(
                CheckpointAnswer(
                    checkpoint=sanitize_for_terminal(result.name),
                    number=number + 1,
                    outcome=read_text(record, "outcome"),
                    detail=read_text(record, "detail"),
                    text=read_text(record, "text"),
                    finish=read_text(record, "finish"),
                    tokens=int(record.get("tokens") or 0),
                    runs=int(record.get("runs") or 0),
                    passed=int(record.get("passed") or 0),
                )
            )
    return ProblemAnswers(suite=suite, name=sanitize_for_terminal(name), prompt=prompt, answers=tuple(answers))


def _shorten_middle(text: str, most: int) -> str:
    """Return a text with at most so many characters, of a longer one the beginning and the end."""
    if len(text) <= most:
        return text
    head, tail = most - most // 3, most // 3
    return f"{text[:head]}\n[… {len(text) - head - tail} …]\n{text[len(text) - tail :]}"


def render_capped_scores_html(
    title: str, results: Sequence[EvaluationResult], problems: Sequence[ProblemAnswers], *, made_at: str
) -> str:
    """Return the page as one HTML document under `MOST_BYTES`, if need be with less of texts and problems.

    Problems that some checkpoints solved and others did not are the last that are left out.
    `made_at` is ISO 8601 in UTC.
    """
    template, text = load_page_template("scores.html.j2", shorten=_shorten_middle), ""
    known: dict[str, Any] = {"w": load_english_page_labels(), "title": sanitize_for_terminal(title), "made_at": made_at}
    known |= {"rows": [_build_score_row(result, suite) for result in results for suite in result.scores]}
    known |= {"locks": sorted({result.lock.digest_without_weights for result in results})}
    ranks = sorted(range(len(problems)), key=lambda at: not problems[at].solved_by_some_checkpoints_only)
    for most, count in _LEVELS:
        shown = [problems[at] for at in sorted(ranks[:count])]
        hidden = len(problems) - len(shown)
        text = template.render(**known, problems=shown, hidden=hidden, most=most,
                               cut=most < _MOST_TEXT)  # fmt: skip
        if len(text.encode("utf-8", "replace")) <= MOST_BYTES:
            break
    return text


def _build_score_row(result: EvaluationResult, suite: str) -> dict[str, Any]:
    scores = result.scores[suite]
    return {
        "checkpoint": sanitize_for_terminal(result.name),
        "suite": suite,
        "problems": scores.get("problems", ""),
        "accepted": _format_share(scores, ACCEPTED),
        "runs": _format_share(scores, EXECUTED),
        "outcomes": list(dict(scores.get("outcomes") or {}).items()),
        "lock": result.lock.digest_without_weights[:12],
    }


def _format_share(scores: Mapping[str, Any], name: str) -> str:
    if not isinstance(scores.get(name), (int, float)):
        return "–"
    low, high = scores.get(f"{name}_interval") or (scores[name], scores[name])
    return f"{scores[name]:.2%} ({low:.1%} – {high:.1%})"
