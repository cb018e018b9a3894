"""Goal 30: from a stage that failed to its evidence on the disk, when its log has a gigabyte that was followed live."""

from __future__ import annotations

import resource
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pairs import Sample, Unusable
from benchmarks.place import Place
from benchmarks.watching import bare_run, bare_stage
from rlbox.amounts import utc_now
from rlbox.diagnose.first_fatal import FatalPosition, find_first_fatal
from rlbox.record.run_dir import write_run_plan
from rlbox.record.state import StageState
from rlbox.secrets.masks import SecretMasker
from rlbox.supervise.causes import explain_wrong_exit_code
from rlbox.supervise.evidence import StageFailure
from rlbox.supervise.failure_report import analyze_failure_logs, gather_and_write_evidence
from rlbox.system.files import write_atomic

LOG_BYTES, FEW_BYTES = 1 << 30, 4 << 20
FAILURE = b'Traceback (most recent call last):\n  File "train.py", line 3, in step\nValueError: no data\n'
_LOG = "stages/train/stage.log"
_MEMORY_KIB = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class _Failed:
    failure: StageFailure
    data: Path


def in_supervisor(place: Place) -> Sample:
    """What the supervisor does between the end of a failed stage and its evidence, against `import click`.

    Raises
    ------
    Unusable
        Something is missing in the evidence, or the whole log was read into memory.
    """
    failed = place.kept.get(_failed_run)
    anchor = place.python("import click")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sample = place.compare(_writing(failed.failure), anchor)
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before > _MEMORY_KIB:
        raise Unusable("evidence of a 1 GiB log took more than 64 MiB of memory")
    return sample


def as_bundle(place: Place) -> Sample:
    """`rlbox bundle` of that run, with the last 20 MB of the log, as a whole process."""
    failed = place.kept.get(_failed_run)
    words = ("bundle", "--data", str(failed.data), "--out", str(place.folder / "bundle.tar.gz"))
    return place.compare(place.rlbox(*words), place.python("import click"))


def _writing(failure: StageFailure) -> Callable[[], float]:
    folder = failure.run_dir / failure.stage.directory / "evidence"

    def write() -> float:
        shutil.rmtree(folder, ignore_errors=True)
        began = time.perf_counter()
        gather_and_write_evidence(failure, analyze_failure_logs(failure))
        seconds = time.perf_counter() - began
        if (folder / "first_fatal.txt").read_text().count("\n") < 200 or not (folder / "packages.txt").stat().st_size:
            raise Unusable("the evidence does not hold 100 lines on each side, or no packages")
        return seconds

    return write


def _failed_run(place: Place) -> _Failed:
    """Return a failed run on a disk of its own, whose log was followed to its end."""
    data = place.folder / "data"
    run_dir = data / "runs" / "bench"
    stage = bare_stage("train", ("-c", "pass"))
    plan = bare_run("bench", run_dir, data, (stage,))
    spot = _write_log(run_dir / _LOG, place.pick(LOG_BYTES, FEW_BYTES))
    write_run_plan(run_dir, plan)
    now, cause = utc_now(), explain_wrong_exit_code(stage, 1)
    state = StageState(name="train", title="", directory=stage.directory, state="failed", exit_code=1)
    failure = StageFailure(
        run_dir=run_dir, plan=plan, stage=stage, state=state, cause=cause, started_at=now, ended_at=now,
        fatals={_LOG: spot}, snapshot=None, masks=SecretMasker({}),
    )  # fmt: skip
    return _Failed(failure=failure, data=data)


def _write_log(log: Path, size: int) -> FatalPosition:
    """Write steps, the failure, and as much again of what says nothing: after steps it would be no failure."""
    steps = (f"step:{n} - actor/pg_loss:{n / 7:.6f} - perf/throughput:{n * 3.1:.3f}\n".encode() for n in range(16_000))
    idle = (
        f"worker {n % 64}: shard {n:>9} of the cache is written back, {n * 3.1:.3f} kB\n".encode()
        for n in range(16_000)
    )
    half = size // 2
    write_atomic(log, b"")
    with open(log, "wb") as file:
        for block, text in ((b"".join(steps), FAILURE), (b"".join(idle), b"")):
            for _ in range(max(1, half // len(block))):
                file.write(block)
            file.write(text)
    spot = find_first_fatal(log)
    if spot is None:
        raise Unusable("the planted failure was not found")
    return spot
