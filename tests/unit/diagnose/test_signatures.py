"""The shipped signatures: each is found by a scan, is of no log alone, ties with none, and fits its own example."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fakes import CHECKOUT, make_line_block

from rlbox.config.project import Project
from rlbox.diagnose.candidates import classify_event
from rlbox.diagnose.diagnosis import diagnose_paths
from rlbox.diagnose.events import make_line_event
from rlbox.diagnose.lines import LEVEL_WARNING, parse_line
from rlbox.diagnose.signatures import LogSignature, SignatureSet, extract_signatures, read_stored_signatures_or_empty
from rlbox.fixes.catalogue import load_fix_catalogue
from rlbox.foreign import parse_untrusted_toml
from rlbox.logs.patterns import find_candidate_line_indexes

NEAR_MISSES = CHECKOUT / "tests/cases/diagnose/near_misses.txt"


def _rows() -> list[tuple[LogSignature, str, str]]:
    """Return each signature with its example and what it must not fit."""
    found = []
    for path in sorted((CHECKOUT / "templates/fixes").glob("*.toml")):
        fix = {**parse_untrusted_toml(path.read_text("utf-8")), "id": path.stem}
        rows = fix.get("signature", ())
        found += [
            (signature, row["example"], row.get("unlike", ""))
            for signature, row in zip(extract_signatures([fix]), rows, strict=True)
        ]
    return found


ROWS = _rows()


OF_ONE_LOG = (
    r"/(?:home|root|mnt|data|workspace|tmp|opt|Users|scratch|cfs|gpfs|lustre|nvme)/"  # a path
    r"|(?!127|0\\?\.0)\b\d{1,3}(?:\\?\.\d{1,3}){3}(?!\d)"  # an address
    r"|\bpid[=: ]+\d|(?<![\d.\\{,])\d{6,}"  # a number of a process
    r"|(?i:(?<![a-z])(?:qwen|llama-|llama\d|deepseek-|mixtral|gemma-|gemma\d|chatglm|internlm|phi-\d))"  # a model
)


def test_each_is_found_by_a_scan() -> None:
    assert len(ROWS) > 400
    for one, example, _ in ROWS:
        if one.role != "benign":  # what is harmless need not be found
            assert find_candidate_line_indexes(
                SignatureSet([one]).line_prefilter_expressions, make_line_block([example])
            ), (
                one.fix,
                example,
            )


def test_none_asks_for_what_is_of_one_log_alone() -> None:
    assert [(one.fix, one.pattern) for one, _, _ in ROWS if re.search(OF_ONE_LOG, one.pattern)] == []


def test_each_that_alarms_says_what_is_wrong_in_both_languages() -> None:
    """The title of a fix tells what it brings about: as a cause it would say the contrary."""
    alarming = {one.fix for one, _, _ in ROWS if one.role != "benign"}
    fixes = [fix for fix in load_fix_catalogue(Project(folder=CHECKOUT)) if fix.id in alarming]
    assert [fix.id for fix in fixes if not fix.failure or fix.failure == fix.failure_zh] == []


def test_none_ties_with_one_of_another_cause() -> None:
    """Of two that fit one line, something other than the order of files must say which counts."""
    found = []
    for one, example, _ in ROWS:
        for other, _, _ in ROWS:
            is_rival = other.cause and one.cause and other.cause != one.cause and other.role == one.role
            is_apart = (other.context_pattern or other.excluded_context or other.above_pattern) and not (
                one.context_pattern or one.excluded_context or one.above_pattern
            )
            if (
                is_rival
                and not is_apart
                and other.specificity == one.specificity
                and SignatureSet([other]).has_match(example)
            ):
                found.append((one.cause, other.cause, example))
    assert found == []


def test_each_fits_its_example_and_not_what_it_is_unlike() -> None:
    catalogue = SignatureSet(one for one, _, _ in ROWS)
    assert [one.fix for one, example, _ in ROWS if one not in catalogue.find_matching_in_catalogue_order(example)] == []
    assert [
        one.fix for one, _, unlike in ROWS if unlike and one in catalogue.find_matching_in_catalogue_order(unlike)
    ] == []


def test_each_is_the_best_match_of_its_own_example() -> None:
    """No general signature comes before the one that was written for a message."""
    catalogue = SignatureSet(one for one, _, _ in ROWS)
    lost = []
    for one, example, _ in ROWS:
        matches = catalogue.match_event(make_line_event(parse_line(1, example), 3))
        if not (one.context_pattern or one.above_pattern or (matches and matches[0].signature.fix == one.fix)):
            lost.append((one.fix, matches[0].signature.fix if matches else "", example))
    assert lost == []


@pytest.mark.parametrize(
    "before",
    ["", pytest.param("INFO 09-19 10:02:11 [launcher.py:47] starting\nstep 1 loss 1.25\n", marks=pytest.mark.slow)],
)
def test_each_error_is_diagnosed_by_its_own_fix(before: str, tmp_path: Path) -> None:
    catalogue = SignatureSet(one for one, _, _ in ROWS)
    path = tmp_path / "a.log"
    lost = []
    for one, example, _ in ROWS:
        if (
            one.role == "benign"
            or one.context_pattern
            or one.above_pattern
            or parse_line(1, example).level == LEVEL_WARNING
        ):
            continue
        path.write_text(f"{before}{example}\n", encoding="utf-8")
        fix = diagnose_paths([path], catalogue).as_json()["fix"]
        if fix != one.fix:
            lost.append((one.fix, fix, example))
    assert lost == []


def test_signature_of_the_lines_above_needs_them(tmp_path: Path) -> None:
    catalogue = SignatureSet(one for one, _, _ in ROWS)
    path = tmp_path / "a.log"
    crash = "!!!!!!! Segfault encountered !!!!!!!\n"
    path.write_text(f'"POST /sleep?level=1 HTTP/1.1" 200 OK\n"POST /start_weight_update HTTP/1.1" 200 OK\n{crash}')
    assert diagnose_paths([path], catalogue).as_json()["fix"] == "weights-updated-asleep"
    path.write_text(f'"POST /sleep HTTP/1.1" 200 OK\n"POST /wake_up HTTP/1.1" 200 OK\n"POST /update_weights"\n{crash}')
    assert diagnose_paths([path], catalogue).as_json()["fix"] == "native-segfault"
    path.write_text(f'"POST /generate HTTP/1.1" 200 OK\n{crash}')
    assert diagnose_paths([path], catalogue).as_json()["fix"] == "native-segfault"


def test_exception_that_python_ignores_is_no_failure_whatever_matches(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(
        "step:1 - loss:0.3\nException ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f0d>\n"
        'Traceback (most recent call last):\n  File "dataloader.py", line 1664, in __del__\n'
        "RuntimeError: DataLoader worker (pid 27183) is killed by signal: Killed.\n"
    )
    assert not diagnose_paths([path], SignatureSet(one for one, _, _ in ROWS)).has_fatal_failure


def test_what_libraries_say_of_something_else_is_no_cause() -> None:
    catalogue = SignatureSet(one for one, _, _ in ROWS)
    rows = [row.split(" | ", 1) for row in NEAR_MISSES.read_text("utf-8").splitlines() if not row.startswith("#")]
    assert len(rows) > 40
    found = [
        (cause, line, classify_event(make_line_event(parse_line(1, line), 3), catalogue).cause_id_or_empty)
        for cause, line in rows
    ]
    assert [row for row in found if row[0] == row[2]] == []


@pytest.mark.parametrize(
    ("change", "known"),
    [({}, 1), ({"key_of_a_later_version": []}, 1), *(({"pattern": bad}, 0) for bad in ("(?=x)", ".*", 3)), (None, 0)],
)
def test_signatures_stored_with_a_run_are_read_or_none_is(
    change: dict[str, Any] | None, known: int, tmp_path: Path
) -> None:
    good = {"cause": "a", "fix": "a", "title": "A", "remedy": "b", "pattern": "no ray here"}
    stored = tmp_path / "signatures.json"
    stored.write_text(json.dumps([None if change is None else good | change]))
    assert len(read_stored_signatures_or_empty(stored).signatures) == known
