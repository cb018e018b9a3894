"""The programs of `gkd`: what the check refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from gkd import check


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
