"""`rlbox report`: where the file goes, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes import Folder, Rlbox
from following import Follow
from reportbox import plan_of, write_run


@pytest.fixture
def disk(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder.target("local")
    monkeypatch.setenv("RLBOX_DATA", str(tmp_path / "disk"))
    write_run(tmp_path / "disk/runs/holdem-1", samples=5, steps=5)
    return tmp_path / "disk"


def test_the_latest_run_into_the_working_folder(
    rlbox: Rlbox, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = rlbox("report")
    assert (said.code, said.out, said.err) == (0, "holdem-1.html\n", "")
    assert (tmp_path / "holdem-1.html").read_text().startswith("<!doctype html>")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".holdem")] == []


def test_the_folder_of_a_run_from_elsewhere(rlbox: Rlbox, disk: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    (disk / "runs/holdem-1").rename(moved)
    (moved / "resources.jsonl").unlink()
    said = rlbox("report", str(moved), "--out", str(tmp_path / "x.html"))
    assert (said.code, said.err) == (0, "left out: resources.jsonl: missing\n")
    assert rlbox("report", str(moved), "-q", "--out", str(tmp_path / "x.html")).err == ""


def test_it_opens_no_browser_by_itself(
    rlbox: Rlbox, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    out = str(tmp_path / "x.html")
    rlbox("report", "--out", out)
    assert opened == []
    assert rlbox("report", "--out", out, "--open", "yes").err == ""
    assert rlbox("report", "--out", out, "--open", "yes", "--dry-run").code == 0
    assert opened == [f"file://{out}"]


def test_without_a_browser_that_is_said(
    rlbox: Rlbox, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webbrowser.open", lambda address: False)
    out = str(tmp_path / "x.html")
    said = rlbox("report", "--out", out, "--open")
    assert (said.code, said.out) == (0, f"{out}\n")
    assert said.err == f"no browser was found here; the page is file://{out}\n"


def test_a_run_beside_itself_is_refused(rlbox: Rlbox, disk: Path, follow: Follow) -> None:
    plan = plan_of("holdem-1", "holdem")
    for name in ("holdem-1", "holdem-2"):
        if name != "holdem-1":
            write_run(disk / "runs" / name, samples=5, steps=5)
        (disk / "runs" / name / "plan.json").write_text(json.dumps(plan))
    step = follow("report", "holdem-1", "holdem-1", "--dry-run")
    assert step.said.code == 2
    assert "both names are of run holdem-1, which does not differ from itself" in step.said.err
    listed = follow.rlbox(*step.commands({})[0])
    assert "holdem-2" in listed.out
    follow.changed(step, ["report", "holdem-1", "holdem-2", "--dry-run"], 0)
    assert rlbox("report", "holdem-2", str(disk / "runs/holdem-2"), "--dry-run").code == 2
