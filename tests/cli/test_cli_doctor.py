"""`rlbox doctor`: what it prints, its exit codes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import EngineSocket, Folder, Rlbox

from rlbox.doctor.report import DoctorReport
from rlbox.findings import Finding

SMALL = Finding(
    id="shm-too-small", title="shared memory is too small", seen="64 MiB", where="shm", remedy="--shm-size=2g"
)  # fmt: skip


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[DoctorReport]:
    """What the examinations of a test find, one after the other."""
    reports: list[DoctorReport] = []
    monkeypatch.setattr("rlbox.doctor.host._examine", lambda app, name, data, gpus, budget_s: reports.pop(0))
    return reports


def test_nothing_found_is_silent(rlbox: Rlbox, found: list[DoctorReport]) -> None:
    found.append(DoctorReport(checks=31, seconds=4.2))
    said = rlbox("doctor")
    assert (said.code, said.out, said.err) == (0, "", "doctor: 31 checks, nothing found, 4.2 s\n")


def test_an_error_is_named_with_its_remedy(rlbox: Rlbox, found: list[DoctorReport]) -> None:
    found.append(DoctorReport(findings=(SMALL,), checks=31, seconds=4.2))
    said = rlbox("doctor")
    assert said.code == 1
    assert said.out == (
        "error: shm-too-small: shared memory is too small: 64 MiB\n  where: shm\n  next:  --shm-size=2g\n"
    )
    assert said.err == "doctor: 31 checks, 1 error, 4.2 s\n"


def test_a_warning_is_no_failure(rlbox: Rlbox, found: list[DoctorReport]) -> None:
    found.append(DoctorReport(findings=(replace(SMALL, level="warning"),), checks=31, seconds=4.2))
    said = rlbox("doctor")
    assert said.code == 0
    assert said.out.startswith("warning: shm-too-small")


@pytest.mark.allow("sockets", "processes")
def test_a_host_without_an_engine(rlbox: Rlbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setattr("rlbox.doctor.host.list_processes_in_same_container", lambda: ())
    said = rlbox("doctor")
    assert said.code == 1
    assert said.out.startswith("error: engine-missing: the container engine cannot be used: cannot connect to Docker\n")
    assert f"where: unix://{tmp_path}/none.sock" in said.out


@pytest.mark.allow("sockets", "processes")
def test_names_of_dotenv_that_are_not_exported(
    rlbox: Rlbox, folder: Folder, engine: EngineSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.answers["/info"] = (200, b"{}")
    folder.write(".env", "RLBOX_TEST_TOKEN=secret\n")
    monkeypatch.setattr("rlbox.doctor.host.check_engine", lambda requirements: ())
    monkeypatch.setattr("rlbox.doctor.host.list_processes_in_same_container", lambda: ())
    said = rlbox("doctor")
    assert said.code == 1
    assert "env-not-exported: names of .env are not in the environment: RLBOX_TEST_TOKEN" in said.out
    assert "secret" not in said.out + said.err
