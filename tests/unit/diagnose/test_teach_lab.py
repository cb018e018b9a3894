"""Lessons from the fault lab: a fault that no signature knows is learnt from one version, and found on another.

A fault is made unknown by taking the signatures of its causes out of the catalogue. All of what is learnt is held
against every healthy log, and against the other faults of the open half.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from fakes import CHECKOUT

from rlbox.diagnose.act.diagnose import diagnose_sources
from rlbox.diagnose.act.read import LogReader
from rlbox.diagnose.act.scanner import Scanner
from rlbox.diagnose.act.sources import find_sources, read_blocks
from rlbox.diagnose.act.teach import teach
from rlbox.diagnose.catalogue import SignatureSet
from rlbox.diagnose.learn.lesson import Lesson
from rlbox.diagnose.learn.written import file_text
from rlbox.diagnose.read.event import Event
from rlbox.diagnose.read.reader import EventReader
from rlbox.diagnose.soundness import problems_of, ties
from rlbox.errors import WorkFailed
from rlbox.logs.patterns import compile_pattern

LEAST_LEARNT = 45
"""Faults that something is learnt from."""
FORMS = re.compile(r"\{[01],200\}|NAME|-packages/[\w(?:|)]+/|/\w+/(?:\.\*|\(\?:\.\*/\)\?\w+\\\.py)(?::|\[:\.\])")
"""What every file that is learnt may hold of expressions and places."""
OTHER_FAULTS = {"shm-torch-share": "torch 2.9 does not see that /dev/shm is full: a bus error ends it, with no message"}
"""Those of which the other version says nothing that the first one said, with what it does instead."""


@dataclass(frozen=True)
class Learnt:
    """A lesson of one fault, and the cause that the other version's log got with it."""

    recipe: Any
    first: Any
    hidden: SignatureSet
    lesson: Lesson
    other: str | None


@pytest.fixture(scope="module")
def score() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(CHECKOUT / "tests/faultlab"), *sys.path])
        import score

        yield score


@pytest.fixture(scope="module")
def learnt(score: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Learnt]:
    shipped = score.shipped_catalogue().signatures
    runs: dict[str, list[Any]] = {}
    for case in score.cases("open"):
        runs.setdefault(case.recipe.name, []).append(case)
    found = []
    for name, (first, *others) in runs.items():
        if not first.recipe.fatal or not others:
            continue
        causes = {first.recipe.cause, *first.recipe.also}
        hidden = SignatureSet(one for one in shipped if one.role != "root" or (one.cause or one.fix) not in causes)
        folder = tmp_path_factory.mktemp(name)
        sources = find_sources([str(path) for path in score.lay(first, folder / "first")])
        try:
            lesson = teach(diagnose_sources(sources, hidden), sources, hidden, {})
        except WorkFailed:
            continue
        sources = find_sources([str(path) for path in score.lay(others[0], folder / "other")])
        taught = SignatureSet((*hidden.signatures, *lesson.signatures))
        found.append(Learnt(first.recipe, first, hidden, lesson, diagnose_sources(sources, taught).cause))
    return found


def events(score: Any, case: Any, folder: Path) -> list[Event]:
    """Return all that a log states to have failed, whatever became of it."""
    scanner = Scanner(score.shipped_catalogue().scanned)
    found: list[Event] = []
    for source in find_sources([str(path) for path in score.lay(case, folder)]):
        reader = LogReader(EventReader(scanner.hits))
        for block in read_blocks(source):
            reader.take(block)
        found += reader.close().events
    return found


def test_a_lesson_finds_the_same_fault_on_another_version(learnt: list[Learnt]) -> None:
    assert len(learnt) >= LEAST_LEARNT
    assert {one.recipe.name for one in learnt if one.other != one.lesson.id} == OTHER_FAULTS.keys()


def test_faults_outside_the_list_of_causes_are_learnt(learnt: list[Learnt]) -> None:
    """Those are unknown without anything being hidden."""
    assert sum(one.recipe.cause == "unknown" and one.other == one.lesson.id for one in learnt) >= 6


def test_no_lesson_hits_a_healthy_log(learnt: list[Learnt], score: Any, tmp_path: Path) -> None:
    healthy = [case for case in score.cases() if not case.recipe.fatal]
    assert len(healthy) >= 30
    hits = []
    for number, case in enumerate(healthy):
        shown = events(score, case, tmp_path / str(number))
        lines = [line for text in case.logs.values() for line in text.split("\n")]
        for one in learnt:
            hit = any(SignatureSet(one.lesson.signatures).matches(event) for event in shown)
            for signature in one.lesson.signatures:
                if not signature.near:
                    hit = hit or any(compile_pattern(signature.pattern).fits(line) for line in lines)
            hits += [(one.lesson.id, case.recipe.half)] if hit else []
    assert hits == []


def test_a_lesson_is_of_its_own_fault(learnt: list[Learnt], score: Any, tmp_path: Path) -> None:
    """Of a pair of a lesson and a fault of another cause hardly one in a thousand fits."""
    wrong, pairs = [], 0
    for number, case in enumerate(score.cases("open")):
        shown = events(score, case, tmp_path / str(number))
        causes = {case.recipe.cause, *case.recipe.also}
        for one in learnt:
            if causes & {one.recipe.cause, *one.recipe.also} - {"unknown"} or case.recipe.name == one.recipe.name:
                continue
            pairs += 1
            if any(SignatureSet(one.lesson.signatures).matches(event) for event in shown):
                wrong.append(f"{one.lesson.id} ({one.recipe.name}) on {case.recipe.name}")
    assert pairs > 4000
    assert len(wrong) <= pairs / 1000, wrong


def test_what_is_learnt_passes_lint(learnt: list[Learnt]) -> None:
    for one in learnt:
        examples = (one.lesson.example, *(further.example for further in one.lesson.further))
        for signature, example in zip(one.lesson.signatures, examples, strict=True):
            assert list(problems_of(signature, example)) == [], one.recipe.name
            assert compile_pattern(signature.pattern).fits(example)
        assert not one.lesson.near_miss or not compile_pattern(one.lesson.signature.pattern).fits(one.lesson.near_miss)
    by_id = {one.lesson.id: (one.lesson.signature, one.lesson.example) for one in learnt}
    assert list(ties(by_id.values())) == []
    assert sum(bool(one.lesson.near_miss) for one in learnt) >= 25


def test_nothing_of_the_run_is_in_the_file(learnt: list[Learnt], score: Any) -> None:
    """Paths, numbers with three digits, hosts, and what the logs call their models."""
    for one in learnt:
        text = file_text(one.lesson, "")
        own = FORMS.sub("", text.split("\n", 1)[1])
        found = re.search(r"/(?:data|tmp|opt|root|home|usr|workspace)\b|\d{3}|\.py\b(?!:)|(?i:qwen|llama)", own)
        assert not found, text


def test_planted_secrets_are_in_none_of_the_files(learnt: list[Learnt], score: Any, tmp_path: Path) -> None:
    """Each root, and a line that resembles it, says who ran it, where, and with which keys."""
    secrets = (
        "hf_" + "q7" * 15,
        "sk-" + "z3" * 14,
        "jane",
        "gpu-17",
        "corp.example",
        "10.20.30.40",
        "mistral",
        "s3cret-w0rd",
    )
    said = (
        f" for user jane at /srv/jane/run with token={secrets[0]} {secrets[1]} on gpu-17.corp.example (10.20.30.40)"
        f" as jane@corp.example of Mistral-7B by {secrets[7]}"
    )
    taught = 0
    for one in learnt:
        case, label = one.first, one.first.label
        logs = {}
        for name, text in case.logs.items():
            lines = text.split("\n")
            if name == label["file"]:
                root = lines[label["line"] - 1]
                lines[label["line"] - 1] = root + said
                lines.insert(0, f"INFO {score.bare(root)[:90]} once{said}")
            logs[name] = "\n".join(lines)
        folder = tmp_path / one.recipe.name
        sources = find_sources([str(path) for path in score.lay(replace(case, logs=logs), folder)])
        try:
            lesson = teach(diagnose_sources(sources, one.hidden), sources, one.hidden, {"A_TOKEN": "s3cret-w0rd"})
        except WorkFailed:
            continue
        taught += 1
        told = file_text(lesson, "") + lesson.root + lesson.template
        assert [secret for secret in secrets if secret in told.casefold()] == [], told
    assert taught >= 25
