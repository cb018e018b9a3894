"""A real sandbox for the tests of the evaluation, and a folder with a suite of one's own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playbox import adding, write_rows


@pytest.fixture(scope="session")
def sandbox_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    words = [sys.executable, "-m", "rlbox.sandbox", "serve", "--port", "0"]
    words += ["--scratch", str(tmp_path_factory.mktemp("scratch")), "--cpu-s", "10"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        *_, last = server.stdout.readline(), server.stdout.readline()
        yield f"http://127.0.0.1:{int(last.rpartition(':')[2])}"
        server.terminate()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with problems, and the suite `adding` of twelve of them."""
    write_rows(tmp_path / "problems" / "adding.jsonl", adding(12))
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "adding.toml").write_text('title = "adding"\nfile = "adding.jsonl"\nrows = 12\n')
    return tmp_path
