"""Every shipped job and profile through `rlbox run --dry-run`: it fits, or what is proposed does when it is typed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from fakes import CHECKOUT, Folder, Rlbox

from rlbox.config.project import Project
from rlbox.job.job import load_job
from rlbox.provision.provision import StageEnvironment

pytestmark = pytest.mark.usefixtures("as_declared")
PROJECT = Project(folder=CHECKOUT)
OWN = {job: load_job(PROJECT, job).target for job in PROJECT.own_pack_and_shipped_job_files()}
EACH = [(job, profile) for job in OWN for profile in ("", *load_job(PROJECT, job).profiles)]
OTHER = [
    (*pair, target) for pair in EACH for target in PROJECT.own_pack_and_shipped_target_files() if target != OWN[pair[0]]
]
NEAREST = "#   next:  the nearest that fits: rlbox "


def hopeless(job: str, profile: str, target: str) -> bool:
    """Whether no setting of the job lets it onto the target: no GPU, cards too small for its model, too few nodes."""
    if (job, target) == ("xdan", "hopper") and profile in ("one-node", "smoke"):  # eight GPUs of 80 GB
        return False
    few = {
        "holdem": ("vast-5090", "vast-5090-flash"),
        "xdan": tuple({*PROJECT.own_pack_and_shipped_target_files()} - {"cluster-2node", "cluster-2node-flash"}),
    }
    return job != "smoke" and target in ("local", *few.get(job, ()))


def fits_or_says_what_does(rlbox: Rlbox, *words: str) -> bool:
    """Return whether it fits, at once or as what is proposed then; other endings are wrong."""
    said = rlbox(*words, "--allow-unauthenticated", "--dry-run", "--project", str(CHECKOUT))
    if said.code == 0:
        return True
    assert said.code == 5, said.out
    (next_step,) = [line for line in said.out.splitlines() if line.startswith("#   next:")]
    if next_step.startswith("#   next:  no profile or tunable parameter of the job fits"):
        return False
    assert next_step.startswith(NEAREST), said.out
    again = rlbox(
        *shlex.split(next_step.removeprefix(NEAREST)),
        "--allow-unauthenticated",
        "--dry-run",
        "--project",
        str(CHECKOUT),
    )
    assert again.code == 0, again.out
    return True


@pytest.mark.parametrize(("job", "profile"), EACH)
def test_on_its_own_target(rlbox: Rlbox, job: str, profile: str) -> None:
    assert fits_or_says_what_does(rlbox, "run", job, *(["--profile", profile] if profile else []))


@pytest.mark.slow
@pytest.mark.parametrize(("job", "profile", "target"), OTHER)
def test_on_every_other_target(rlbox: Rlbox, job: str, profile: str, target: str) -> None:
    named = ["--profile", profile] if profile else []
    fits = fits_or_says_what_does(rlbox, "run", job, *named, "--target", target)
    assert fits != ((profile != "tiny" or target == "local") and hopeless(job, profile, target))


@pytest.mark.parametrize("job", ["gkd", "grpo", "sft", "xdan"])
def test_more_than_a_whole_gpu_is_no_share_of_one(rlbox: Rlbox, job: str) -> None:
    said = rlbox("run", job, "--dry-run", "--set", "gpu_memory=120%", "--project", str(CHECKOUT))
    assert (said.code, "gpu_memory is 1.2, and must be" in said.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "step"),
    [
        (
            "plan sft --machine 8x24 --set gpus=8 --set offload=false",
            "rlbox plan sft --set gpus=8 --set offload=false --set micro_batch=1 --machine 8x24",
        ),
        ("plan sft --machine 4x31.8 --set offload=false", "rlbox plan sft --set offload=true --machine 4x31.8"),
        ("plan sft --gpus 2", "rlbox run sft --set gpus=2 --gpus 2"),
        ("run sft --gpus 2 --place here", "rlbox run sft --set gpus=2 --place here --gpus 2"),
    ],
)
def test_what_is_proposed_is_for_the_same_machine_and_place(
    rlbox: Rlbox, folder: Folder, monkeypatch: pytest.MonkeyPatch, words: str, step: str
) -> None:
    place = StageEnvironment(python=Path("/usr/bin/python3"), argv_prefix=(), env={})
    monkeypatch.setattr("rlbox.run.host.provision_stage_environment", lambda *asked: place)
    dry = ["--dry-run"] if " run " in step else []
    said = rlbox(*words.split(), *(dry if words.startswith("run") else ()), "--project", str(CHECKOUT))
    assert said.code == 5
    assert f"the nearest that fits: {step}\n" in said.out + said.err
    assert rlbox(*step.split()[1:], *dry, "--project", str(CHECKOUT)).code == 0
