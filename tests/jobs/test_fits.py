"""Every job and profile on its own target: it fits, or is refused with a nearest setting that does."""

from __future__ import annotations

import pytest
from fakes import CHECKOUT, load_cases
from jobplan import job_of
from sft import plan as sft_plan

from rlbox.amounts import GIB
from rlbox.config.project import Project
from rlbox.job.params import resolve_params
from rlbox.planner.fit import RunCommand, suggest_fitting_command
from rlbox.planner.needs import Capacity, RunNeeds, compute_run_needs, find_shortages, get_declared_capacity
from rlbox.target.target import load_target

CASES = load_cases("jobs", "test_fits")
PROJECT = Project(folder=CHECKOUT)
JOBS = ("gkd", "grpo", "holdem", "sft", "smoke", "xdan")
EACH = [(job, profile) for job in JOBS for profile in ("", *job_of(job).profiles)]
# What is for another machine than the job's own target, and is refused there.
REFUSED = {
    ("holdem", "full"): ("--profile", "full", "--set", "save_optim=false"),
    ("holdem", "resume"): ("--profile", "resume", "--set", "save_optim=false"),
    ("xdan", "two-nodes"): (),
}


def room(job: str) -> Capacity:
    target = load_target(PROJECT, job_of(job).target).target
    return get_declared_capacity(target, target.hardware.gpus)


def needs(job: str, wish: RunCommand) -> RunNeeds:
    found = compute_run_needs(
        job_of(job), resolve_params(job_of(job), wish.profiles, wish.settings), room(job).bytes_per_gpu
    )
    assert found
    return found


@pytest.mark.parametrize(("job", "profile"), EACH)
def test_it_fits_or_the_nearest_setting_does(job: str, profile: str) -> None:
    wish = RunCommand(profiles=(profile,) if profile else ())
    lacks = find_shortages(needs(job, wish), room(job))
    assert bool(lacks) == ((job, profile) in REFUSED), lacks
    if lacks:
        nearest = suggest_fitting_command(job_of(job), wish, room(job))
        assert nearest
        assert nearest.to_argv_after_rlbox() == REFUSED[job, profile]
        assert find_shortages(needs(job, nearest), room(job)) == ()


@pytest.mark.parametrize("target", ["a800-cn", "cluster-2node", "vast-5090"])
def test_a_target_asks_for_the_disk_of_its_jobs(target: str) -> None:
    """`disk.need_gib` follows from the table: `vast create` rents that disk; a GB of it may be one of 10^9 bytes."""
    spec = load_target(PROJECT, target).target
    jobs = [job for job in JOBS if job_of(job).target == target]
    most = max(needs(job, RunCommand()).total_disk_bytes for job in jobs)
    assert most <= spec.disk.need_gib * (1e9 if spec.hardware.platform == "vast" else GIB)
    assert spec.disk.need_gib * GIB <= 1.2 * most


@pytest.mark.parametrize(("job", "profile", "settings", "says"), CASES["what_a_program_would_refuse_is_refused_before"])
def test_what_a_program_would_refuse_is_refused_before(job: str, profile: str, settings: str, says: str) -> None:
    given = dict(word.split("=", 1) for word in settings.split())
    told = [
        lack.text for lack in find_shortages(needs(job, RunCommand(profiles=(profile,), settings=given)), room(job))
    ]
    assert [text for text in told if says in text] if says else told == []


def test_every_job_says_what_it_needs() -> None:
    assert set(PROJECT.own_pack_and_shipped_job_files()) == set(JOBS)
    assert [job for job in JOBS if job_of(job).fits is None] == []


@pytest.mark.parametrize("profile", ["", "low-memory", "rtx-6000-pro-x2"])
@pytest.mark.parametrize("keep", ["0", "1", "3"])
def test_the_job_and_the_planner_ask_for_the_same_disk(profile: str, keep: str) -> None:
    values = resolve_params(job_of("sft"), profile, {"keep_optimizer": keep}).params
    args = (values["train_rows"], values["gpus"], values["batch"], values["epochs"], 0, values["save_every"])
    saves = sft_plan.saved_steps(*args)  # type: ignore[arg-type]
    found = needs("sft", RunCommand(profiles=(profile,) if profile else (), settings={"keep_optimizer": keep}))
    train = next(row.disk for row in found.stages if row.stage == "train")
    asked = sft_plan.room_needed(7.6, len(saves), int(keep))
    assert train["checkpoints"] + train["exports"] == pytest.approx(asked)


@pytest.mark.parametrize("job", JOBS)
def test_what_comes_next_is_a_run_that_can_be(job: str) -> None:
    """P044; whether it fits depends on the disk that is there."""
    for words in job_of(job).next:
        parts = words.split()
        given = list(zip(parts[::2], parts[1::2], strict=True))
        profiles = [value for option, value in given if option == "--profile"]
        settings = dict(value.split("=", 1) for option, value in given if option == "--set")
        lacks = find_shortages(needs(job, RunCommand(profiles=tuple(profiles), settings=settings)), room(job))
        assert [lack for lack in lacks if lack.kind != "disk"] == []
