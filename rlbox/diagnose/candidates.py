"""Candidates for the root cause: what each event is, what is known of it, and whether the job recovered from it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from rlbox.diagnose.event_reader import LogEvents
from rlbox.diagnose.events import FailureEvent, count_lines_resumed_with_other_numbers, is_traceback_from_logger
from rlbox.diagnose.lines import (
    CERTAIN_FAILURE,
    LEVEL_ERROR,
    LEVEL_FATAL,
    LEVEL_WARNING,
    POSSIBLE_FAILURE,
    LogLine,
    is_known_earlier,
    parse_line,
    rate_failure_certainty,
)
from rlbox.diagnose.patterns import CausalRole, ProgressMark, classify_causal_role, says_work_continues
from rlbox.diagnose.signatures import SignatureMatch, SignatureSet
from rlbox.diagnose.tracebacks import RaisedException

_INCIDENTAL = re.compile(
    r"^(?:KeyError|Empty|StopIteration|StopAsyncIteration|CancelledError|IndexError|AttributeError|GeneratorExit)$"
)
"""Exceptions that code raises on its way to another one, when that came while the first was handled."""

_RETRIED = re.compile(r"^Retrying in \d|\b[rR]etry(?:ing)?(?: attempt)? #?\d+ ?(?:/|of) ?\d+")
SUMMARY_LINE = re.compile(r"\bvalidation errors? for \w+")
"""An exception's line that only says how many problems stand below it."""
# what states a failure at a low level all the same: NCCL only warns of what ends it
_SPEAKS = re.compile(r"NCCL WARN|cluster ID from GCS|Retry\(total=\d|death signal|has been marked dead|closing signal")


class UncertainEventTime(NamedTuple):
    """Seconds since 1970 by the log's own clock, and how far they may be off."""

    seconds: float
    uncertainty_s: float


@dataclass(slots=True, eq=False)
class Candidate:
    """An event as a candidate for the root cause; `line_number` and `text` are the line that says most.

    `score` says how surely it is a failure of its own. `is_wrapper`: its words only pass on, or are the end of,
    something else. Without clocks `log_index_by_name` counts, the index of its log among all by name.
    """

    event: FailureEvent
    causal_role: CausalRole
    match: SignatureMatch | None
    line_number: int
    text: str
    exception_name: str = ""
    score: float = 0.0
    benign_reason: str = ""
    is_wrapper: bool = False
    time: UncertainEventTime | None = None
    log_index_by_name: int = 0
    full_line: str = ""

    @property
    def cause_id_or_empty(self) -> str:
        """The id of its cause; empty when no signature knows it."""
        return self.match.signature.cause if self.match else ""


def classify_event_with_cache(event: FailureEvent, signatures: SignatureSet, log_context: str) -> Candidate:
    """Return the candidate of an event; a growing log is analyzed often, and to classify 4000 events takes a second."""
    size = (len(event.tail), len(event.exceptions), *(len(one.tail) for one in event.exceptions))
    if event.classification is None or event.classification[0] != size:
        event.classification = size, classify_event(event, signatures, log_context)
    return replace(event.classification[1])


def classify_event(event: FailureEvent, signatures: SignatureSet, log_context: str = "") -> Candidate:
    if event.is_declared_harmless:
        return Candidate(event, "noise", None, event.main_line_number, event.text, benign_reason="declared")
    matches = signatures.match_event(event, log_context)
    benign = next((one for one in matches if one.signature.role == "benign"), None)
    known = next((one for one in matches if one.signature.role != "benign"), None)
    if benign and (known is None or benign.signature.rank > known.signature.rank):
        candidate = _make_candidate(event, "noise", event.exceptions_or_line[benign.statement_index_in_event], benign)
        candidate.benign_reason = "signature"
        return candidate
    if known:
        known = _select_match(event, known, matches)
        statement = event.exceptions_or_line[known.statement_index_in_event]
        candidate = _make_candidate(event, known.signature.role, statement, known)  # type: ignore[arg-type]
        candidate.is_wrapper = event.classify_statement(statement) in ("relayed", "death")
        if (candidate.is_wrapper or SUMMARY_LINE.search(statement.text)) and known.index_in_statement_tail is not None:
            candidate.line_number, candidate.text = statement.tail[known.index_in_statement_tail]
        is_low = event.is_handled or event.log_level in (0, 1, LEVEL_WARNING)
        if is_low and not _SPEAKS.search(event.text):
            candidate.causal_role, candidate.benign_reason = "noise", "level"
    else:
        candidate = _classify_unknown(event)
    if known and not event.exceptions and any(_RETRIED.search(line) for _, line in event.tail[:2]):
        candidate.is_wrapper = True
    candidate.score = _score_candidate(candidate)
    candidate.full_line = next(
        (one.full_line.strip() for one in event.exceptions if one.number == candidate.line_number), ""
    )
    return candidate


def _make_candidate(
    event: FailureEvent, role: CausalRole, statement: RaisedException, match: SignatureMatch | None = None
) -> Candidate:
    return Candidate(event, role, match, statement.number, statement.text, statement.class_name)


def _select_match(event: FailureEvent, known: SignatureMatch, matches: list[SignatureMatch]) -> SignatureMatch:
    """Return which match in a chain of exceptions to name: not one on the way to another, nor one that only quotes."""
    at = known.statement_index_in_event
    quotes = event.exceptions_or_line[at].quotes_other and known.index_in_statement_tail is None
    if not quotes and not _is_incidental(event, at):
        return known
    alike = (one for one in matches if one.signature.role == known.signature.role)
    return next((one for one in alike if one.statement_index_in_event > at), known)


def _classify_unknown(event: FailureEvent) -> Candidate:
    statements = event.exceptions_or_line
    classes = [event.classify_statement(statement) for statement in statements]
    for wanted in ("root", "victim", "death", "relayed", "noise"):
        places = [index for index, cls in enumerate(classes) if cls == wanted]
        if not places:
            continue
        at = places[0]
        if wanted == "relayed":
            if not event.is_handled and (quoted := _find_certain_line(statements)):
                return Candidate(event, "root", None, *quoted)
            # rather than a head which only quotes
            at = next((place for place in reversed(places) if not statements[place].quotes_other), at)
        if wanted == "root" and len(places) > 1 and _is_incidental(event, at):
            at = places[1]
        candidate = _make_candidate(event, "noise" if event.is_handled else wanted, statements[at])
        candidate.benign_reason = "level" if candidate.causal_role == "noise" else ""
        return candidate
    return Candidate(event, "noise", None, event.main_line_number, event.text)


def _find_certain_line(statements: Sequence[RaisedException]) -> tuple[int, str] | None:
    for number, text in (line for statement in statements for line in statement.tail):
        if rate_failure_certainty(parse_line(number, text)) == CERTAIN_FAILURE and classify_causal_role(text) == "root":
            return number, text
    return None


def _is_incidental(event: FailureEvent, at: int) -> bool:
    raised = event.exceptions[at : at + 2]
    return len(raised) == 2 and bool(_INCIDENTAL.match(raised[0].class_name)) and raised[1].chain_kind == "context"


def _score_candidate(candidate: Candidate) -> float:
    event, score = candidate.event, 0.0
    if candidate.match:
        score += 2
    if candidate.is_wrapper and candidate.match and candidate.match.index_in_statement_tail is not None:
        return score
    if candidate.is_wrapper:
        score -= 1
    if event.exceptions:
        score += 1 if is_traceback_from_logger(event) else 2
    elif event.certainty == CERTAIN_FAILURE:
        score += 1
    elif event.certainty == POSSIBLE_FAILURE and not candidate.match:
        score -= 2
    elif event.names_exception and event.log_level < LEVEL_ERROR:
        score += 1
    if event.log_level == LEVEL_FATAL:
        score += 1
    return score


_FAR = 40
_BEHIND = 3
_END = 2
"""Lines that may stand behind the last word of a process."""
_OVER = re.compile(r"(?i)^(?!.*\bsuccessfully (?:installed|built))")
"""An end that is one of the work, not of what was put in before it."""
_IN_THREAD = re.compile(r"Exception in thread [^:]{1,80}:$")
_DISCONNECTED = re.compile(
    r"^(?!.*[tT]ime[d -]{0,2}out).*(?:NCCL|c10d|TCPStore|raylet|gcs_|GCS|grpc|GOAWAY|SIGTERM|heartbeats|exit type)"
)
"""What processes of a job say of one that has ended before them, as it should."""
_AGAIN = 2
"""Lines that must come again with other numbers behind an error."""
_LINES = re.compile(r"The last (\d+) lines")


def find_benign_reason(candidate: Candidate, log_events: LogEvents) -> Literal["", "survived", "shutdown"]:
    """Return why an error is harmless: `survived` or `shutdown`; empty when nothing shows that."""
    after = _marks_after(candidate, log_events)
    counts = Counter(mark.sign for mark in after)
    steps = len({mark.text for mark in after if mark.sign == "step"})
    if _is_shutdown(candidate, log_events):
        return "shutdown"
    if _says_work_continued(candidate):
        return "survived"
    if counts["ray"] and (candidate.event.log_level >= LEVEL_ERROR or _is_quote(candidate, log_events)):
        return "survived"
    hard = (
        (candidate.event.exceptions and not is_traceback_from_logger(candidate.event))
        or candidate.event.certainty == CERTAIN_FAILURE
        or candidate.event.exception_name_in_line
    )
    least = 2 if hard else 1
    if steps >= least or counts["served"] >= least or counts["ready"] or counts["done"] or counts["finished"]:
        return "survived"
    is_unsure = candidate.event.certainty == POSSIBLE_FAILURE and not candidate.match
    is_far = log_events.line_count - candidate.event.last_number > _FAR
    went_on = counts["saved"] or counts["validated"] or counts["bar"] >= 3 or (is_unsure and is_far)
    return "survived" if went_on and not hard else ""


def _marks_after(candidate: Candidate, read: LogEvents) -> list[ProgressMark]:
    """Return the marks that count: a rank's own where it gives any, as no other rank stands in for it."""
    after, row = [], candidate.event.log_line
    first = bisect_right(
        read.progress_marks, candidate.event.last_exception_or_main_line_number, key=lambda mark: mark.line_number
    )
    for mark in read.progress_marks[first:]:
        if mark.sign == "start" and candidate.event.last_repeat_line < mark.line_number:
            break
        after.append(mark)
    if row.rank >= 0 and any(_has_same_writer(mark, row) for mark in read.progress_marks):
        return [mark for mark in after if _has_same_writer(mark, row)]
    if row.host and candidate.causal_role == "death":
        return [mark for mark in after if mark.host in ("", row.host) and not is_known_earlier(mark.clock, row.clock)]
    return after


def _has_same_writer(mark: ProgressMark, row: LogLine) -> bool:
    """Whether a sign is of the process that wrote a line, which is `rank4` in a traceback and `rank 4` in a step."""
    return mark.writer == row.writer or (mark.rank == row.rank and mark.host == row.host)


def _is_quote(candidate: Candidate, read: LogEvents) -> bool:
    """Whether an error is in the tail of a helper's log that its owner quotes."""
    begun = candidate.event.first_number
    quotes = (mark for mark in read.progress_marks if mark.sign == "quote" and mark.line_number < begun)
    return any(begun - mark.line_number <= int(_LINES.findall(mark.text)[0]) for mark in quotes)


def _is_shutdown(candidate: Candidate, read: LogEvents) -> bool:
    event = candidate.event
    ranks = (-1, event.log_line.rank)  # -1: the line tells none
    before = [
        mark
        for mark in read.progress_marks[-20:]
        if mark.line_number < event.first_number and (mark.rank in ranks or event.log_line.rank < 0)
    ]
    if candidate.causal_role != "root" and any(mark.sign == "stop" for mark in before):
        return True
    last = next((mark for mark in reversed(before) if mark.sign not in ("bar", "saved")), None)
    is_over = last is not None and last.sign in ("validated", "finished", "exiting")
    if is_over and (_IN_THREAD.search(event.lines_above) or _IN_THREAD.search(event.text)):
        return True
    if event.exceptions or event.log_level == LEVEL_FATAL:
        return False
    if is_over and _DISCONNECTED.search(candidate.text):
        return True
    is_unknown = candidate.causal_role == "root" and not candidate.match and event.certainty != CERTAIN_FAILURE
    return (
        is_unknown and bool(before) and before[-1].sign in ("done", "finished") and bool(_OVER.search(before[-1].text))
    )


def _says_work_continued(candidate: Candidate) -> bool:
    """Whether the text behind an error, which came once, says that the work continues."""
    event = candidate.event
    if event.count > 1 and not event.exceptions:
        return False
    tail = event.exceptions[-1].tail if event.exceptions else event.tail
    return event.work_continued or any(says_work_continues(line) for _, line in tail[:_BEHIND])


def has_steps_resumed_after_unknown_exception(candidate: Candidate, log_events: LogEvents) -> bool:
    """Whether lines with growing numbers before an error, as of steps, came again behind it."""
    event = candidate.event
    if not event.exceptions or candidate.match or candidate.causal_role != "root":
        return False
    below = [one for one in log_events.step_like_lines_at_end if one.number > event.last_exception_or_main_line_number]
    return count_lines_resumed_with_other_numbers(event.step_like_lines_above, below, event.writer) >= _AGAIN


def is_near_log_end_without_orderly_end(
    candidate: Candidate, log_events: LogEvents, max_lines_below: int = _END
) -> bool:
    """Whether at most `max_lines_below` lines follow an error in its log, and no orderly end."""
    if log_events.line_count - candidate.event.last_number > max_lines_below:
        return False
    return not log_events.has_completion_sign_at_end
