"""docs/proof.md is of the kept runs, and their logs are those of their records."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from fakes import CHECKOUT
from packed import read_packed


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("proof_page", CHECKOUT / "scripts/proof.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PROOF = script()


def test_the_page_is_of_the_kept_runs() -> None:
    assert PROOF.PAGE.read_text("utf-8") == PROOF.page()
    assert PROOF.TESTED.read_text("utf-8") == PROOF.tested_runs()
    assert {row["run"]["job"] for row in PROOF.kept()} == set(PROOF.JOBS)


@pytest.mark.parametrize("name", [row["name"] for row in PROOF.kept()])
def test_a_log_holds_the_lines_that_its_record_names(name: str) -> None:
    row = next(row for row in PROOF.kept() if row["name"] == name)
    log = read_packed(PROOF.KEPT)[f"{name}/stages.log"].decode()
    seen = [
        rule["seen"].strip()
        for stage in row["run"]["stages"]
        if stage["name"] in PROOF.proven(row["run"])
        for rule in stage["gate"]
        if rule["kind"] == "require"
    ]
    assert seen or PROOF.stopped(row["run"])
    assert [line for line in seen if line[:60] not in log] == []


def test_a_stage_with_a_broken_rule_is_not_proven() -> None:
    held, broken = {"state": "held"}, {"state": "broken"}
    stages = [
        {"name": "a", "state": "passed", "gate": [held]},
        {"name": "b", "state": "passed", "gate": [held, broken]},
        {"name": "c", "state": "passed", "gate": []},
        {"name": "d", "state": "failed", "gate": [held]},
    ]
    assert PROOF.proven({"stages": stages}) == ["a"]
    assert PROOF.stopped({"stages": stages}) == "d"


def test_a_page_of_other_runs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "proof.md"
    page.write_text("another")
    monkeypatch.setattr(PROOF, "PAGE", page)
    monkeypatch.setattr(PROOF, "CHECKOUT", tmp_path)
    monkeypatch.setattr("sys.argv", ["proof.py", "--check"])
    with pytest.raises(SystemExit, match="run python scripts/proof"):
        PROOF.main()
