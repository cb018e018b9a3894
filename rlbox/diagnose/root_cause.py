"""Which event broke first, on one timeline of all logs, and how the other failures follow from it."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Literal, NamedTuple

from rlbox.diagnose.candidates import (
    Candidate,
    UncertainEventTime,
    classify_event_with_cache,
    find_benign_reason,
    has_steps_resumed_after_unknown_exception,
    is_near_log_end_without_orderly_end,
)
from rlbox.diagnose.event_reader import LogEvents
from rlbox.diagnose.events import FailureEvent, is_traceback_from_logger
from rlbox.diagnose.lines import CERTAIN_FAILURE, NO_YEAR, POSSIBLE_FAILURE, parse_clock, to_unix_or_midnight_seconds
from rlbox.diagnose.location import find_missing_or_odd_ranks, parse_collective_fingerprints_by_rank
from rlbox.diagnose.patterns import CausalRole, classify_causal_role, format_text_for_context_pattern, is_never_fatal
from rlbox.diagnose.signatures import SignatureSet

SIMULTANEOUS_S = 1.0
"""Clocks that are no further apart say nothing of an order: many are written to a second."""
_FINE_S = 0.002
_NUMBERS = re.compile(r"(\d{1,18})")


def _get_own_or_nearest_time(event: FailureEvent, default_year: int) -> UncertainEventTime | None:
    """Return when an event was.

    A line without a clock was written after the one above it that has one; how long after is not known.
    """
    own = next((clock for clock in (event.log_line.clock, *(one.clock for one in event.exceptions)) if clock), "")
    moment = parse_clock(own or event.nearest_clock)
    if moment is None:
        return None
    uncertainty_s = math.inf if not own else _FINE_S if "." in own or "," in own else SIMULTANEOUS_S
    return UncertainEventTime(to_unix_or_midnight_seconds(moment, default_year), uncertainty_s)


def _number_logs_by_name(names: Sequence[str]) -> dict[int, int]:
    """Return the place of each log by name, so that another order of the same logs gives the same root."""
    parts = [[int(part) if part.isdecimal() else part for part in _NUMBERS.split(name)] for name in names]
    return {index: place for place, index in enumerate(sorted(range(len(names)), key=parts.__getitem__))}


def find_year_or_2000(logs: Sequence[LogEvents]) -> int:
    """Return the year of the first clock that has one: other clocks leave it out."""
    clocks = (
        clock
        for log in logs
        for clock in (
            *(event.log_line.clock for event in log.events[:200]),
            *(mark.clock for mark in log.progress_marks[:50]),
        )
    )
    moments = (moment for clock in clocks if (moment := parse_clock(clock)) and moment.has_year)
    first = next(moments, None)
    return datetime.fromtimestamp(first.seconds, timezone.utc).year if first else NO_YEAR


def _is_order_known(first: Candidate, second: Candidate) -> bool:
    if first.time is None or second.time is None:
        return False
    return abs(first.time.seconds - second.time.seconds) > max(first.time.uncertainty_s, second.time.uncertainty_s)


def _precedes(first: Candidate, second: Candidate) -> bool:
    """Whether a failure came before another one, by clocks, else by the order of lines."""
    same_file = first.event.log_index == second.event.log_index
    if same_file and first.event.writer == second.event.writer:
        return first.event.first_number < second.event.first_number
    has_order = _is_order_known(first, second) or not same_file
    if has_order and first.time and second.time and first.time.seconds != second.time.seconds:
        return first.time.seconds < second.time.seconds
    return (first.log_index_by_name, first.event.first_number) < (second.log_index_by_name, second.event.first_number)


def _find_earliest(candidates: Sequence[Candidate]) -> Candidate:
    return functools.reduce(lambda best, one: one if _precedes(one, best) else best, candidates)


def _sort_by_occurrence(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Sort by clocks where there are any, else by position."""
    has_several_logs = len({one.event.log_index for one in candidates}) > 1

    def get_key(one: Candidate) -> tuple[float, int, int]:
        seconds = one.time.seconds if one.time and has_several_logs else math.inf
        return seconds, one.log_index_by_name, one.event.first_number

    return sorted(candidates, key=get_key)


_NEAR = 1.5
"""How much less solid than the most solid failure an earlier one may be."""
_PENALTY = {"root": 0.0, "victim": 1.5, "death": 2.5, "relayed": 3.0}
_LAST = 2.0
"""How much more solid it is that something may have failed when nothing is said behind it."""
_CRASH_SIGNAL = re.compile(
    r"failed \(exitcode: -(?:4|7|8|9|11)\) local_rank|exits with return code = -(?:4|7|8|9|11)\b"
    r"|<Signals\.SIG(?:SEGV|BUS|ILL|FPE)"
)
"""A launcher's notice that a process was ended by a signal which no launcher sends first."""
_STOP_REQUEST = re.compile(r"Received (?:1|2|Signals\.SIG(?:HUP|INT)) death signal")
"""A launcher's notice that somebody ended the job, or a terminal took it along."""
_DIGITS = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(slots=True)
class RootCauseAndCandidates:
    root: Candidate | None
    candidates: list[Candidate]
    benign: list[Candidate]


def analyze_logs(
    logs: Sequence[LogEvents], signatures: SignatureSet, log_names: Sequence[str] = ()
) -> RootCauseAndCandidates:
    candidates: list[Candidate] = []
    noise: list[Candidate] = []
    year, places = find_year_or_2000(logs), _number_logs_by_name(log_names)
    for read in logs:
        words = format_text_for_context_pattern(read.program_kinds)
        for event in read.events:
            candidate = _reclassify_at_end(classify_event_with_cache(event, signatures, words), read)
            candidate.time = _get_own_or_nearest_time(event, year)
            candidate.log_index_by_name = places.get(event.log_index, 0)
            if candidate.causal_role != "noise":
                candidate.benign_reason = find_benign_reason(candidate, read)
            (noise if candidate.causal_role == "noise" or candidate.benign_reason else candidates).append(candidate)
    candidates, alive = _split_recovered(candidates, logs)
    noise += alive
    return RootCauseAndCandidates(_find_root(candidates, noise), _sort_by_occurrence(candidates), noise)


def _reclassify_at_end(candidate: Candidate, read: LogEvents) -> Candidate:
    """Return a minor error at the end of a log as a failure: nothing shows that the job recovered."""
    event = candidate.event
    is_unsure = event.certainty == POSSIBLE_FAILURE and not event.exceptions and not candidate.match
    if candidate.causal_role == "root" and is_unsure and is_near_log_end_without_orderly_end(candidate, read, 0):
        return replace(candidate, score=candidate.score + _LAST)
    if event.exceptions:
        is_fatal = not is_traceback_from_logger(event) and not event.is_handled
        is_fatal = is_fatal and candidate.benign_reason != "declared"
    else:
        is_fatal = event.certainty == CERTAIN_FAILURE and not candidate.benign_reason
        is_fatal = is_fatal and not is_never_fatal(candidate.text)
    if candidate.causal_role == "noise" and is_fatal and is_near_log_end_without_orderly_end(candidate, read):
        return replace(candidate, causal_role="root", match=None, benign_reason="", score=float(candidate.score > 0))
    return candidate


def _split_recovered(
    candidates: list[Candidate], reads: Sequence[LogEvents]
) -> tuple[list[Candidate], list[Candidate]]:
    """Return failures, and those after which the same work goes on while no process dies of them."""
    dead = [one.event for one in candidates if one.causal_role in ("victim", "death", "relayed")]

    def is_mourned(event: FailureEvent) -> bool:
        return any(one.log_index != event.log_index or one.first_number > event.first_number for one in dead)

    alive = [
        one
        for one in candidates
        if has_steps_resumed_after_unknown_exception(one, reads[one.event.log_index]) and not is_mourned(one.event)
    ]
    for candidate in alive:
        candidate.benign_reason = "survived"
    return [one for one in candidates if not one.benign_reason], alive


def _find_root(candidates: list[Candidate], noise: Sequence[Candidate] = ()) -> Candidate | None:
    if not candidates or max(one.score for one in candidates) < 0:
        return None
    solid = [one for one in candidates if one.causal_role == "root" and one.score >= 1]
    if told := next((one for one in (*candidates, *noise) if _STOP_REQUEST.search(one.text)), None):
        solid = [one for one in solid if not _precedes(told, one)]
    if solid:
        best = max(one.score for one in solid)
        first = _find_earliest([one for one in solid if one.score >= best - _NEAR])
        return _find_first_of_cause(first, candidates)
    if struck := [one for one in candidates if one.causal_role == "death" and _CRASH_SIGNAL.search(one.text)]:
        return _find_earliest(struck)
    rest = [  # a victim that names the rank which it waited for says more
        (one.score - _PENALTY[one.causal_role] + 3 * bool(find_missing_or_odd_ranks([one.text])), one)
        for one in candidates
    ]
    best = max(score for score, _ in rest)
    return _find_first_of_cause(_find_earliest([one for score, one in rest if score >= best - 1]), candidates)


def _find_first_of_cause(chosen: Candidate, candidates: list[Candidate]) -> Candidate:
    """Return the first failure that shows the cause of the chosen one, though it be less solid: a line alone.

    Not one of another host, unless clocks tell that it came before: in which order lines of two machines arrive says
    nothing.
    """
    if odd := _find_odd_rank_candidate(chosen, candidates):
        return odd
    if not chosen.cause_id_or_empty:
        return chosen
    alike = [
        one
        for one in candidates
        if one.cause_id_or_empty == chosen.cause_id_or_empty
        and not one.is_wrapper
        and one.causal_role != "relayed"
        and (not _is_elsewhere(one, chosen) or _is_order_known(one, chosen))
    ]
    return _find_earliest([chosen, *alike])


def _is_elsewhere(candidate: Candidate, chosen: Candidate) -> bool:
    hosts = {candidate.event.log_line.host, chosen.event.log_line.host} - {""}
    return len(hosts) == 2 and candidate.score < chosen.score


def _find_odd_rank_candidate(chosen: Candidate, candidates: list[Candidate]) -> Candidate | None:
    if not parse_collective_fingerprints_by_rank(chosen.text):
        return None
    named = find_missing_or_odd_ranks(one.text for one in candidates)
    odd = [one for one in candidates if named and one.event.log_line.rank in named.ranks]
    own = [one for one in odd if parse_collective_fingerprints_by_rank(one.text)]
    return _find_earliest(own) if own else None


LinkReason = Literal["", "same-lane", "quoted", "collective", "kill-order", "time"]

_COLLECTIVE = re.compile(
    r"NCCL|nccl|[gG]loo|collective|TCPStore|rendezvous|c10d|[wW]atchdog|monitoredBarrier|DistStore|barrier"
)
_KILLED = re.compile(
    r"SIGTERM|SIGKILL|SIGQUIT|sigquit|closing signal|death signal|exit ?code|Exited|killed|Killed|signal"
)
_LEAST_QUOTE = 16
_BEFORE = 200
"""Lines before the root within which a launcher may have told of an end: it speaks before whoever fell is heard."""


@dataclass(frozen=True, slots=True)
class CausalLink:
    """One link of the chain: a failure, why it follows, and the index of its parent (-1: the root)."""

    candidate: Candidate
    reason: LinkReason
    cause_index: int

    @property
    def role_in_chain(self) -> CausalRole:
        """The class in this chain: the first is the root; a wrapper of the root's cause is relayed."""
        if self.cause_index < 0:
            return "root"
        role = self.candidate.causal_role
        return "relayed" if self.candidate.is_wrapper and role == "root" else role


class FailureChain(NamedTuple):
    """The links from the root on, failures that do not follow from it, and harmless errors."""

    links: list[CausalLink]
    independent: list[Candidate]
    benign: list[Candidate]


def build_chain(root: Candidate, candidates: Sequence[Candidate], benign: Sequence[Candidate] = ()) -> FailureChain:
    """Link the failures that follow from the root.

    Some warnings are links as well: a launcher that stops the other processes says so as a warning.
    """
    chain = [CausalLink(root, "", -1)]
    apart: list[Candidate] = []
    echoes = {id(one): echo for one in benign if (echo := _find_echo(one, root))}
    for candidate in _sort_by_occurrence([*candidates, *echoes.values()]) if echoes else candidates:
        if candidate is root:
            continue
        link = _link(candidate, root, chain)
        if link:
            chain.append(link)
        else:
            apart.append(candidate)
    return FailureChain(chain, apart, [one for one in benign if id(one) not in echoes])


def _find_echo(candidate: Candidate, root: Candidate) -> Candidate | None:
    """Return a warning that a process was stopped or a peer is gone as a consequence; else None."""
    is_benign = candidate.match and candidate.match.signature.role == "benign"
    if candidate.benign_reason != "level" or candidate.event.exceptions or is_benign:
        return None
    lines_before = root.event.first_number - candidate.event.last_number
    if candidate.event.log_index == root.event.log_index and lines_before > _BEFORE:
        return None
    cls = classify_causal_role(candidate.text, candidate.exception_name)
    if cls == "death" or (cls == "victim" and not _precedes(candidate, root)):
        return replace(candidate, causal_role=cls)
    return None


def _link(candidate: Candidate, root: Candidate, chain: list[CausalLink]) -> CausalLink | None:
    if (place := _find_quoted(candidate, chain)) >= 0:
        return CausalLink(candidate, "quoted", place)
    has_same_cause = candidate.cause_id_or_empty == root.cause_id_or_empty
    if candidate.is_wrapper and candidate.cause_id_or_empty and has_same_cause and not _precedes(candidate, root):
        return CausalLink(candidate, "quoted", 0)
    own = [index for index, link in enumerate(chain) if _has_same_writer(link.candidate, candidate)]
    if own and not _precedes(candidate, root):
        return CausalLink(candidate, "same-lane", own[-1])
    if candidate.causal_role == "root" and candidate.score >= 1 and not has_same_cause:
        return None if candidate.match or _precedes(candidate, root) else CausalLink(candidate, "time", 0)
    if candidate.causal_role in ("victim", "relayed", "root") and _COLLECTIVE.search(candidate.text):
        return CausalLink(candidate, "collective", 0)
    if candidate.causal_role in ("death", "victim") and _KILLED.search(candidate.text):
        return CausalLink(candidate, "kill-order", 0)
    return CausalLink(candidate, "time", 0)


def _find_quoted(candidate: Candidate, chain: list[CausalLink]) -> int:
    text = _DIGITS.sub("0", " ".join((candidate.event.text, candidate.text, *(one for _, one in candidate.event.tail))))
    for index, link in enumerate(chain):
        said = _DIGITS.sub("0", link.candidate.text.partition(": ")[2] or link.candidate.text)[:80]
        if len(said) >= _LEAST_QUOTE and said in text:
            return index
    return -1


def _has_same_writer(one: Candidate, other: Candidate) -> bool:
    return one.event.log_index == other.event.log_index and one.event.writer == other.event.writer
