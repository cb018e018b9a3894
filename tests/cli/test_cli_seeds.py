"""Every line of `rlbox` in docs/internal/seeds.toml is typed here; what the table says of rules and fixes is tried."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from fakes import CHECKOUT, Rlbox
from typedbox import Typed, typed_of

from rlbox.app import App
from rlbox.config.project import Project
from rlbox.fixes.catalogue import load_fix_catalogue
from rlbox.fixes.conditions import evaluate_fix, map_packages_to_version_or_empty
from rlbox.job.job import load_job
from rlbox.job.params import resolve_params
from rlbox.lint.drift import load_drift_rules
from rlbox.lint.rules import lint_text
from rlbox.record.run_dir import write_run_plan
from rlbox.record.state import RunState, StageState, StageStatus, write_run_state
from rlbox.run.inputs import collect_spec_texts_by_path, compute_specs_digest, plan_container_run
from rlbox.secrets.masks import SecretMasker
from rlbox.target.lock import load_lock
from rlbox.target.target import load_target
from scripts.docs.seed_docs import SeedRow, load_seeds

SHIPPED = Project(folder=CHECKOUT)
SEEDS = load_seeds(CHECKOUT)
LINES = {line: row for row in SEEDS.row for line in row.rlbox}
RULED = [row for row in SEEDS.row if row.rules]
RUNS: dict[str, tuple[StageStatus, ...]] = {
    "sft-20260101": ("passed", "passed", "passed", "failed", "waiting"),
    "holdem-20260101": ("passed", "failed", "waiting"),
}
"""What ran on the machine of the lines, the latest last, by the states of its stages."""
NODES = "--nodes gpu005,gpu004"
CODES = {
    f"rlbox cluster doctor cluster-2node {NODES}": 1,
    f"rlbox cluster up cluster-2node {NODES}": 5,
    f"rlbox cluster status cluster-2node {NODES}": 5,
    f"rlbox cluster down cluster-2node {NODES}": 5,
    f"rlbox run xdan --place cluster {NODES}": 5,
    "rlbox attach": 1,
    "rlbox gpus": 1,
    "rlbox gpus --actor 2 --rollout 2 --total 8": 1,
    "rlbox gpus --ray http://127.0.0.1:8101": 1,
    "rlbox vast create vast-5090 --image registry.example/team/vast-5090:v1": 2,
    "rlbox vast up sft --dry-run": 2,
    "rlbox vast search vast-5090": 2,
}
"""Exit codes of lines about a run that failed, nodes and GPUs that are not there, and vast.ai without an API key."""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data disk with runs, a model and secrets."""
    disk = tmp_path_factory.mktemp("machine")
    for number, (run, states) in enumerate(RUNS.items(), start=1):
        write_run(disk / "runs" / run, run.partition("-")[0], states, f"2026-01-01T0{number}:00:00.000+00:00")
    (disk / "model").mkdir()
    (disk / "model/weights").write_bytes(b"1" * 4096)
    (disk / ".env").write_text("HF_TOKEN=n0ne-7Qx1-9zKw\nWANDB_API_KEY=n0ne-8Rt2-4bLm\n")
    return disk


@pytest.fixture
def typed(rlbox: Rlbox, machine: Path, remembering: None, unasked: None, monkeypatch: pytest.MonkeyPatch) -> Typed:
    monkeypatch.setenv("RLBOX_DATA", str(machine))
    monkeypatch.chdir(machine)
    return Typed(rlbox)


def write_run(run_dir: Path, job_name: str, states: tuple[StageStatus, ...], at: str) -> None:
    """Write a run that failed: its stages are in `states`."""
    app, job = App(project=Project(folder=run_dir)), load_job(SHIPPED, job_name)
    files = collect_spec_texts_by_path(app, job, job.target, load_fix_catalogue(SHIPPED))
    plan = plan_container_run(job, resolve_params(job, (), {}), "/data", run_dir.name, "docker", job.target)
    for name, text in files.items():
        path = run_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    write_run_plan(run_dir, dataclasses.replace(plan, digest=compute_specs_digest(files)))
    stages = tuple(
        StageState(name=stage.name, title=stage.title, directory=f"stages/{number}-{stage.name}", state=state)
        for number, (stage, state) in enumerate(zip(plan.stages, states, strict=False), start=1)
    )
    for stage in stages:
        (run_dir / stage.directory).mkdir(parents=True)
        for name in ("stage", "reward", "sandbox"):
            (run_dir / stage.directory / f"{name}.log").write_text("2026-01-01T00:00:00.000Z step 1\n")
    state = RunState(
        run_id=run_dir.name, job=job.name, target=job.target, place="docker", profile="", supervisor_pid=7,
        state="failed", started_at=at, ended_at=at, exit_code=1, stages=stages,
    )  # fmt: skip
    write_run_state(run_dir, state, SecretMasker({}))


def of(row: SeedRow) -> str:
    return f"{row.seed}-{row.lines()[0][0][0]}"


@pytest.mark.allow("processes")
@pytest.mark.parametrize("line", typed_of(LINES))
def test_what_the_table_says_to_type_works(typed: Typed, line: str) -> None:
    said, row = typed(line, CODES.get(line, 0)), LINES[line]
    assert row.says in said.out or line != row.rlbox[-1], said.out[-2000:]


@pytest.mark.parametrize("row", RULED, ids=of)
def test_a_refused_command_is_found_by_lint(row: SeedRow) -> None:
    text = "\n".join(text.replace("\\…", "").replace("…", " ") for _, text in row.lines())
    found = {finding.rule for finding in lint_text("note.md", f"```bash\n{text}\n```\n", load_drift_rules())}
    assert sorted(set(row.rules) - found) == [], sorted(found)


def test_the_fixes_of_the_table_are_in_the_images_of_their_notes() -> None:
    known, missing = {fix.id: fix for fix in load_fix_catalogue(Project(folder=CHECKOUT))}, []
    for number, seed in SEEDS.seeds.items():
        target = load_target(SHIPPED, seed.target).target
        versions = map_packages_to_version_or_empty(target, load_lock(SHIPPED.own_or_shipped_lock_file(seed.target)))
        named = {id for row in SEEDS.row if row.seed == number for id in row.fixes}
        missing += [(number, id) for id in sorted(named) if not evaluate_fix(known[id], target, versions).applies]
    assert missing == []


def test_rows_stand_in_the_order_of_the_notes_and_name_what_is_there() -> None:
    assert [row.seed for row in SEEDS.row] == sorted(row.seed for row in SEEDS.row)
    assert {row.seed for row in SEEDS.row} == set(SEEDS.seeds)
    assert {seed.target for seed in SEEDS.seeds.values()} <= set(SHIPPED.own_pack_and_shipped_target_files())
    assert {seed.job for seed in SEEDS.seeds.values()} <= set(SHIPPED.own_pack_and_shipped_job_files())
