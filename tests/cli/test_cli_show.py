"""`rlbox show`, `rlbox targets`, `rlbox completion`."""

from __future__ import annotations

import json
import re

import pytest
from fakes import Folder, Rlbox, Said

from rlbox.cli.schema import schema_of

MINE = """# target mine
name = "mine"
title = "smallest target"
hardware.gpu = ""
hardware.gpus = 0
hardware.gpu_memory_gib = 0.0
hardware.arch = ""
hardware.grade = ""
hardware.nodes = 1
hardware.cores = 0
hardware.memory_gib = 0.0
hardware.pid_limit = 0
hardware.platform = ""
hardware.region = ""
hardware.cuda_driver = ""
fixes.off = {}
compat.off = {}
base.bootstrap = "debian:bookworm"
base.suites = []
base.image = ""
base.packages = []
base.holds = {}
base.holds_apt = []
python.version = "3.11"
python.interpreter = "/usr/bin/python3"
python.platform = "x86_64-unknown-linux-gnu"
python.exclude = []
python.build = ["setuptools", "wheel"]
python.before = ""
stack[0].name = "tools"
stack[0].packages = ["six==1.16.0"]
stack[0].wheels = []
stack[0].compile = []
stack[0].source = "python"
stack[0].channel = ""
git = []
http = []
patches = []
sources = "direct"
env = {}
build.network = "host"
build.epoch = 1735689600
build.own_layer_mib = 20
build.bake_ca = false
run.network = "own"
run.shm_gib = 1.0
run.memory_gib = 0.0
run.cpus = 0.0
run.pids = 0
run.user = "caller"
run.ulimits = {}
run.cap_add = []
run.devices = {}
run.open = false
disk.mount = "/data"
disk.host = "~/disk"
disk.create = true
disk.need_gib = 1.0
disk.archive = ""
vast.mode = "ssh"
vast.gpu_name = ""
vast.image = ""
vast.options = ""
vast.max_price = 0.0
vast.min_reliability = 0.95
cluster.nodes = []
cluster.name = ""
cluster.port = 0
"""

SHIPPED = ["a800-cn", "cluster-2node", "cluster-2node-flash", "hopper", "local", "vast-5090", "vast-5090-flash"]
JOBS = ["gkd", "grpo", "holdem", "sft", "small", "smoke", "xdan"]


def test_a_target(rlbox: Rlbox, folder: Folder) -> None:
    folder.target("mine")
    assert rlbox("show", "mine") == Said(code=0, out=MINE, err="")
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
        "params = {}",
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
    assert said.data == schema_of(kind) == json.loads(json.dumps(schema_of(kind)))


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
    row = next(line for line in told if line.startswith("target vast-5090 "))
    assert re.search(r"verl 0.9.1, vLLM 0.24, CUDA 13 \((ran on|untested on) ", row), row
    proven = {"unproven": False, "proof": ""}
    assert rlbox("targets", "--json").data["found"][4:6] == [
        {
            "kind": "target",
            "name": "local",
            "source": "shipped",
            "problem": "",
            "title": "CPU on any machine",
            **proven,
        },
        {
            "kind": "target",
            "name": "my-target",
            "source": "project",
            "problem": "",
            "title": "smallest target",
            **proven,
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


@pytest.mark.parametrize(
    ("words", "offers"),
    [
        ("rlbox ren", ["render"]),
        ("rlbox run", ["run", "runs"]),
        ("rlbox build l", ["local"]),
        ("rlbox render mine m", ["mine"]),
        ("rlbox run s", ["sft", "smoke"]),
        ("rlbox show --schema j", ["job"]),
        ("rlbox run smoke --pl", ["--place"]),
        ("rlbox build --project EMPTY m", []),
    ],
)
def test_what_is_offered(rlbox: Rlbox, folder: Folder, words: str, offers: list[str]) -> None:
    folder.target("mine")
    (folder.path / "empty").mkdir()
    words = words.replace("EMPTY", str(folder.path / "empty"))
    assert [line.partition(",")[2] for line in rlbox.offers(words)] == offers
