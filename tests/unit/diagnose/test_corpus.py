"""Diagnoses of a corpus of real logs (`RLBOX_CORPUS`: a folder with `cases.jsonl` and `logs/`)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fakes import CHECKOUT

from rlbox.config.project import Project
from rlbox.diagnose.diagnosis import diagnose_paths
from rlbox.diagnose.first_fatal import find_first_fatal
from rlbox.diagnose.signatures import SignatureSet, load_signatures
from rlbox.logs.lines import strip_ansi_escapes

CORPUS = Path(os.environ.get("RLBOX_CORPUS") or "no-corpus").resolve()  # no log is read through a link or `..`
LEAST_CAUSES, LEAST_LINES = 0.95, 0.96
pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason="RLBOX_CORPUS names no corpus")


@pytest.fixture(scope="module")
def catalogue() -> SignatureSet:
    return load_signatures(Project(folder=CHECKOUT).own_pack_and_shipped_fix_files())


@pytest.fixture(scope="module")
def answers(catalogue: SignatureSet) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each case with the answer to its log."""
    cases = [json.loads(row) for row in (CORPUS / "cases.jsonl").read_text().splitlines()]
    return [(case, diagnose_paths([log_of(case)], catalogue).as_json()) for case in cases]


def log_of(case: dict[str, Any]) -> Path:
    return CORPUS / "logs" / f"{case['id']}.log"


def is_line(case: dict[str, Any], number: int, text: str) -> bool:
    return number == case["first_fatal_line"] or text == strip_ansi_escapes(case["first_fatal"]).strip()


def test_the_first_fatal_line_is_named(answers: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    asked = [(case, answer["first_fatal"]) for case, answer in answers if case["fatal"]]
    missed = [case["id"] for case, first in asked if not first or not is_line(case, first["line"], first["text"])]
    assert len(missed) <= (1 - LEAST_LINES) * len(asked), missed


def test_no_healthy_log_alarms(answers: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    assert [case["id"] for case, answer in answers if not case["fatal"] and answer["fatal"]] == []


def test_the_catalogue_names_the_cause(answers: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    asked = [(case, answer["cause"]) for case, answer in answers if case["fatal"]]
    wrong = [(case["id"], cause) for case, cause in asked if cause not in {case["cause"], *case.get("also_accept", ())}]
    assert len(wrong) <= (1 - LEAST_CAUSES) * len(asked), wrong


def test_whoever_follows_a_log_finds_the_same_line(
    answers: list[tuple[dict[str, Any], dict[str, Any]]], catalogue: SignatureSet
) -> None:
    for case, answer in answers:
        spot = find_first_fatal(log_of(case), catalogue)
        first = answer["first_fatal"]
        assert (spot and spot.number) == (first and first["line"]), case["id"]
