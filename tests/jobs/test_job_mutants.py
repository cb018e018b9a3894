"""A sample of the mutants of jobs is noticed; the campaign takes all. And what the generator leaves alone."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mutant_worker import concerned, copy_tree, worker
from mutants import JOBS, READ_BY_PEOPLE, UNREACHED, Mutant, every_mutant, spec_mutants

from rlbox.foreign import toml_table

pytestmark = pytest.mark.slow

FROM = ("gkd.toml", "grpo/proof.py", "holdem/answer.py", "xdan/answers.py")
SAMPLE = 10


@pytest.fixture(scope="module")
def mutants() -> list[Mutant]:
    return every_mutant(FROM)


def test_a_sample_is_noticed(mutants: list[Mutant], tmp_path: Path) -> None:
    drawn = sorted(mutants, key=lambda mutant: hashlib.sha256(mutant.name.encode()).hexdigest())[:SAMPLE]
    with worker(tmp_path / "tree") as judge:
        as_it_is = "gkd.toml"
        assert judge.judge(as_it_is, (JOBS / as_it_is).read_text("utf-8"), concerned(as_it_is)) == (False, "")
        alive = [one.name for one in drawn if not judge.judge(one.path, one.text, concerned(one.path))[0]]
    assert len(alive) <= 1, alive


def test_the_same_files_make_the_same_mutants(mutants: list[Mutant]) -> None:
    assert every_mutant(FROM) == mutants
    assert len({mutant.name for mutant in mutants}) == len(mutants) > 100


def test_the_copy_of_the_tree_holds_what_the_tests_of_jobs_import(tmp_path: Path) -> None:
    copy_tree(tmp_path)
    path = os.pathsep.join(str(tmp_path / name) for name in ("tests", "tests/jobs", "jobs"))
    env = {**os.environ, "PYTHONPATH": path, "PYTEST_ADDOPTS": ""}
    argv = (sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests/jobs")
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]


def test_what_only_people_read_stays() -> None:
    def people_read(value: object) -> list[str]:
        if isinstance(value, list):
            return [text for item in value for text in people_read(item)]
        if not isinstance(value, dict):
            return []
        own = [str(item) for key, item in value.items() if key in READ_BY_PEOPLE and not isinstance(item, dict)]
        return own + [text for item in value.values() for text in people_read(item)]

    before = set(people_read(toml_table((JOBS / "gkd.toml").read_text("utf-8"))))
    for _, text in spec_mutants(JOBS / "gkd.toml"):
        assert set(people_read(toml_table(text))) <= before


def test_what_is_left_out_is_there() -> None:
    for name in UNREACHED:
        file, _, function = name.partition(":")
        assert f"def {function}(" in (JOBS / file).read_text("utf-8") if function else (JOBS / file).is_file()


def test_a_table_is_written_as_it_is_read() -> None:
    from mutants import toml_text

    for path in JOBS.glob("*.toml"):
        data = toml_table(path.read_text("utf-8"))
        assert json.dumps(toml_table(toml_text(data))) == json.dumps(data)
