"""A failed run's fatal line, and what the fix catalogue knows of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import CHECKOUT, make_line_block

from rlbox.config.project import Project
from rlbox.diagnose.first_fatal import (
    SIGNATURES_FILE,
    FirstFatalFinder,
    find_failure_signature_of_line,
    find_first_fatal,
    read_run_signatures_or_empty,
)
from rlbox.diagnose.signatures import LogSignature
from rlbox.fixes.catalogue import load_fix_catalogue
from rlbox.fixes.render import render_signatures_json

FIXES = load_fix_catalogue(Project(folder=CHECKOUT))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run directory with the signatures of the shipped catalogue."""
    (tmp_path / "spec").mkdir()
    (tmp_path / SIGNATURES_FILE).write_text(render_signatures_json(FIXES))
    return tmp_path


def known_of(run_dir: Path, *lines: str) -> LogSignature | None:
    """Return what is known of the first fatal line of a log."""
    finder = FirstFatalFinder(catalogue=read_run_signatures_or_empty(run_dir))
    finder.feed(make_line_block(lines))
    return finder.first_fatal.known if finder.first_fatal else None


def test_the_reason_may_stand_beside_the_line(run_dir: Path) -> None:
    wrapper = "RuntimeError: Ninja build failed. Ninja output:"
    reason = "/usr/bin/ld: cannot find -lcudart: No such file or directory"
    for lines in ((wrapper, reason), (reason, wrapper)):
        found = known_of(run_dir, *lines)
        assert found is not None
        assert found.fix == "lcudart-link"


def test_a_known_line_in_a_traceback_without_its_exception_is_found(run_dir: Path) -> None:
    log = run_dir / "train.log"
    frame = 'File "/srv/slime/train.py", line 24, in train actor = create_training_models(args)'
    head = "Timer train_wait start Traceback (most recent call last):"
    log.write_text(f"{head}\n{frame}\nTorchMemorySaver observes invalid LD_PRELOAD.\n")
    found = find_first_fatal(log, read_run_signatures_or_empty(run_dir))
    assert found is not None
    assert found.known is not None
    assert found.known.fix == "memory-saver-without-hook"


def test_what_nobody_knows_stays_unknown(run_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert find_failure_signature_of_line("ValueError: the reward is a banana", run_dir) is None
    empty = tmp_path_factory.mktemp("no-signatures")
    assert find_failure_signature_of_line("ray: command not found", empty) is None
    (empty / "spec").mkdir()
    (empty / SIGNATURES_FILE).write_text("torn")
    assert find_failure_signature_of_line("ray: command not found", empty) is None


def test_a_benign_warning_is_no_cause(run_dir: Path) -> None:
    for fix in FIXES:
        if fix.id.startswith("benign-"):
            assert [row.example for row in fix.signature if find_failure_signature_of_line(row.example, run_dir)] == []


def test_an_exception_of_a_signature_is_another_story(run_dir: Path) -> None:
    for line, known in (
        ("OSError: [Errno 28] No space left on device", "disk-full"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "gpu-oom-training"),
        ("OSError: [Errno 98] Address already in use", "stale-processes-hold-port"),
    ):
        found = find_failure_signature_of_line(line, run_dir)
        assert found is not None
        assert found.fix == known
    for line, other in (
        ("NCCL WARN Call to posix_fallocate failed : No space left on device", "disk-full"),
        ("(EngineCore pid=3) torch.OutOfMemoryError: CUDA out of memory.", "gpu-oom-training"),
        ("NCCL WARN Call to bind failed: Address already in use", "stale-processes-hold-port"),
    ):
        found = find_failure_signature_of_line(line, run_dir)
        assert found is None or found.fix != other


@pytest.mark.parametrize(
    "neighbour",
    [
        "/opt/extra/verl/engine.py:32: UserWarning: x is not available: ModuleNotFoundError(\"No module named 'x'\")",
        "(TaskRunner pid=6) WARNING 11-22 09:33:27 [cuda.py:230] Failed to import: No module named 'x'",
        "2026-11-22 09:32:55,909\tINFO worker.py:2038 -- No module named 'x'",
    ],
)
def test_a_neighbour_that_only_warns_is_no_reason(run_dir: Path, neighbour: str) -> None:
    line = "ImportError: vllm.vllm_flash_attn requires the CUDA flash attention extensions"
    assert [known_of(run_dir, *lines) for lines in ((neighbour, line), (line, neighbour))] == [None, None]
