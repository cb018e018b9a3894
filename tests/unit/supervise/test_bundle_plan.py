"""What a bundle takes of a run directory."""

from __future__ import annotations

import pytest

from rlbox.supervise.bundle import LOG_TAIL_BYTES, RunFile, select_files


def chosen(*files: RunFile, full: bool = False) -> tuple[list[tuple[str, int]], list[str]]:
    found = select_files(files, full=full)
    return [(taken.name, taken.keep) for taken in found.taken], [left.name for left in found.left]


def test_order_is_that_of_names() -> None:
    files = [RunFile(name=name, bytes=1) for name in ("run.json", "events.jsonl", "stages/1-a/stage.log")]
    assert chosen(*files)[0] == [("events.jsonl", 1), ("run.json", 1), ("stages/1-a/stage.log", 1)]


def test_long_logs_keep_their_end() -> None:
    log = RunFile(name="stages/1-a/stage.log", bytes=LOG_TAIL_BYTES + 7)
    assert chosen(log)[0] == [(log.name, LOG_TAIL_BYTES)]
    assert chosen(log, full=True)[0] == [(log.name, log.bytes)]


@pytest.mark.parametrize(
    ("name", "size", "why"),
    [
        ("stages/1-a/model.safetensors", 10, "no text of a known kind: perhaps a model, a checkpoint or data"),
        (
            "stages/1-a/checkpoints/step-1/optimizer",
            10,
            "no text of a known kind: perhaps a model, a checkpoint or data",
        ),
        ("rollouts.jsonl", 9_000_000, "larger than 8 MB"),
        ("job/.env", 10, "may hold secrets"),
        (".reserve", 10, "a file of rlbox's own, or hidden"),
    ],
)
def test_left_out(name: str, size: int, why: str) -> None:
    (left,) = select_files([RunFile(name=name, bytes=size)], full=True).left
    assert (left.name, left.why) == (name, why)


def test_evidence_is_taken_whatever_it_is() -> None:
    name = "stages/1-a/evidence/nccl/rank0"
    assert chosen(RunFile(name=name, bytes=3)) == ([(name, 3)], [])


def test_links_and_pipes_are_left() -> None:
    assert chosen(RunFile(name="stages/1-a/link.log", bytes=3, plain=False)) == ([], ["stages/1-a/link.log"])


def test_very_many_files_are_not_all_taken() -> None:
    found = select_files([RunFile(name=f"{number:05}.txt", bytes=1) for number in range(2500)], full=False)
    assert (len(found.taken), len(found.left)) == (2000, 500)
