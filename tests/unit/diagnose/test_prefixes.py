"""What stands before a line is taken off, whoever put it there, and who only tells of an end is no root."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from fakes import CHECKOUT, load_cases

from rlbox.config.project import Project
from rlbox.diagnose.diagnosis import diagnose_paths
from rlbox.diagnose.lines import parse_clock, parse_line
from rlbox.diagnose.patterns import CausalRole, classify_causal_role
from rlbox.diagnose.report import ROLES
from rlbox.diagnose.signatures import load_signatures

CASES = load_cases("diagnose", "test_prefixes")
ERRORS = CASES["ERRORS"]
TRACE = CASES["TRACE"]
CATALOGUE = load_signatures(Project(folder=CHECKOUT).own_pack_and_shipped_fix_files())
ENDS = CASES["ENDS"]


@pytest.mark.parametrize("line", ERRORS)
def test_an_error_is_one_whatever_stands_before_it(line: str) -> None:
    row = parse_line(1, line)
    assert (row.body, row.level) == ("boom", 3)
    assert not row.clock or parse_clock(row.clock)


def test_lines_of_a_step_of_docker_that_failed_lose_their_seconds() -> None:
    assert parse_line(1, "12.34 E: Unable to locate package nothing").body == "E: Unable to locate package nothing"
    assert parse_line(1, "12.34 tokens a second").body == "12.34 tokens a second"


@pytest.mark.parametrize(
    "form",
    [
        lambda text: json.dumps({"level": "error", "msg": "it failed", "exc_info": text, "ts": 1}),
        lambda text: json.dumps({"severity": "ERROR", "message": text}),
        lambda text: "ERROR it failed: " + text.replace("\n", "\\n"),
        lambda text: f"failed with {text.encode()!r}",
    ],
)
def test_a_traceback_may_be_written_as_one_line(tmp_path: Path, form: Callable[[str], str]) -> None:
    log = tmp_path / "a.log"
    log.write_text(form("\n".join(TRACE[:-1])) + "\n")
    found = diagnose_paths([log], CATALOGUE)
    assert found.root is not None
    assert (found.root.text, found.root.line_number, len(found.root.event.frames_of_all_exceptions)) == (
        TRACE[-2],
        1,
        2,
    )
    assert found.as_json()["first_fatal"]["text"] == TRACE[-2]


def test_what_a_panic_of_rust_says_needs_no_word_of_failure(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("thread 'main' panicked at src/main.rs:12:5:\nodd layers\nnote: run with `RUST_BACKTRACE=1`\n")
    assert diagnose_paths([log], CATALOGUE).as_json()["first_fatal"]["line"] == 2


@pytest.mark.parametrize("head", ["Error: ", "hit an exception: ", "batch 7: "])
def test_what_stands_before_a_traceback_alone_is_no_prefix(tmp_path: Path, head: str) -> None:
    log = tmp_path / "a.log"
    log.write_text("\n".join((f"{head}{TRACE[0]}", *TRACE[1:-1], f"{head}no space is left")))
    found = diagnose_paths([log], CATALOGUE)
    assert found.root is not None
    assert found.root.text == TRACE[-2]


@pytest.mark.parametrize("line", ENDS)
def test_who_tells_of_an_end_is_no_root(line: str) -> None:
    assert classify_causal_role(line) == "death"


def test_who_heard_of_it_is_a_victim() -> None:
    assert (
        classify_causal_role("[Rank 4] Observed flight recorder dump signal from another rank via TCPStore.")
        == "victim"
    )


def test_roles_of_a_chain_all_have_a_name() -> None:
    assert {*ROLES} == {*get_args(CausalRole)} - {"noise"}


def test_the_reason_below_an_error_of_nccl_is_read_without_a_traceback(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    log.write_text(
        "[rank1]: torch.distributed.DistBackendError: NCCL error in: /c10d/NCCLUtils.cpp:94, unhandled cuda error\n"
        "[rank1]: ncclUnhandledCudaError: Call to CUDA function failed.\n"
        "[rank1]: Last error:\n"
        "[rank1]: Cuda failure 802 'system not yet initialized'\n"
    )
    found = diagnose_paths([log], CATALOGUE).as_json()
    assert (found["first_fatal"]["line"], found["cause"]) == (1, "fabric-manager-down")
