"""The page of causes, versions and logs: made anew whenever a signature, a log or a cause comes or goes."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import CHECKOUT

from rlbox.config.project import Project
from scripts.docs.cause_docs import OUTSIDE, PAGE, CauseRow, cause_page, cause_rows, recorded_logs
from scripts.docs.fix_docs import Catalogue, load_catalogue

PROJECT = Project(folder=CHECKOUT)


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load_catalogue(PROJECT, CHECKOUT / "tests/faults")


@pytest.fixture(scope="module")
def rows(catalogue: Catalogue) -> tuple[CauseRow, ...]:
    return cause_rows(catalogue, CHECKOUT)


def test_the_page_is_current(rows: tuple[CauseRow, ...]) -> None:
    """Stale? `make docs` writes it."""
    assert (CHECKOUT / PAGE).read_text("utf-8") == cause_page(rows, PROJECT.template_dirs())


def test_every_cause_and_every_log_is_on_it(catalogue: Catalogue, rows: tuple[CauseRow, ...]) -> None:
    known = [cause for causes in catalogue.causes.family.values() for cause in causes]
    assert [row.cause for row in rows] == [*known, OUTSIDE]
    logs = recorded_logs(CHECKOUT / "tests/faultlab")
    text = (CHECKOUT / PAGE).read_text("utf-8")
    shown = {log.recipe for log in logs if log.half == "open" and log.causes}
    assert [name for name in sorted(shown) if f"`{name}`" not in text] == []
    assert [log.recipe for log in logs if log.half == "held" and f"`{log.recipe}`" in text] == []
    counted = {cause for log in logs for cause in log.causes} - {"unknown"}
    assert sorted(counted - set(known)) == []


def test_every_cause_was_recorded_or_says_why_not(rows: tuple[CauseRow, ...]) -> None:
    quiet = [row.cause for row in rows if not row.logs and not row.short and not row.absent]
    assert len(quiet) <= 3, quiet
    assert [row.cause for row in rows if not row.signatures] in ([OUTSIDE], ["slow-model-load", OUTSIDE])


def test_a_label_that_changes_makes_it_stale(rows: tuple[CauseRow, ...], tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir(parents=True)
    (folder / "recipes.toml").write_text('[one]\ncause = "disk-full"\n')
    (folder / "labels.json").write_text('{"one": {"a": {"versions": {"torch": "9.9", "x": "raise E(name)"}}, "b": {}}}')
    assert [(log.causes, log.versions, log.recipe, log.half) for log in recorded_logs(tmp_path)] == [
        (("disk-full",), "torch 9.9", "one", "open"),
        (("disk-full",), "", "one", "open"),
    ]
