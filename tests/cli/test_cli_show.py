"""`rlbox show`, `rlbox targets`, `rlbox completion`."""

from __future__ import annotations

import json

import pytest
from fakes import Folder, Rlbox

from rlbox.cli.init import create_spec_json_schema

SHIPPED = ["a800-cn", "cluster-2node", "cluster-2node-flash", "hopper", "local", "vast-5090", "vast-5090-flash"]
JOBS = ["gkd", "grpo", "holdem", "sft", "small", "smoke", "xdan"]


def test_a_target(rlbox: Rlbox, folder: Folder) -> None:
    folder.target("mine")
    said = rlbox("show", "mine")
    assert (said.code, said.err) == (0, "")
    assert {"# target mine", 'base.bootstrap = "debian:bookworm"', 'stack[0].packages = ["six==1.16.0"]'} <= {
        *said.out.splitlines()
    }
    data = rlbox("show", "mine", "--json").data
    assert (data["schema"], data["target"]["stack"][0]["packages"]) == (1, ["six==1.16.0"])


def test_a_job(rlbox: Rlbox, folder: Folder) -> None:
    folder.job("small")
    said = rlbox("show", "small")
    assert said.code == 0
    assert said.out.splitlines()[:5] == [
        "# job small",
        'name = "small"',
        'title = "smallest job"',
        'target = "mine"',
        "profiles = {}",
    ]
    assert 'stages[0].command = ["true"]' in said.out.splitlines()
    assert rlbox("show", "smoke", "--json").data["job"]["name"] == "smoke"


def test_a_target_comes_before_a_job_of_the_same_name(rlbox: Rlbox, folder: Folder) -> None:
    folder.target("same")
    folder.job("same")
    assert rlbox("show", "same").out.startswith("# target same\n")


@pytest.mark.parametrize("kind", ["target", "job"])
def test_schemas(rlbox: Rlbox, kind: str) -> None:
    said = rlbox("show", "--schema", kind)
    assert (said.code, said.err) == (0, "")
    assert said.data == create_spec_json_schema(kind) == json.loads(json.dumps(create_spec_json_schema(kind)))


def test_targets(rlbox: Rlbox, folder: Folder) -> None:
    folder.target("my-target")
    folder.job("small")
    said = rlbox("targets")
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert [line.split()[1] for line in lines] == [*sorted([*SHIPPED, "my-target"]), *JOBS]
    told = [" ".join(line.split()) for line in lines]
    assert {"target local CPU on any machine", "target my-target smallest target"} < set(told)
    assert told[-3:-1] == [
        "job small smallest job",
        "job smoke hold'em decisions: train-only, rollout-only, RL loop on CPU",
    ]
    assert rlbox("targets", "--json").data["found"][4:6] == [
        {
            "kind": "target",
            "name": "local",
            "source": "shipped",
            "problem": "",
            "title": "CPU on any machine",
            "pack": None,
            "status": None,
        },
        {
            "kind": "target",
            "name": "my-target",
            "source": "project",
            "problem": "",
            "title": "smallest target",
            "pack": None,
            "status": None,
        },
    ]


@pytest.mark.allow("processes")  # click asks bash for its version
@pytest.mark.parametrize(
    ("shell", "word"),
    [("bash", "complete -o nosort -F _rlbox_completion rlbox"), ("zsh", "#compdef rlbox"), ("fish", "complete ")],
)
def test_completion(rlbox: Rlbox, shell: str, word: str) -> None:
    said = rlbox("completion", shell)
    assert said.code == 0
    assert word in said.out
    assert "_RLBOX_COMPLETE=" in said.out
    assert rlbox("completion", shell, "--json").data["script"] + "\n" == said.out
