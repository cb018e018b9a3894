"""Search one log for all that a gate waits for, in its context: texts that a model wrote, steps of each process."""

from __future__ import annotations

import bisect
import functools
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rlbox.config.pattern import compile_re2
from rlbox.job.gate import IgnoredModelText
from rlbox.logs.lines import LineBlock, NumberedLine, list_variants_without_ray_rank_and_bar
from rlbox.logs.patterns import compile_pattern_set, find_candidate_line_indexes, strip_anchors_and_group_names
from rlbox.logs.progress import STEP_LINE, parse_progress_line

_WRITER = re.compile(
    r"^\s*(?:\((?=[^()]*\bpid=\d)[^()]*\)"  # Ray and vLLM: (WorkerDict pid=12, ip=10.0.0.2)
    r"|\[(?:rank|default) ?\d+\]"  # torch, torchrun --tee
    r"|\[\d+,\d+\]<std(?:err|out)>"  # mpirun --tag-output
    r"|\d{1,4}:\s"  # srun --label
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?((?: (?:DP|PP|TP|EP)\d+)+)\])"  # SGLang
)
_WRITERS = 1024
"""Processes, by kind of step, that one log is followed in."""
_TEXT_LINES = 10_000
"""Lines after which a text that was begun is none: the line that should end it does not come."""
_TEXTS = 256
_PATIENCE = 2
"""How often the longest time between two steps may pass before a process counts as one that makes none."""
_LEAST_PATIENCE_S = 30.0
_STEP_BYTES = 2048
"""Bytes at the end of a block in which steps are read while no line is in doubt: one costs far more than a search."""

_STEP_PATTERNS = (strip_anchors_and_group_names(STEP_LINE),)


def writer_prefix_or_empty(text: str) -> str:
    """Return what a line puts before itself to name the process or rank that wrote it; empty when it names none.

    Of the commonest forms alone, which is fast enough for every line of a log.
    """
    found = _WRITER.match(text)
    return (found.group(1) or found.group(0)).strip() if found else ""


@dataclass(eq=False)
class LinePatternCallback:
    """A pattern that is looked for in a log until it `is_done`; `on_match` gets the line, and its reading that fits.

    In what a model may have written only forbidden lines match, and its begin and end (`reads_model_text`).
    """

    pattern: str
    on_match: Callable[[NumberedLine, str], None]
    reads_overwritten: bool = False
    is_forbidden: bool = False
    reads_model_text: bool = False
    is_done: bool = False


@dataclass
class _WriterTexts:
    begun: int = 0
    rule: int = -1
    ended: deque[range] = field(default_factory=lambda: deque(maxlen=_TEXTS))


class ModelTextTracker:
    """What a model wrote in one log. A text that is begun counts as one when its end came: until then it is open."""

    def __init__(self, patterns: Sequence[str], texts: Sequence[IgnoredModelText]) -> None:
        self._patterns = patterns
        self._rules = texts
        self._writers: dict[str, _WriterTexts] = {}

    def matchers(self) -> Iterator[LinePatternCallback]:
        """Yield what is to be looked for before anything else in the same line: ends, then begins."""
        for index, rule in enumerate(self._rules):
            yield LinePatternCallback(rule.ends, functools.partial(self._end, index), reads_model_text=True)
        for index, rule in enumerate(self._rules):
            yield LinePatternCallback(rule.begins, functools.partial(self._begin, index), reads_model_text=True)

    def expire_and_check_open(self, line: NumberedLine) -> bool:
        """Drop a text that is too long, then return whether the line lies in one whose end has not come yet."""
        texts = self._writers.get(writer_prefix_or_empty(line.text)) if self._rules else None
        if texts is None or not texts.begun:
            return False
        if line.number - texts.begun > _TEXT_LINES:
            texts.begun = 0
        return 0 < texts.begun <= line.number

    def is_in_ended_text_or_model_output(self, line_number: int, text: str) -> bool:
        texts = self._writers.get(writer_prefix_or_empty(text)) if self._rules else None
        if texts and any(line_number in span for span in texts.ended):
            return True
        return bool(self._patterns) and self.fits_model_output(list_variants_without_ray_rank_and_bar(text))

    def fits_model_output(self, variants: Iterable[str]) -> bool:
        """Return whether a line, read in one of these ways, says itself that a model wrote it: no fact of the run."""
        return any(compile_re2(pattern).search(text) for text in variants for pattern in self._patterns)

    def _begin(self, rule: int, line: NumberedLine, text: str) -> None:
        if not self.expire_and_check_open(line) and (
            len(self._writers) < _WRITERS or writer_prefix_or_empty(line.text) in self._writers
        ):
            texts = self._writers.setdefault(writer_prefix_or_empty(line.text), _WriterTexts())
            texts.begun, texts.rule = line.number, rule

    def _end(self, rule: int, line: NumberedLine, text: str) -> None:
        texts = self._writers.get(writer_prefix_or_empty(line.text))
        if texts and self.expire_and_check_open(line) and texts.rule == rule and line.number > texts.begun:
            texts.ended.append(range(texts.begun, line.number))
            texts.begun = 0


@dataclass
class _Steps:
    last: float = -math.inf
    line: int = 0
    line_before: int = 0
    seen_s: float = 0.0
    longest_s: float = 0.0


class StepTracker:
    """The steps that the processes of one log make. `elapsed_s` is the time since the command was started."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        self._steps: dict[tuple[str, str], _Steps] = {}

    def record_step_of_line(self, line: NumberedLine, variants: Sequence[str]) -> None:
        text = next((text for text in variants if compile_re2(STEP_LINE).search(text)), "")
        reading = parse_progress_line(text) if text else None
        if reading is not None and reading.step is not None:
            self.record_step_of_writer_if_greater(line, re.split(r"\d", text, maxsplit=1)[0][-40:], reading.step)

    def record_step_of_writer_if_greater(self, line: NumberedLine, kind: str, step: float) -> None:
        """Take a step that a line reports; one that is not greater than the last of its kind shows nothing."""
        key = (writer_prefix_or_empty(line.text), kind)
        if key not in self._steps and len(self._steps) >= _WRITERS:
            return
        steps = self._steps.setdefault(key, _Steps())
        if not steps.last < step < math.inf:
            return
        steps.longest_s = max(steps.longest_s, self.elapsed_s - steps.seen_s)
        steps.last, steps.seen_s = step, self.elapsed_s
        steps.line_before, steps.line = steps.line, line.number

    def is_latest_step_of_its_writer(self, line: NumberedLine) -> bool:
        """Whether the line reports a step itself: then it speaks of the training, and no sample is quoted."""
        return any(steps.line == line.number for steps in self._of_writer(line.text))

    def has_writer_steps_after(self, line_number: int, writer_line_text: str, at_least: Literal[1, 2] = 1) -> bool:
        steps_of_kinds = self._of_writer(writer_line_text)
        return any((kind.line if at_least == 1 else kind.line_before) > line_number for kind in steps_of_kinds)

    def estimate_writer_step_timeout_s(self, writer_line_text: str) -> float | None:
        """Return how long the next step of the writer of a line may take; None where it has made none."""
        longest = [steps.longest_s for steps in self._of_writer(writer_line_text)]
        return max(_LEAST_PATIENCE_S, _PATIENCE * max(longest)) if longest else None

    def _of_writer(self, text: str) -> list[_Steps]:
        writer = writer_prefix_or_empty(text)
        return [steps for (name, _), steps in self._steps.items() if name == writer]


class _MatcherSet:
    def __init__(self, matchers: Iterable[LinePatternCallback]) -> None:
        self.matchers = list(matchers)
        self._patterns = (
            compile_pattern_set(tuple(matcher.pattern for matcher in self.matchers)) if self.matchers else None
        )
        self.block_patterns = self._patterns.loose if self._patterns else ()

    def find_matching(self, variants: Sequence[str]) -> list[tuple[LinePatternCallback, str]]:
        fitting: dict[int, str] = {}
        for variant in variants:
            for index in self._patterns.find_matching_indexes(variant) if self._patterns else ():
                fitting.setdefault(index, variant)
        return [(self.matchers[index], fitting[index]) for index in sorted(fitting)]


class LogSearch:
    """All matchers of one log; those that are done are searched for no more, so that hits become rare.

    `steps` gets the steps that the log reports: the last of each block, all of them before a forbidden line or a text
    of a model, and while `has_undecided_lines`.
    """

    def __init__(
        self,
        matchers: Iterable[LinePatternCallback],
        model_texts: ModelTextTracker,
        steps: StepTracker | None,
        has_undecided_lines: Callable[[], bool],
    ) -> None:
        self._model_texts = model_texts
        self._steps = steps or StepTracker()
        self._reads_steps = steps is not None
        self._has_undecided_lines = has_undecided_lines
        self._compile(matchers)
        self.last_line = ""

    @property
    def pending_patterns(self) -> tuple[str, ...]:
        """The expressions that are still looked for, without anchors."""
        return self._in_lines.block_patterns

    def call_matchers_and_record_steps(self, block: LineBlock) -> None:
        self._block = block
        self._unread_steps: Sequence[int] | None = None
        indexes = find_candidate_line_indexes(self.pending_patterns, block) if block.hits is None else block.hits
        hits = [(index, True, block[index]) for index in indexes]
        states = block.overwritten_states
        if states and self._in_overwritten.matchers:
            shown = LineBlock(block.joined_overwritten_states, len(states))
            found = find_candidate_line_indexes(self._in_overwritten.block_patterns, shown)
            hits += [(states[index].line_index, False, shown[index]) for index in found]
        for index, is_line, text in sorted(hits, key=lambda hit: hit[:2]):  # overwritten states before their line
            self._match(NumberedLine(number=block.first_number + index, text=text.strip()), text, is_line=is_line)
        if self._unread_steps is None and not self._has_undecided_lines():
            short = len(block.joined) <= _STEP_BYTES
            count = len(block) if short else block.joined.count(b"\n", len(block.joined) - _STEP_BYTES)
            self._unread_steps = range(len(block) - count, len(block))
        self._read_steps(block.first_number + len(block))
        if joined := block.joined.rstrip():
            self.last_line = joined[joined.rfind(b"\n") + 1 :].decode("utf-8", "replace").strip()

    def _match(self, line: NumberedLine, text: str, *, is_line: bool) -> None:
        variants = list_variants_without_ray_rank_and_bar(text)
        if self._model_texts.fits_model_output(variants):
            return
        fitting = (self._in_lines if is_line else self._in_overwritten).find_matching(variants)
        if any(matcher.is_forbidden or matcher.reads_model_text for matcher, _ in fitting):
            self._read_steps(line.number if is_line else line.number - 1)
        for matcher, variant in fitting:
            if matcher.reads_model_text or matcher.is_forbidden or not self._model_texts.expire_and_check_open(line):
                matcher.on_match(line, variant)
        if any(matcher.is_done for matcher, _ in fitting):
            self._compile(matcher for matcher in self._in_lines.matchers if not matcher.is_done)

    def _read_steps(self, last_number: int) -> None:
        """Read the steps of the block's lines up to `last_number` that were not read yet."""
        if not self._reads_steps:
            return
        if self._unread_steps is None:
            self._unread_steps = find_candidate_line_indexes(_STEP_PATTERNS, self._block)
        due = bisect.bisect_right(self._unread_steps, last_number - self._block.first_number)
        for index in self._unread_steps[:due]:
            text = self._block[index]
            line = NumberedLine(number=self._block.first_number + index, text=text.strip())
            variants = list_variants_without_ray_rank_and_bar(text)
            if not self._model_texts.fits_model_output(variants) and not self._model_texts.expire_and_check_open(line):
                self._steps.record_step_of_line(line, variants)
        self._unread_steps = self._unread_steps[due:]

    def _compile(self, matchers: Iterable[LinePatternCallback]) -> None:
        self._in_lines = _MatcherSet(matchers)
        self._in_overwritten = _MatcherSet(matcher for matcher in self._in_lines.matchers if matcher.reads_overwritten)
