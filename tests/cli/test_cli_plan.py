"""`rlbox plan`, and what `rlbox run` refuses because it does not fit."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from fakes import ON_IMAGE, Folder, Rlbox, Said, h200, load_cases

from rlbox.amounts import GIB
from rlbox.job.job import load_job
from rlbox.job.params import resolve_params
from rlbox.job.plan import ProcessPaths, plan_run
from rlbox.record.run_store import RunStore
from rlbox.record.state import create_run_state, replace_stage, write_run_state
from rlbox.run.backend import open_container_runtime
from rlbox.secrets.masks import SecretMasker
from rlbox.system.gpu import GpuStatus

CASES = load_cases("cli", "test_cli_plan")
JOB = CASES["JOB"]
MACHINE = """
[hardware]
gpu = "a card"
gpus = 2
gpu_memory_gib = 20
memory_gib = 16
"""


@pytest.fixture
def one(folder: Folder) -> Folder:
    """A project with a locked target of two cards and a job of one stage."""
    folder.target("mine", ON_IMAGE.replace("need_gib = 0", "need_gib = 12") + MACHINE)
    folder.lock("mine")
    folder.job("one", JOB)
    return folder


def test_the_table(rlbox: Rlbox, one: Folder) -> None:
    assert rlbox("plan", "one") == Said(
        code=0,
        out="""stage       nodes x GPUs  a GPU     host memory  disk
train       1 x 2         14.9 GiB  8.0 GB       12.0 GB
the target  1 x 2         19.4 GiB  17.2 GB      12.9 GB

train  a GPU  7.5 GiB  weights
train  a GPU  7.5 GiB  activations
train  host   8.0 GB   copy
train  disk   12.0 GB  checkpoints

"""
        + NO_HOURS,
        err="",
    )


NO_HOURS = """stage  hours  source
train  -      not known: no run of it on this data disk passed
total hours: not known; run the job once
"""


@pytest.mark.usefixtures("as_declared")
def test_hours_and_cost_of_a_passed_run(rlbox: Rlbox, one: Folder) -> None:
    data = one.path / "data"
    passed_run(one, data, "one-1")
    said = rlbox("plan", "one", "--data", str(data), "--price", "2-3", "--json").data["time"]
    assert (said["total"], said["cost"]) == ({"low": 1.5, "high": 1.5}, {"low": 3.0, "high": 4.5})
    other = ("plan", "one", "--data", str(data), "--set", "rows=2")
    assert rlbox(*other, "--json").data["time"]["complete"] is False


def passed_run(one: Folder, data: Path, run_id: str) -> None:
    """Write the record of a run of an hour and a half."""
    job, run = load_job(one.project, "one"), str(data / "runs" / run_id)
    paths = ProcessPaths(run=run, job=f"{run}/job", data=str(data), python="python")
    plan = plan_run(job, resolve_params(job, (), {}), paths, run_id=run_id, place="here", target="mine")
    data.mkdir()
    run_store = RunStore(data_dir=data, open_runtime=open_container_runtime)
    run_store.create_run_dir(plan, None, {})
    state = replace_stage(create_run_state(plan, 1), "train", state="passed", seconds=5400.0)
    write_run_state(run_store.run_dir(run_id), dataclasses.replace(state, state="passed"), SecretMasker({}))


def test_as_json(rlbox: Rlbox, one: Folder) -> None:
    found = rlbox("plan", "one", "--set", "rows=2", "--json").data["needs"]
    assert found["stages"][0]["card"] == {"weights": 8e9, "activations": 4e9}
    assert (found["room"]["gpus"], found["lacks"], found["not_judged"]) == (2, [], [])


@pytest.mark.usefixtures("as_declared")
def test_a_job_that_says_nothing(rlbox: Rlbox, one: Folder) -> None:
    one.job("other", JOB.partition("[fits]")[0])
    said = rlbox("plan", "other")
    assert (said.code, said.out) == (
        0,
        "job other does not say what it needs: [fits] in jobs/other.toml\n\n" + NO_HOURS,
    )
    assert rlbox("run", "other", "--dry-run").code == 0


CARD = (
    "job one does not fit: train: a GPU: 22.4 GiB needed (activations 14.9 GiB, weights 7.5 GiB), 18.5 GiB there "
    "(19.4 GiB, less 0.9 GiB for CUDA's context and NCCL)"
)
REFUSALS: list[tuple[tuple[str, ...], str, str]] = [
    (("--set", "rows=8"), CARD, "the nearest that fits: rlbox run one --set rows=5"),
    (("--gpus", "1"), "train: 2 GPUs of a machine, there are 1", "no profile or tunable"),
    (
        ("--set", "keep=4"),
        "the data disk: 16.0 GB needed (train.checkpoints 16.0 GB), 12.9 GB there",
        "--set keep=3",
    ),
    (
        ("--set", "billions=4.5"),
        "host memory: 18.0 GB needed (copy 18.0 GB), 17.2 GB there",
        "no profile or tunable",
    ),
    (
        ("--set", "model=me/other"),
        "billions is still 2, which nobody says of me/other (model, --set)",
        "--set billions=N",
    ),
]


def refusal(said: Said) -> str:
    """The refusals of a command: what it said to stderr, or the end of a dry run."""
    text = "".join(line.removeprefix("# ") for line in said.out.splitlines(keepends=True))
    return said.err or text[text.index("refused: ") :]


@pytest.mark.usefixtures("as_declared")
@pytest.mark.parametrize(("words", "told", "step"), REFUSALS)
@pytest.mark.parametrize("verb", [("plan", "one"), ("run", "one", "--dry-run")], ids=["plan", "run"])
def test_what_does_not_fit_is_refused(
    rlbox: Rlbox, one: Folder, verb: tuple[str, ...], words: tuple[str, ...], told: str, step: str
) -> None:
    said = rlbox(*verb, *words)
    assert (said.code, bool(said.err)) == (5, verb[0] == "plan")
    assert told in refusal(said)
    assert step in refusal(said)
    assert "  where: images/mine/target.toml\n" in refusal(said)


@pytest.mark.usefixtures("as_declared")
def test_all_that_does_not_fit_is_said_at_once(rlbox: Rlbox, one: Folder) -> None:
    said = rlbox("run", "one", "--dry-run", "--set", "rows=9", "--set", "keep=9")
    told = refusal(said)
    assert [line.strip().partition(" ")[0] for line in told.splitlines()[1:4]] == ["train:", "train:", "the"]
    assert "9 rows are more than 8" in told
    assert told.endswith(
        "next:  the nearest that fits: rlbox run one\nverdict: this would be refused: 1 refusal, exit code 5\n"
    )
    assert (said.code, said.err) == (5, "")


@pytest.mark.usefixtures("as_declared")
def test_a_computed_refusal_can_be_overridden(rlbox: Rlbox, one: Folder) -> None:
    said = rlbox("run", "one", "--dry-run", "--set", "rows=8", "--force")
    assert said.code == 0
    assert said.err.startswith(f"warning: {CARD}\n")
    assert "# the target  1 x 2         19.4 GiB  17.2 GB      12.9 GB\n" in said.out


@pytest.mark.parametrize(("machine", "code", "told"), CASES["another_machine"])
def test_another_machine(rlbox: Rlbox, one: Folder, machine: str, code: int, told: str) -> None:
    said = rlbox("plan", "one", "--machine", machine)
    assert (said.code, told in said.err) == (code, True)


@pytest.mark.usefixtures("as_declared")
@pytest.mark.parametrize("path", ["/system/out", "out", "../out", "/data/../out"])
def test_a_path_off_the_data_disk_is_refused(rlbox: Rlbox, one: Folder, path: str) -> None:
    """P008."""
    said = rlbox("run", "one", "--dry-run", "--set", f"out={path}")
    assert (said.code, said.err) == (2, "")
    assert refusal(said) == (
        f"refused: --set out={path}: not on the data disk /data; the system disk is small, and a container's is lost "
        "with it\n  next:  name a path below /data\nverdict: this would be refused: 1 refusal, exit code 2\n"
    )
    assert rlbox("run", "one", "--dry-run", "--set", "out=/data/out").code == 0


@pytest.mark.allow("sockets")  # docker-py is imported, not asked
def test_a_run_asks_the_disk_that_is_there(
    rlbox: Rlbox, one: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P009: both numbers, before anything starts; what the target declares does not count."""
    monkeypatch.setattr("rlbox.planner.fit.free_bytes_or_0", lambda folder: GIB)
    monkeypatch.setattr("rlbox.planner.fit.get_machine_total_memory_bytes", lambda: 64 * GIB)
    said = rlbox("run", "one", "--data", str(tmp_path))
    assert said.code == 5
    assert "the data disk: 12.0 GB needed (train.checkpoints 12.0 GB), 1.1 GB there" in said.err
    assert f"  where: this machine, {tmp_path}\n" in said.err


def cards(*held: float, total: int = 32 * GIB) -> tuple[GpuStatus, ...]:
    """GPUs of which others hold so many GiB."""
    return tuple(
        dataclasses.replace(h200(80), index=index, total_bytes=total, memory_bytes=int(size * GIB))
        for index, size in enumerate(held)
    )


@pytest.mark.allow("sockets")
@pytest.mark.parametrize(("gpus", "held", "lack"), CASES["a_gpu_that_is_shared_with_another_process"])
def test_a_gpu_that_is_shared_with_another_process(
    rlbox: Rlbox, one: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: str, held: tuple[float], lack: str
) -> None:
    monkeypatch.setattr("rlbox.planner.fit.query_gpus_or_empty", lambda: cards(*held))
    monkeypatch.setattr("rlbox.planner.fit.free_bytes_or_0", lambda folder: GIB)
    monkeypatch.setattr("rlbox.planner.fit.get_machine_total_memory_bytes", lambda: 64 * GIB)
    said = rlbox("run", "one", "--data", str(tmp_path), *(("--gpus", gpus) if gpus else ()))
    assert (said.code, "the data disk: " in said.err) == (5, True)  # which refuses it anyway, before an engine is asked
    assert ("that other processes hold" in said.err, lack in said.err) == (bool(lack), True), said.err


@pytest.mark.allow("sockets")
def test_a_run_asks_the_card_that_is_there(
    rlbox: Rlbox, one: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sold as 16 GB, 14 of them to use."""
    monkeypatch.setattr("rlbox.planner.fit.query_gpus_or_empty", lambda: cards(0, 0, total=14 * GIB))
    monkeypatch.setattr("rlbox.planner.fit.free_bytes_or_0", lambda folder: 99 * GIB)
    monkeypatch.setattr("rlbox.planner.fit.get_machine_total_memory_bytes", lambda: 64 * GIB)
    said = rlbox("run", "one", "--data", str(tmp_path))
    assert said.code == 5
    assert "13.1 GiB there (14.0 GiB, less 0.9 GiB" in said.err
    assert said.err.endswith(f"rlbox run one --set rows=3 --data {tmp_path}\n")
