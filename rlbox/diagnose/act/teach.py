"""Learn from logs: the lesson of a diagnosis, with the near miss that the logs themselves hold."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from rlbox.diagnose.act.sources import Source, read_blocks
from rlbox.diagnose.catalogue import LogSignature, SignatureSet
from rlbox.diagnose.learn.lesson import (
    MOST_LIKE,
    Lesson,
    Likeness,
    check_teachable,
    learn,
    likenesses,
    private_words,
    public_line,
    unteachable,
)
from rlbox.diagnose.read.line import read_row
from rlbox.diagnose.verdict import Diagnosis
from rlbox.logs.lines import LineCutter
from rlbox.logs.patterns import compile_pattern

_KEPT = 32
_MOST_BYTES = 32 << 20
"""Bytes of a log in which a near miss is looked for."""


def teach(
    found: Diagnosis,
    sources: Sequence[Source],
    catalogue: SignatureSet,
    environment: Mapping[str, str],
    names: Collection[str] = (),
    typed: str = "LOG",
) -> Lesson:
    """Return the lesson of logs that were diagnosed; `typed` is how they were named.

    Raises
    ------
    WorkFailed
        There is none: see `check_teachable` and `learn`; or a harmless line of the logs fits the template, too.
    """
    root = check_teachable(found, typed)
    names = private_words(root.event, names)
    lesson = learn(root, catalogue, environment, names)
    noise = [(case.number, case.text) for case in found.noise]
    if like := [number for number, text in noise if _fits(lesson, text)][:MOST_LIKE]:
        raise unteachable("harmless lines of the log say the same", f"lines {', '.join(map(str, like))}")
    lesson = replace(lesson, further=tuple(one for one in lesson.further if not _hits_noise(one.signature, found)))
    source = sources[root.event.file]
    spans = [(link.case.event.begun, link.case.event.last) for link in found.chain]
    spans += [(case.event.begun, case.event.last) for case in found.also]
    lines = noise + [
        (one.number, read_row(one.number, one.text).body)
        for one in _closest(lesson, source)
        if not any(begun <= one.number <= last for begun, last in spans)
    ]
    for one in sorted(likenesses(lesson, lines), key=lambda one: (-one.share, abs(one.number - root.number))):
        told = public_line(one.text, environment, names)
        if told and not _fits(lesson, told) and not _fits(lesson, one.text):
            return replace(lesson, near_miss=told, near_miss_line=one.number)
    return lesson


def _hits_noise(signature: LogSignature, found: Diagnosis) -> bool:
    """Whether a further signature finds what the same logs call harmless."""
    one = SignatureSet([signature])
    return any(one.matches(case.event) for case in found.noise)


def _fits(lesson: Lesson, text: str) -> bool:
    return compile_pattern(lesson.signature.pattern).fits(text)


def _closest(lesson: Lesson, source: Source) -> list[Likeness]:
    """Return the lines of a log that share most words with a lesson; none of what cannot be read again."""
    if source.path is None:
        return []
    best: list[tuple[float, int, int, Likeness]] = []
    for one in likenesses_in(lesson, source):
        entry = (one.share, -abs(one.number - lesson.line), one.number, one)
        if len(best) < _KEPT:
            heapq.heappush(best, entry)
        elif entry > best[0]:
            heapq.heapreplace(best, entry)
    return [one for *_, one in best]


def likenesses_in(lesson: Lesson, source: Source) -> Iterator[Likeness]:
    """Yield the lines of a log that share a word with a lesson."""
    cutter, size = LineCutter(), 0
    for block in read_blocks(source):
        first = cutter.number + 1
        texts = cutter.feed(block)
        yield from likenesses(lesson, list(enumerate(texts, first)))
        size += len(block)
        if size >= _MOST_BYTES:
            return
    number = cutter.number + 1
    yield from likenesses(lesson, list(enumerate(cutter.close(), number)))
