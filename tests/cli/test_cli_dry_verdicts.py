"""Every verb that has `--dry-run` ends it with a verdict, its exit code, and files where it may write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from fakes import EngineSocket, Folder, Rlbox, fitting_lock, tree
from reportbox import write_run
from test_cli_dry_run import ready, two, verdict
from vastbox import KEY

from rlbox.cli.root import COMMANDS, root
from rlbox.run.backend import DEFAULT_PLACE

pytestmark = pytest.mark.allow("sockets", "processes")
__all__ = ["ready", "two"]

WOULD = {
    "apply mine": "make ",
    "apply mine --remove": "change nothing: it is not installed here",
    "build mine": "build nothing: the image is what its specs say now",
    "bundle own-1": "write DISK/own-1.tar.gz",
    "cluster submit mine --nodes a,b true": "",
    "cluster up mine --nodes a,b": "",
    "compile mine": "",
    "data tiny text.txt --output tiny.parquet": "write 2 rows of text.txt to PROJECT/tiny.parquet",
    "engine up": "",
    "eval judge x --suite human-eval --url http://127.0.0.1:9": "",
    "eval report nosuch": "",
    "fetch mine": "fetch 1 files",
    "images rm mine": "",
    "init fresh --machine cpu": "write these files",
    "load text.txt": "",
    "lock mine": "write PROJECT/images/mine/lock.json",
    "prune": "remove nothing",
    "push mine --to 127.0.0.1:1/x": "push rlbox/mine:tests",
    "render mine": "write Dockerfile.base, images/mine/Dockerfile",
    "report own-1": "write own-1.html",
    "runs export own-1 --format prometheus --to x.prom": "export to x.prom",
    "runs prune": "remove 0 runs",
    "runs rm own-1": "remove 1 run",
    "run two": "start a run of two on mine, place docker: 2 stages",
    "run two --build": "start a run of two on mine, place docker: 2 stages",
    "run nosuch": "",
    "run two --profile nosuch": "",
    "run two --set x": "",
    "run two --target nosuch": "",
    "run --resume nosuch": "",
    "save mine x.tar": "save rlbox/mine:tests",
    "shell mine": "start a container of rlbox/mine:tests",
    "stop": "stop nothing",
    "stop own-1": "stop nothing",
    "vast search vast-5090": "ask vast.ai for its offers",
    "warm text.txt": "",
}
"""A line, and what its verdict begins with; empty where it is refused, or depends on the machine."""
RENTED = {f"vast {name}" for name in ("up", "create", "stop", "start", "fetch", "destroy")}
"""What asks the platform first: `test_cli_vast.py` has their verdicts."""


def verbs_with_dry_run(command: click.Command, name: str = "") -> Iterator[str]:
    """Yield every verb that has the option."""
    if any(param.name == "dry_run" for param in command.params):
        yield name
    if isinstance(command, click.Group):
        context = click.Context(command)
        names = COMMANDS if command is root else command.list_commands(context)
        for below in names:
            if found := command.get_command(context, below):
                yield from verbs_with_dry_run(found, f"{name} {below}".strip())


def test_every_verb_with_a_dry_run_is_typed_here() -> None:
    found = set(verbs_with_dry_run(root)) - RENTED
    two = ("vast", "runs", "images", "eval", "store", "cluster")
    assert found == {" ".join(line.split()[: 1 + line.startswith(two)]) for line in WOULD}


@pytest.fixture
def ground(two: Folder, ready: EngineSocket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """A project with a job, an image and a run; vast.ai knows the key, and no index is asked."""
    two.write("text.txt", "text\n")
    write_run(tmp_path / "disk/runs/own-1", samples=2, steps=2)
    monkeypatch.setenv("VAST_API_KEY", KEY)
    monkeypatch.setattr("rlbox.artifacts.relock.prepare_lock_sources", lambda app, target, sources: sources)
    monkeypatch.setattr("rlbox.artifacts.relock.resolve_lock", lambda target, own, *rest: fitting_lock(target, own))
    return two


@pytest.mark.parametrize("line", WOULD)
def test_it_ends_with_a_verdict(rlbox: Rlbox, ground: Folder, tmp_path: Path, line: str) -> None:
    rlbox("runs")  # what ended is settled by any verb
    if line.startswith("engine"):  # the docker client is asked whether an engine is there
        (tmp_path / "bin/docker").unlink()
    if line.startswith("lock"):
        (ground.path / "images/mine/lock.json").unlink()
    before = tree(tmp_path, Path.home())
    said = rlbox(*line.split(), "--dry-run")
    last = said.out.splitlines()[-1]
    assert last.startswith("# verdict: this would "), said
    assert tree(tmp_path, Path.home()) == before
    told = verdict(rlbox, *line.split())
    assert (told["exit_code"], bool(told["refused"])) == (said.code, "refused" in last)
    would = WOULD[line].replace("PROJECT", str(ground.path)).replace("DISK", str(ground.path))
    assert str(told["would"]).startswith(would), told


SLIPS = {
    "save mine OUT/x.tar": "FILE",
    "bundle own-1 --out OUT/x.tar.gz": "--out",
    "report own-1 --out OUT/x.html": "--out",
    "data tiny text.txt --output OUT/tiny.parquet": "--output",
    "render mine --context OUT/context": "--context",
    "fetch mine --export OUT/export": "--export",
}


@pytest.mark.parametrize("line", SLIPS)
def test_a_slip_of_an_output_makes_no_folder(rlbox: Rlbox, ground: Folder, line: str) -> None:
    """One rule for all that writes where somebody said: the folder is there, else it is refused with the `mkdir`."""
    missing = ground.path / "nosuch/dir"
    words = line.replace("OUT", str(missing)).split()
    (refused,) = [row for row in verdict(rlbox, *words)["refused"] if "folder" in row["what"]]
    assert refused == {
        "what": "the folder of this file does not exist",
        "where": words[-1],
        "next": f"mkdir -p {missing}, or use another path: {SLIPS[line]}",
        "exit_code": 5,
    }
    real = rlbox(*words, "--json")
    assert (real.code, real.data["error"]) == (5, refused)
    assert not missing.parent.exists()


def test_what_ends_a_dry_run_early_is_in_its_verdict(rlbox: Rlbox, ground: Folder) -> None:
    said = rlbox("run", "two", "--profile", "nosuch", "--dry-run")
    assert (said.code, said.out) == (2, "# verdict: this would be refused: 1 refusal, exit code 2\n")
    assert said.err.startswith("rlbox: error: job two has no profile 'nosuch'\n")
    told = rlbox("run", "two", "--profile", "nosuch", "--dry-run", "--json").data
    assert told["verdict"]["refused"] == [told["error"]]


def test_a_build_comes_first(
    rlbox: Rlbox, ground: Folder, ready: EngineSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--build` has a dry run, too: what would be made, and then the plan of the run."""
    ready.images.clear()
    found = verdict(rlbox, "run", "two", "--build")
    assert (found["refused"], found["first"][0]) == ([], "the image rlbox/mine:tests is built: there is none")
    assert [row["what"] for row in verdict(rlbox, "run", "two")["refused"]] == [
        "the engine has no image rlbox/mine:tests"
    ]
    monkeypatch.setenv("DOCKER_HOST", f"unix://{ground.path}/none.sock")
    monkeypatch.setattr("rlbox.cli.doctor.describe_missing_setup_steps", lambda: ("start the engine",))
    found = verdict(rlbox, "run", "two", "--build")
    assert found["first"][:2] == [
        "an engine: start the engine",
        "the image rlbox/mine:tests is built: there is no engine yet",
    ]
    assert (found["refused"], DEFAULT_PLACE in found["would"]) == ([], True)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "banana"])
def test_an_engine_elsewhere_is_not_brought(rlbox: Rlbox, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    assert [row["what"] for row in verdict(rlbox, "engine", "up")["refused"]] == ["no engine answers"]
    step = "start that engine, or correct DOCKER_HOST (or the docker context), or unset it for this machine's own"
    assert rlbox("engine", "status").out.endswith(f"next: {step}\n")
    assert json.loads(rlbox("shell", "local", "--json").out)["error"]["next"] == step
