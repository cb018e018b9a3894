"""`rlbox stack`, and `rlbox lock` on a spec that contradicts itself."""

from __future__ import annotations

import re

import pytest
from fakes import Folder, Rlbox
from following import Follow

SPEC = """
title = "t"
[hardware]
arch = "sm_120"
grade = "consumer"
cuda_driver = "12.8"
[base]
bootstrap = "debian:bookworm"
[[stack]]
name = "s"
packages = ["torch=={torch}", "vllm==0.12.0"]
[disk]
host = "~/disk"
"""


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
    assert "vllm-0-12" in data["facts"]


def test_a_stack_that_contradicts_itself(rlbox: Rlbox, folder: Folder) -> None:
    folder.target("mine", SPEC.format(torch="2.8.0"))
    said = rlbox("stack", "mine")
    assert said.code == 2
    assert said.out.splitlines()[:4] == [
        "mine  no solution, because these contradict each other:",
        "torch ==2.8.0  (stack.s)",
        "vllm ==0.12.0  (stack.s)",
        "vllm==0.12.* wants torch==2.9.0, flashinfer-python==0.5.3, ray>=2.48  [vllm-0-12: metadata]",
    ]
    assert said.out.splitlines()[4].startswith("nearest change: set torch to 2.9.0; or set vllm to 0.11.0; ")
    data = rlbox("stack", "mine", "--json").data
    assert data["fits"] is False
    assert data["changes"][:2] == [{"torch": "2.9.0"}, {"vllm": "0.11.0"}]
    assert [row.get("fact", row.get("name")) for row in data["clash"]] == ["torch", "vllm", "vllm-0-12"]


def test_the_lock_refuses_it_and_asks_nobody(rlbox: Rlbox, folder: Folder) -> None:
    folder.target("mine", SPEC.format(torch="2.8.0"))
    said = rlbox("lock", "mine")
    assert said.code == 2
    assert said.err.splitlines()[0] == "rlbox: error: the stack of target mine contradicts itself:"
    assert "  next:  set torch to 2.9.0; or set vllm to 0.11.0; " in said.err
    assert not (folder.path / "images/mine/lock.json").exists()


@pytest.mark.parametrize("verb", ["stack", "lock"])
def test_a_fact_that_is_not_there_cannot_be_left_out(rlbox: Rlbox, folder: Folder, verb: str) -> None:
    folder.target("mine", SPEC.format(torch="2.9.0") + '[compat.off]\nvllm-0-13x = "why"\n')
    said = rlbox(verb, "mine")
    assert said.code == 2
    assert "there is no fact 'vllm-0-13x' (did you mean 'vllm-0-13'?)" in said.err


def test_a_fact_left_out_is_not_judged(rlbox: Rlbox, folder: Folder) -> None:
    folder.target("mine", SPEC.format(torch="2.8.0") + '[compat.off]\nvllm-0-12 = "a build of ours"\n')
    assert rlbox("stack", "mine").code == 0


@pytest.mark.parametrize("nth", [0, 1])
def test_the_nearest_change_fits(follow: Follow, folder: Folder, nth: int) -> None:
    folder.target("mine", SPEC.format(torch="2.8.0"))
    step = follow("lock", "mine")
    name, version = re.findall(r"set (\w+) to ([\d.]+)", step.text)[nth]
    path = folder.path / "images/mine/target.toml"
    path.write_text(re.sub(rf"\b{name}==[\d.*]+", f"{name}=={version}", path.read_text()))
    assert "fits together" in follow.changed(step, ["stack", "mine"], 0).out


def test_a_fact_that_is_wrong_is_left_out(follow: Follow, folder: Folder) -> None:
    path = folder.target("mine", SPEC.format(torch="2.8.0"))
    step = follow("lock", "mine")
    found = re.search(r"\(([a-z0-9-]+)\) goes into (\[compat\.off\])", step.text)
    assert found
    path.write_text(path.read_text() + f'{found[2]}\n{found[1]} = "a build of ours"\n')
    assert "fits together" in follow.changed(step, ["stack", "mine"], 0).out
