"""`sft.trainer`, with modules in the place of verl that behave like it where they are touched."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
from sft import trainer


class Config:
    def __init__(self, offload_policy: bool) -> None:
        self.offload_policy = offload_policy


class FSDPEngine:
    """Moves its weights before each step, as verl's does."""

    def __init__(self, offload_policy: bool) -> None:
        self.engine_config = Config(offload_policy)
        self.moved: list[str] = []

    def to(self, device: str, model: bool = True, optimizer: bool = True, grad: bool = True) -> None:
        self.moved.append(device)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """verl's modules, and what was run."""
    found: dict[str, Any] = {"engine": type("FSDPEngine", (FSDPEngine,), {})}
    distributed = types.ModuleType("verl.utils.distributed")
    distributed.get_nccl_backend = lambda: "nccl"  # type: ignore[attr-defined]
    utils = types.ModuleType("verl.utils")
    utils.distributed = distributed  # type: ignore[attr-defined]
    implementation = types.ModuleType("verl.workers.engine.fsdp.transformer_impl")
    implementation.FSDPEngine = found["engine"]  # type: ignore[attr-defined]
    for name in ("verl", "verl.workers", "verl.workers.engine", "verl.workers.engine.fsdp"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    for module in (utils, distributed, implementation):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    found["backend"] = lambda: distributed.get_nccl_backend()
    monkeypatch.setattr("runpy.run_module", lambda name, **how: found.update(ran=name, **how))
    return found


@pytest.mark.parametrize(("word", "moved"), [("True", []), ("False", ["cuda"])])
def test_what_fsdp2_offloads_is_not_moved_to_the_gpu(
    started: dict[str, Any], monkeypatch: pytest.MonkeyPatch, word: str, moved: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["sft.trainer", "optim.lr=1", f"engine.offload_policy={word}"])
    trainer.main()
    engine = started["engine"](word == "True")
    engine.to(device="cuda", model=True)
    assert engine.moved == moved
    assert started["backend"]() == ("cpu:gloo,cuda:nccl" if word == "True" else "nccl")
    assert (started["ran"], started["run_name"]) == ("verl.trainer.sft_trainer", "__main__")


def test_an_engine_without_offload_is_as_it_was(started: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["sft.trainer", "engine.offload_policy=True"])
    trainer.main()
    other = started["engine"](False)  # a reference model, say
    other.to("cpu", False)
    assert other.moved == ["cpu"]
