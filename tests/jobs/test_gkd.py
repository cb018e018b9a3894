"""The note on runs that stand still as `gkd`: the split of the GPUs, the phases, and what its check refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from gkd import check
from jobplan import plan_of, stage_of

from rlbox.config.pattern import compile_re2


@pytest.mark.parametrize(
    ("actor", "teacher", "visible", "problem"),
    [
        (2, 2, 4, ""),
        (2, 2, 8, ""),
        (6, 4, 8, "6 actor + 4 teacher GPUs, 8 are visible: --set actor_gpus=4 --set teacher_gpus=4"),
        (2, 2, 3, "2 actor + 2 teacher GPUs, 3 are visible: --set actor_gpus=1 --set teacher_gpus=1"),
        (1, 1, 1, "1 actor + 1 teacher GPUs, 1 are visible: a machine with two GPUs"),
    ],
)
def test_gpu_split(actor: int, teacher: int, visible: int, problem: str) -> None:
    assert check.split_problem(actor, teacher, visible) == problem


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("(TaskRunner pid=133947) Generating train split: 0 examples [00:00, ? examples/s]", "data"),
        ("(TaskRunner pid=7433) Total training steps: 16", "init-model"),
        ("(TaskRunner pid=7433) Training Progress:   0%|          | 0/16 [00:00<?, ?it/s]", "steps"),
        ("Loading tokenizer", ""),
    ],
)
def test_phases_are_those_of_the_card(line: str, phase: str) -> None:
    phases = stage_of(plan_of("gkd"), "distill").phases
    found = [p.name for p in phases if any(compile_re2(begins).search(line) for begins in p.begins)]
    assert found == ([phase] if phase else [])
    assert all(p.silence_s >= 600 for p in phases)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Data as the run wants them."""
    (tmp_path / "train.parquet").write_bytes(b"x")
    return tmp_path / "train.parquet"


def asked(data: Path, monkeypatch: pytest.MonkeyPatch, **more: str) -> None:
    words = {"--actor-gpus": "2", "--teacher-gpus": "2", "--train-file": str(data)}
    words |= {f"--{key.replace('_', '-')}": value for key, value in more.items()}
    monkeypatch.setattr(sys, "argv", ["check", *(word for pair in words.items() for word in pair)])
    monkeypatch.setattr(check.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(check, "visible_gpus", lambda: 8)
    check.main()


def test_all_that_is_wrong_is_said_at_once(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked(data, monkeypatch)
    out = capsys.readouterr().out
    assert [line.partition("]")[0] for line in out.splitlines()] == ["[OK", "[OK", "[OK", "[check"]
    assert "[check] passed: 8 GPUs" in out
    with pytest.raises(SystemExit) as ended:
        asked(Path("/none"), monkeypatch, total_gpus="3")
    out = capsys.readouterr().out
    assert ended.value.code == 1
    assert [line.partition("]")[0] for line in out.splitlines()] == ["[FAIL", "[FAIL", "[OK"]
    assert "3 are visible" in out


@pytest.mark.parametrize(("size", "took_s", "warned"), [(2 << 20, 1.0, True), (2 << 20, 0.07, False), (10, 1.0, False)])
def test_slow_data_are_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    size: int,
    took_s: float,
    warned: bool,
) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(bytes(size))
    clock = iter((0.0, took_s))
    monkeypatch.setattr(check.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(check.importlib.util, "find_spec", lambda name: name)
    assert check.data_problem(path) == ""
    assert ("[WARN]" in capsys.readouterr().out) == warned


def test_interfaces_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check.socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth1")])
    assert check.interface_problem("nope0", "Iface\n\neth9 00000000 0\n").endswith("--set interface=eth9")
    assert check.interface_problem("nope0", "eth9 000011AC 0\n").endswith("--set interface=eth1")
    assert check.interface_problem("^lo") == ""
