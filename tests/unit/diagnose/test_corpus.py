"""First fatal lines and causes over a corpus of real logs (`RLBOX_CORPUS`: a folder with `cases.jsonl` and `logs/`)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fakes import CHECKOUT

from rlbox.diagnose.act.excerpt import read_fatal_line, scan_log
from rlbox.diagnose.act.fatals import SIGNATURES_FILE, find_known_cause
from rlbox.fixes.load import load_fixes
from rlbox.fixes.manifest import signature_list
from rlbox.spec.project import Project

CORPUS = Path(os.environ.get("RLBOX_CORPUS") or "no-corpus").resolve()  # no log is read through a link or `..`
pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason="RLBOX_CORPUS names no corpus")


@pytest.fixture(scope="module")
def cases() -> list[dict[str, Any]]:
    return [json.loads(row) for row in (CORPUS / "cases.jsonl").read_text().splitlines()]


def log_of(case: dict[str, Any]) -> Path:
    return CORPUS / "logs" / f"{case['id']}.log"


def test_the_first_fatal_line_is_named(cases: list[dict[str, Any]]) -> None:
    missed = []
    for case in cases:
        found = scan_log(log_of(case))
        right = found and (found.number == case["first_fatal_line"] or found.text == case["first_fatal"])
        if case["fatal"] and not right:
            missed.append((case["id"], found))
    assert len(missed) <= 1, missed


def test_no_healthy_log_alarms(cases: list[dict[str, Any]]) -> None:
    assert [(case["id"], found) for case in cases if not case["fatal"] and (found := scan_log(log_of(case)))] == []


def test_the_catalogue_names_the_cause(cases: list[dict[str, Any]], tmp_path: Path) -> None:
    fixes = load_fixes(Project(folder=CHECKOUT))
    heals = {fix.id: {*fix.heals, fix.id} for fix in fixes}
    (tmp_path / "spec").mkdir()
    (tmp_path / SIGNATURES_FILE).write_text(signature_list(fixes))
    wrong = []
    for case in (case for case in cases if case["fatal"]):
        spot = scan_log(log_of(case))
        known = find_known_cause(read_fatal_line(log_of(case), spot), tmp_path) if spot else None
        named = heals[known.id] if known else {"unknown"}
        if not named & {case["cause"], *case.get("also_accept", ())}:
            wrong.append((case["id"], case["cause"], known and known.id))
    assert len(wrong) <= 4, wrong
