"""`rlbox stack`, and `rlbox lock` on a spec that contradicts itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fakes import EngineSocket, Folder, Rlbox, load_cases
from following import Follow

from rlbox.config.toml_files import load_toml

CASES = load_cases("cli", "test_cli_stack")
SPEC = CASES["SPEC"]


def test_a_stack_that_fits(rlbox: Rlbox, folder: Folder) -> None:
    folder.target("mine", SPEC.format(torch="2.9.0"))
    said = rlbox("stack", "mine")
    assert (said.code, said.err) == (0, "")
    first, *rest = said.out.splitlines()
    assert first.startswith("mine  fits together, as far as ")
    assert "  CUDA of torch                12.8             follows" in rest
    assert "  torch                        2.9.0            stack.s" in rest
    data = rlbox("stack", "mine", "--solve", "--json").data
    assert (data["schema"], data["fits"], data["versions"]["flashinfer-python"]) == (1, True, "0.5.3")
    assert "vllm-0-11-1-torch" in data["facts"]


def test_a_stack_that_contradicts_itself(rlbox: Rlbox, folder: Folder) -> None:
    folder.target("mine", SPEC.format(torch="2.8.0"))
    said = rlbox("stack", "mine")
    assert said.code == 2
    assert said.out.splitlines()[:4] == [
        "mine  no solution, because these contradict each other:",
        "torch ==2.8.0  (stack.s)",
        "vllm ==0.12.0  (stack.s)",
        next(line for line in said.out.splitlines() if line.startswith("vllm>=0.11.1,<=0.13.0 wants torch==2.9.0")),
    ]
    assert re.search(r"\[vllm-0-11-1-torch: metadata of \d{4}-\d\d-\d\d\]$", said.out.splitlines()[3])
    assert said.out.splitlines()[4].startswith("nearest change: set torch to 2.9.0; or else set vllm to 0.11.0; ")
    data = rlbox("stack", "mine", "--json").data
    assert data["fits"] is False
    assert data["changes"][:2] == [{"torch": "2.9.0"}, {"vllm": "0.11.0"}]
    assert [row.get("fact", row.get("name")) for row in data["clash"]] == ["torch", "vllm", "vllm-0-11-1-torch"]


WAYS = load_toml(Path(__file__).with_name("ways.toml"))
DEFAULTS = {"gpu": "sm_80", "grade": "datacenter", "driver": "13.0", "base": "", "group": "", "to": "", "each": ""}
WRITTEN = CASES["WRITTEN"]


@pytest.mark.parametrize("name", WAYS)
def test_what_would_fit_is_done(follow: Follow, folder: Folder, name: str) -> None:
    way = {**DEFAULTS, **WAYS[name]}
    path = folder.target("mine", WRITTEN.format(**way))
    step = follow("lock", "mine")
    found = re.search(way["step"], step.text)
    assert found, step.text
    first, *rest = found.groups("") or ("",)
    to = way["to"].format(first, *rest) + "".join(way["each"].format(n, *rest) for n in re.split(r" and |, ", first))
    assert way["old"] in path.read_text()
    path.write_text(path.read_text().replace(way["old"], to))
    assert "fits together" in follow.changed(step, ["stack", "mine"], 0).out


CLASHING = SPEC.format(torch="2.8.0")
JOB_ON_MINE = """
title = "one stage"
target = "mine"
[[stages]]
name = "only"
title = "does it"
command = ["true"]
"""
ASKING = CASES["ASKING"]


@pytest.fixture
def clashing(folder: Folder) -> Folder:
    """A project with a job on a target that is locked and contradicts itself."""
    folder.target("mine", CLASHING.replace('"12.8"', '"12.8"\nplatform = "vast"') + "need_gib = 40\n")
    folder.lock("mine")
    folder.job("one", JOB_ON_MINE)
    return folder


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("name", ASKING)
def test_a_verb_refuses_a_stack_that_contradicts_itself(rlbox: Rlbox, clashing: Folder, name: str) -> None:
    words = [word.replace("PREFIX", str(clashing.path / "prefix")) for word in ASKING[name]]
    before = clashing.files()
    said = rlbox(*words)
    assert said.code == 2
    told = said.err + said.out
    assert "the stack of target mine contradicts itself:" in told
    assert "vllm>=0.11.1,<=0.13.0 wants torch==2.9.0" in told
    assert "set torch to 2.9.0; or else set vllm to 0.11.0; " in told
    assert clashing.files() == before


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("name", ["build", "run"])
def test_force_goes_on_with_a_stack_that_contradicts_itself(rlbox: Rlbox, clashing: Folder, name: str) -> None:
    words = [word.replace("PREFIX", str(clashing.path / "prefix")) for word in ASKING[name]]
    said = rlbox(*words, "--force", "--dry-run")
    assert "warning: the stack of target mine contradicts itself: torch ==2.8.0 (stack.s); " in said.err.replace(
        "  ", " "
    )
    assert "next:  set torch" not in said.err + said.out


@pytest.mark.parametrize("words", [("stack", "mine"), ("lock", "mine", "--check", "--offline"), ("build", "mine")])
def test_a_version_that_is_not_known_is_said(rlbox: Rlbox, folder: Folder, no_engine: None, words: list[str]) -> None:
    folder.target("mine", SPEC.format(torch="2.11.0").replace("12.8", "13.0").replace("0.12.0", "0.24.1rc7"))
    folder.lock("mine")
    said = rlbox(*words)
    told = said.out + said.err
    assert "not known: vllm 0.24.1rc7 (known: 0." in told
    assert "fits" not in told
    assert rlbox("stack", "mine").code == 0
    data = rlbox("stack", "mine", "--json").data
    assert data["fits"] is None
    assert [(row["name"], row["version"]) for row in data["unknown"]] == [("vllm", "0.24.1rc7")]


@pytest.mark.allow("sockets")
def test_what_was_forced_is_recorded(rlbox: Rlbox, folder: Folder, engine: EngineSocket) -> None:
    spec = 'packages = ["torch==2.11.0", "flash-attn-3==3.0.0"]'
    folder.target("mine", CLASHING.replace('packages = ["torch==2.8.0", "vllm==0.12.0"]', spec).replace("12.8", "13.0"))
    folder.lock("mine")
    folder.job("one", JOB_ON_MINE)
    build = rlbox("build", "mine", "--force", "--dry-run", "--json").data
    assert "flash-attn 3 has kernels for Hopper alone" in build["forced"]
    assert f"--label=rlbox.forced={build['forced']}" in build["command"], build["verdict"]
    plan = rlbox("run", "one", "--force", "--dry-run", "--json").data["plan"]
    assert plan["notes"] == [f"forced: the stack of target mine contradicts itself: {build['forced']}"]
    assert engine.made == []
