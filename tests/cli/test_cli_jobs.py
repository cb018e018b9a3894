"""The job of docs/jobs.md works as its pages say, and what is wrong with a command line or a `.env` is said at once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fakes import CHECKOUT, ON_IMAGE, Folder, Rlbox, Said
from following import Follow

from rlbox.foreign import parse_untrusted_toml
from rlbox.job.job import FrameworkSource, Service, Stage

PAGE = "".join((CHECKOUT / f"docs/{name}.md").read_text("utf-8") for name in ("jobs", "fork", "ports", "secrets"))
EXAMPLE, SOURCE, LISTENS, PUBLISHES, SECRETS = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
_, ENV = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("example", [LISTENS, PUBLISHES])
def test_the_examples_of_what_is_reached_have_keys_that_there_are(example: str) -> None:
    table = parse_untrusted_toml(example)
    assert table["services"][0].keys() <= Service.model_fields.keys()
    assert all(stage.keys() <= Stage.model_fields.keys() for stage in table.get("stages", ()))


def test_the_example_of_a_fork_has_keys_that_there_are() -> None:
    assert FrameworkSource.model_validate(parse_untrusted_toml(SOURCE)["source"]).package == "verl"


def test_the_example_of_a_secret_names_it_twice() -> None:
    table = parse_untrusted_toml(SECRETS)
    assert table["secrets"] == table["stages"][0]["secrets"]
    assert table["stages"][0].keys() <= Stage.model_fields.keys()


@pytest.fixture
def mine(folder: Folder, no_engine: None) -> Folder:
    folder.target("box", ON_IMAGE)
    folder.lock("box")
    folder.write("jobs/mine.toml", EXAMPLE.replace('target = "local"', 'target = "box"'))
    folder.write(".env", ENV)
    return folder


def test_the_example(rlbox: Rlbox, mine: Folder) -> None:
    said = rlbox("run", "mine", "--dry-run", "--profile", "full", "--set", "patience=90s")
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[:13] == [
        "# run of mine on box, place docker, profile full",
        "# attention = flash",
        "# cache = 76293.9453125 MiB",
        "# data = {data}/small.jsonl  (profile smoke)",
        "# memory = 0.7  (profile full)",
        "# optimizer = true",
        "# patience = 90 seconds  (--set)",
        "# rollouts = 50  (profile full)",
        "# sampling = true  (profile full)",
        "# secret HF_TOKEN",
        "# secret HUGGING_FACE_HUB_TOKEN",
        "# secret WANDB_API_KEY",
        "# secret WANDB_KEY",
    ]
    assert (
        "/opt/venv/bin/python /data/runs/mine-DRY-RUN/job/mine/train.py /data/small.jsonl --patience 90 "
        "--cache=76293.9453125 --memory=0.7 --attention=flash" in lines
    )
    assert "hf_" not in said.out


def test_show(rlbox: Rlbox, mine: Folder) -> None:
    lines = rlbox("show", "mine").out.splitlines()
    assert lines[:9] == [
        "# job mine",
        "# parameters: --set NAME=VALUE",
        "data      =            # training data (str, required)",
        "rollouts  = 2          # rollouts (int, at least 1)",
        "patience  = 10min      # longest wait for an answer (duration in seconds, at most 2h)",
        "cache     = 80GB       # size of the cache (size in MiB)",
        "memory    = 45%        # share of the GPU's memory (fraction, at most 95%)",
        "attention = flash      # attention kernels (one of flash, eager)",
        "sampling  = false      # dynamic sampling (bool)",
    ]
    assert 'profiles.full.include = "smoke"' in lines
    assert 'profiles.smoke.data = "{data}/small.jsonl"' in lines
    assert 'resume.says = "weights and progress only: the optimizer\'s state is lost"' in lines
    assert 'secrets = ["HF_TOKEN"]' in lines


def refusals(said: Said) -> str:
    """What a dry run says would be refused, between its plan and its verdict."""
    assert said.err == ""
    found = said.out.partition("# refused: ")[2].partition("# verdict: ")[0]
    return "".join(line.removeprefix("# ") for line in found.splitlines(keepends=True))


@pytest.mark.parametrize("dry", [True, False], ids=["dry", "real"])
def test_a_missing_secret_is_found_before_anything_starts(rlbox: Rlbox, mine: Folder, dry: bool) -> None:
    (mine.path / ".env").unlink()
    said = rlbox("run", "mine", "--profile", "smoke", *(["--dry-run"] if dry else []))
    disk = Path("~/disk").expanduser()
    where = "" if dry else "  where: rlbox run\n"
    told = (
        "secret HF_TOKEN (or HUGGING_FACE_HUB_TOKEN) is missing; looked in the environment, "
        f"{mine.path}/.env (not there), {disk}/.env (not there)\n"
        f"{where}  next:  write NAME=value into {mine.path}/.env, or export it\n"
    )
    if dry:
        assert (said.code, refusals(said)) == (2, told)
    else:
        said.check_error(2, told)
    assert not (disk / "runs").exists()


WANTED = ("run", "mine", "--profile", "smoke", "--dry-run")


def test_a_secret_is_written_where_it_is_told(follow: Follow, mine: Folder) -> None:
    (mine.path / ".env").unlink()
    step = follow(*WANTED)
    found = re.search(r"write NAME=value into (\S+),", step.text)
    assert found
    Path(found[1]).write_text("HF_TOKEN=planted-0123456789-word\n")
    follow.again(step)
