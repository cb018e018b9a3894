"""Which runs can go, and what a removal that is cut leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlbox.errors import MachineError
from rlbox.record import run_store as removing
from rlbox.record.run_store import (
    RemovalCandidate,
    RunStore,
    delete_run_dir_and_host_record,
    format_removed_and_kept_runs,
    mark_latest_recent_and_unfinished_runs_kept,
    mark_unfinished_runs_kept,
    sum_file_sizes,
)
from rlbox.run.backend import open_container_runtime
from rlbox.system.files import write_atomic

pytestmark = pytest.mark.allow("processes")


def facts(
    run: str, began: float, *, job: str = "smoke", state: str = "failed", held: bool = False, ckpts: int = 0
) -> RemovalCandidate:
    paths = tuple(f"ckpt/global_step_{number}" for number in range(ckpts))
    return RemovalCandidate(
        run=run,
        job=job,
        state=state,
        started_unix_s=began,
        size_bytes=1000,
        may_be_running=held,
        checkpoint_paths=paths,
    )


ROWS = (
    facts("old-failed", 1),
    facts("old-passed", 2, state="passed"),
    facts("passed", 3, state="passed"),
    facts("with-weights", 4, ckpts=2),
    facts("going", 5, held=True),
    facts("latest", 6),
    facts("other-job", 0, job="sft"),
)


def gone(**asked: object) -> list[str]:
    found = mark_latest_recent_and_unfinished_runs_kept(
        ROWS, **{"started_before_unix_s": 100.0, "remove_runs_with_checkpoints": False, **asked}
    )  # type: ignore[arg-type]
    return [row.run for row in found if not row.kept_because]


def test_what_nothing_needs_goes() -> None:
    assert gone() == ["old-failed", "old-passed"]
    assert gone(remove_runs_with_checkpoints=True) == ["old-failed", "old-passed", "with-weights"]
    assert gone(started_before_unix_s=1.5) == ["old-failed"]


def test_each_that_stays_says_why() -> None:
    found = {
        row.run: row.kept_because
        for row in mark_latest_recent_and_unfinished_runs_kept(
            ROWS, started_before_unix_s=100, remove_runs_with_checkpoints=False
        )
    }
    assert found["passed"] == "it is the latest of job smoke that passed"
    assert found["with-weights"] == "it holds 2 checkpoints: --checkpoints to remove them, too"
    assert found["going"] == "it has not ended"
    assert found["latest"] == "it is the latest of job smoke"
    assert found["other-job"] == "it is the latest of job sft"


def test_what_is_named_goes_with_its_checkpoints() -> None:
    found = mark_unfinished_runs_kept([facts("a", 1, ckpts=1), facts("b", 2, held=True)])
    assert [row.kept_because for row in found] == ["", "it has not ended"]
    assert [*map(str, format_removed_and_kept_runs(found, done=True))] == [
        "removed run a, 1.0 kB",
        "  with checkpoint ckpt/global_step_0",
        "run b is kept, since it has not ended",
    ]


@pytest.fixture
def run_store(tmp_path: Path) -> RunStore:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/kept").write_text("x" * 100)
    run = tmp_path / "disk/runs/one"
    write_atomic(run / "plan.json", "{}")
    write_atomic(run / "stages/1-a/stage.log", "y" * 10)
    (run / "link").symlink_to(tmp_path / "outside")
    return RunStore(data_dir=tmp_path / "disk", open_runtime=open_container_runtime)


def test_links_are_neither_counted_nor_followed(run_store: RunStore) -> None:
    assert sum_file_sizes(run_store.run_dir("one")) == 12
    delete_run_dir_and_host_record(run_store, "one")
    assert not run_store.run_dir("one").exists()
    assert (run_store.data_dir.parent / "outside/kept").read_text() == "x" * 100
    assert run_store.list_run_dirs_newest_first() == []


def test_one_that_is_removed_in_part_is_no_run_and_goes_with_the_next_settling(
    run_store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(removing, "remove_tree", cut)
        with pytest.raises(KeyboardInterrupt):
            delete_run_dir_and_host_record(run_store, "one")
    assert run_store.list_run_dirs_newest_first() == []
    assert (run_store.trash_dir / "one/plan.json").exists()
    run_store.clean_up_dead_runs_already_locked()
    assert not run_store.trash_dir.exists()


def test_a_disk_that_refuses_loses_nothing(run_store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, goal: Path) -> None:
        raise PermissionError(13, "Permission denied", str(source))

    monkeypatch.setattr(removing, "rename_path", refuse)
    with pytest.raises(MachineError, match="run one cannot be removed: Permission denied"):
        delete_run_dir_and_host_record(run_store, "one")
    assert [run.name for run in run_store.list_run_dirs_newest_first()] == ["one"]
