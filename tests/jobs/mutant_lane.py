"""`make nightly ARGS=mutants/jobs`: every job with one thing changed, which the fast tests of that job must notice.

What was noticed is kept in a file of the cache by a digest of the mutant, its job and its tests: a lane that was killed
goes on where it stood. A full result is written to `docs/internal/job-mutants.md`.
"""

from __future__ import annotations

import queue
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from lanes import (  # noqa: E402
    CHECKOUT,
    ENOUGH,
    Proof,
    Row,
    State,
    digest,
    digest_of_files,
    print_failures,
    provenance,
    run_lane,
    share,
    words,
)
from mutant_worker import TABLE, Worker, concerned, worker  # noqa: E402
from mutants import JOBS, UNREACHED, Mutant, every_mutant  # noqa: E402

from rlbox.system.files import cache_path  # noqa: E402

RESULTS = HERE.parents[1] / "docs/internal/job-mutants.md"
ROOMS = ("spec", "job", "gate")
"""Rooms of rlbox that read a job and judge by its gates."""
HEAD = """# Mutants of jobs

`make nightly ARGS=mutants/jobs` wrote this: {provenance};
{seconds:.0f} s of work. {noticed} are noticed by the fast tests of their job.

A mutant is a job with one thing changed: a default, a limit, a rule of a gate, a word of a command, a guard or a
comparison of a program (`tests/jobs/mutants.py`). Not made, since no fast test can run them:

{unreached}

| file | mutants | noticed | |
|---|---|---|---|
"""


def proofs(names: Sequence[str], at_once: int, workers: queue.Queue[Worker]) -> list[Proof]:
    """A proof for each mutant of the jobs or files `names`; all when there are none."""
    found = []
    for mutant in every_mutant(names, at_once):
        files = concerned(mutant.path)
        key = digest(mutant.name, mutant.text, _around(mutant.job, tuple(files)))
        found.append(Proof(key=key, name=mutant.name, prove=partial(_judge, mutant, files, workers)))
    return found


_SEEN: dict[tuple[str, tuple[str, ...]], str] = {}


def _around(job: str, files: tuple[str, ...]) -> str:
    """The digest of what judges the mutants of a job: its other files, the tests, and the rooms that read a job."""
    if (job, files) not in _SEEN:
        paths = [
            HERE / TABLE,
            JOBS / f"{job}.toml",
            *(JOBS / job).glob("*.py"),
            *(HERE / name.partition("::")[0] for name in files),
        ]
        paths += [path for path in HERE.glob("*.py") if not path.name.startswith(("test_", "mutant"))]
        paths += [path for room in ROOMS for path in (CHECKOUT / "rlbox" / room).rglob("*.py")]
        paths += [*(CHECKOUT / "tests/golden/expected/jobs").glob(f"{job}*.txt"), CHECKOUT / "tests/gatebox.py"]
        _SEEN[job, files] = digest_of_files(path for path in paths if path.is_file())
    return _SEEN[job, files]


def _judge(mutant: Mutant, files: list[str], workers: queue.Queue[Worker]) -> tuple[bool, str]:
    free = workers.get()
    try:
        noticed, by = free.judge(mutant.path, mutant.text, files)
    finally:
        workers.put(free)
    return noticed, by


def table(rows: Sequence[Row]) -> str:
    """The committed table: a line a file, and what nobody noticed."""
    by_file: dict[str, list[Row]] = {}
    for row in rows:
        by_file.setdefault(row.name.partition(": ")[0], []).append(row)
    lines = []
    for name, of in sorted(by_file.items()):
        noticed = sum(row.held for row in of)
        lines.append(f"| {name} | {len(of)} | {noticed} | {100 * noticed / len(of):.0f} % |")
    head = HEAD.format(
        provenance=provenance(RESULTS),
        seconds=sum(row.seconds for row in rows),
        noticed=share(sum(row.held for row in rows), len(rows)),
        unreached="\n".join(f"- `{name}`: {why}" for name, why in UNREACHED.items()),
    )
    alive = [f"- {row.name}" for row in rows if not row.held]
    return head + "\n".join(lines) + "\n" + ("\nNot noticed:\n\n" + "\n".join(alive) + "\n" if alive else "")


def main() -> int:
    """Run the lane; 1 when too many mutants go unnoticed, or the tests fail as things are."""
    asked = words(
        "make nightly ARGS=mutants/jobs", "Every job with one thing changed, which its fast tests must notice."
    ).parse_args()
    workers: queue.Queue[Worker] = queue.Queue()
    todo = proofs(asked.names, asked.at_once, workers)
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="job-mutants-") as folder:
        for number in range(asked.at_once):
            workers.put(stack.enter_context(worker(Path(folder) / f"tree{number}")))
        if broken := _broken_as_they_are({proof.name.partition(": ")[0] for proof in todo}, workers):
            print(f"make nightly ARGS=mutants/jobs: the tests fail without a mutant: {broken}", file=sys.stderr)
            return 1
        state = State(cache_path("lanes") / "job-mutants.jsonl")
        say = partial(print, flush=True)
        rows = run_lane(todo, state, at_once=asked.at_once, again=asked.again, say=say)
    if not asked.names:
        RESULTS.write_text(table(rows), "utf-8")
    print_failures(rows)
    noticed = sum(row.held for row in rows)
    print(f"{share(noticed, len(rows))} mutants noticed")
    return 0 if noticed >= ENOUGH * len(rows) else 1


def _broken_as_they_are(paths: set[str], workers: queue.Queue[Worker]) -> str:
    """The first test that fails on jobs as they are: then nothing would be said by one that fails on a mutant."""
    of_job = {(path.partition("/")[0].removesuffix(".toml"), path.endswith(".toml")): path for path in sorted(paths)}
    free = workers.get()
    for path in of_job.values():
        failed, by = free.judge(path, (JOBS / path).read_text("utf-8"), concerned(path))
        if failed:
            return by
    workers.put(free)
    return ""


if __name__ == "__main__":
    sys.exit(main())
