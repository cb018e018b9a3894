"""A warm process that judges mutants of jobs: in a copy of the tree, each in a fork that runs its tests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
LIMIT_S = 180.0
"""Longest time for the tests of one mutant: what hangs is noticed."""
QUICK = ("-x", "-q", "--tb=line", "--assert=plain", "-m", "not slow", "-p", "no:cacheprovider", "-p", "pytest_timeout")
TABLE = "test_job_tables.py"
SHARED = {"test_verl_gates.py": ("grpo", "gkd", "sft"), "test_verl_options.py": ("grpo", "gkd", "sft")}
COPIED = ("jobs", "tests/jobs", "tests/gpu/project/jobs", "tests/golden/expected/jobs", "tests/cases/gate", "images")
COPIED += ("templates/fixes",)


def concerned(path: str) -> list[str]:
    """The tests for a file below `jobs`: of its job; those that name its module come first."""
    job, _, module = path.partition("/")
    job = job.removesuffix(".toml")
    files = [*HERE.glob(f"test_{job}_*.py"), *HERE.glob(f"test_{job}.py")]
    files += [HERE / name for name, jobs in SHARED.items() if job in jobs]
    if not module:
        return sorted(file.name for file in files if "plan_of" in file.read_text("utf-8"))
    stem = module.removesuffix(".py")
    names = {file.name: file.read_text("utf-8").count(stem) for file in files}
    rest = sorted(names, key=lambda name: (not name.endswith("_programs.py"), -names[name], name))
    return [f"{TABLE}::test_what_the_programs_of_a_job_take[{job}]", *rest]


class Worker:
    """A process of `main` below, with a copy of the tree in `folder`."""

    def __init__(self, folder: Path) -> None:
        argv = (sys.executable, str(Path(__file__)), str(folder))
        self._log = (folder.parent / f"{folder.name}.log").open("ab")
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def judge(self, path: str, text: str, files: list[str]) -> tuple[bool, str]:
        """Whether a test fails with `text` in the place of a file below `jobs`, and which one."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps({"path": path, "text": text, "files": files}) + "\n")
        self._process.stdin.flush()
        noticed, by = json.loads(self._process.stdout.readline())
        return noticed, by

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(30)
        self._log.close()


@contextlib.contextmanager
def worker(folder: Path) -> Iterator[Worker]:
    """A worker that ends with the block."""
    made = Worker(folder)
    try:
        yield made
    finally:
        made.close()


def copy_tree(to: Path) -> None:
    """Copy what the tests of jobs read; compiled Python stays behind."""
    for name in COPIED:
        subprocess.run(("mkdir", "-p", str(to / name)), check=True)
        subprocess.run(("cp", "-rT", str(CHECKOUT / name), str(to / name)), check=True)
    for file in (*CHECKOUT.glob("tests/*.py"), CHECKOUT / "pyproject.toml"):
        (to / file.relative_to(CHECKOUT)).write_bytes(file.read_bytes())
    subprocess.run(("find", str(to), "-name", "__pycache__", "-prune", "-exec", "rm", "-r", "{}", "+"), check=True)


def main() -> None:
    """Read mutants as lines of JSON, and say for each whether a test failed, and which."""
    tree = Path(sys.argv[1])
    copy_tree(tree)
    os.chdir(tree)
    others = (path for path in sys.path if Path(path or ".").resolve() != HERE)
    sys.path[:] = [str(tree / "tests"), str(tree / "tests/jobs"), str(tree / "jobs"), *others]
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    sys.dont_write_bytecode = True
    _warm()
    told = tree.parent / f"{tree.name}.out"
    for line in sys.stdin:
        asked = json.loads(line)
        file = tree / "jobs" / asked["path"]
        before = file.read_text("utf-8")
        file.write_text(asked["text"], "utf-8")
        try:
            code = _in_fork(asked["path"], [str(tree / "tests/jobs" / name) for name in asked["files"]], told)
        finally:
            file.write_text(before, "utf-8")
        print(json.dumps([code != 0, _first_failure(told) if code else ""]), flush=True)


def _warm() -> None:
    """Import what the tests import, and nothing of the jobs."""
    import fastapi.concurrency
    import gatebox
    import hypothesis
    import pytest
    import pytest_timeout
    import test_job_tables
    import urllib3
    import uvicorn

    import rlbox.cli
    import rlbox.job.resume
    import rlbox.target.target

    assert all((fastapi, gatebox, hypothesis, pytest, pytest_timeout, test_job_tables, urllib3, uvicorn, rlbox))
    with contextlib.suppress(ImportError):
        import pokerkit

        assert pokerkit


def _table_differs(path: str, tree: Path) -> bool:
    """Whether a job's table is another one, line by line up to the first that is; what its test says, in less time."""
    from itertools import zip_longest

    import test_job_tables

    expected = tree / f"tests/golden/expected/jobs/{Path(path).stem}.txt"
    lines = expected.read_text("utf-8").splitlines()
    return any(one != other for one, other in zip_longest(test_job_tables.table(Path(path).stem), lines))


def _in_fork(path: str, files: list[str], told: Path) -> int:
    child = os.fork()
    if child == 0:
        os.setsid()
        output = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(output, number)
        import pytest

        code = 99
        try:
            if path.endswith(".toml") and _table_differs(path, Path.cwd()):
                print(f"FAILED {TABLE}", flush=True)
                os._exit(1)
            code = int(pytest.main([*QUICK, *files]))
        finally:
            os._exit(code)
    until = time.monotonic() + LIMIT_S
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > until:
            _end(child)
            os.waitpid(child, 0)
            status = 1 << 8
            break
        time.sleep(0.01)
    _end(child)  # what a broken program left running
    return os.waitstatus_to_exitcode(status)


def _end(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _first_failure(told: Path) -> str:
    lines = told.read_text("utf-8", "replace").splitlines()
    found = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return found[0].split(" - ")[0].rpartition("/")[2] if found else "no end"


if __name__ == "__main__":
    main()
