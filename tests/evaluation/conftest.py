"""A real sandbox for the tests of the evaluation, and a folder with a suite of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playbox import adding, write_rows

from rlbox.evaluation.sandbox_client import run_sandbox_and_yield_url


@pytest.fixture(scope="session")
def sandbox_url() -> Iterator[str]:
    with run_sandbox_and_yield_url("", 10, 1024) as url:
        yield url


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with problems, and the suite `adding` of twelve of them."""
    write_rows(tmp_path / "problems/adding.jsonl", adding(12))
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites/adding.toml").write_text('title = "adding"\nfile = "adding.jsonl"\nrows = 12\n')
    return tmp_path
