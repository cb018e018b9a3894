"""ssh/connection: one call of ssh holds it, however often a machine that starts refuses. The real one: tests/engine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlbox.errors import MachineError
from rlbox.ssh.connection import SshAddress, SshConnection

pytestmark = pytest.mark.allow("processes")
REFUSES_TWICE = """#!/bin/sh
echo call >>{log}
[ "$(wc -l <{log})" -gt 2 ] || {{ echo 'Connection refused' >&2; exit 255; }}
echo ready
exec cat >/dev/null
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log of an `ssh` that refuses twice."""
    log = tmp_path / "calls"
    (tmp_path / "ssh").write_text(REFUSES_TWICE.format(log=log))
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("rlbox.ssh.connection._RETRY_PAUSE_S", 0.01)
    return log


def address(folder: Path) -> SshAddress:
    return SshAddress(host="host", user="root", port=22, known_hosts=folder / "known_hosts")


def test_a_machine_that_starts_is_asked_again_and_held_once(calls: Path, tmp_path: Path) -> None:
    with SshConnection(address(tmp_path), retry_s=30.0):
        assert calls.read_text().splitlines() == ["call"] * 3


def test_without_patience_the_first_refusal_ends_it(calls: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(MachineError, match="ssh to root@host failed: Connection refused"),
        SshConnection(address(tmp_path)),
    ):
        pass
    assert calls.read_text().splitlines() == ["call"]


def test_ssh_asks_for_no_password(tmp_path: Path) -> None:
    for one in (address(tmp_path), SshAddress(host="host")):
        assert "BatchMode=yes" in one.to_argv_before_destination()


def test_no_ssh_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineError, match="there is no ssh on PATH"), SshConnection(address(tmp_path), retry_s=30.0):
        pass
