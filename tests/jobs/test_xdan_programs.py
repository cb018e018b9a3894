"""The programs of `xdan`, in this process: algebra, the wait for the cluster, the gap of each update."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from xdan import answers, nodes
from xdan.program import JobError


def test_algebra_is_asked_when_both_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    module, asked = ModuleType("math_verify"), []

    def verify(wanted: Any, given: Any) -> bool:
        asked.append((wanted, given))
        return wanted == given

    module.LatexExtractionConfig = object  # type: ignore[attr-defined]
    module.parse = lambda text, extraction_config: text.strip("$").replace("?", "")  # type: ignore[attr-defined]
    module.verify = verify  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "math_verify", module)
    assert answers.same_by_algebra(("a", "$a$"))
    assert not answers.same_by_algebra(("a", "b"))
    assert len(asked) == 2
    assert not answers.same_by_algebra(("?", "?"))
    assert not answers.same_by_algebra(("?", "a"))
    assert not answers.same_by_algebra(("a", "?"))
    assert len(asked) == 2
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not answers.knows_algebra()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert answers.knows_algebra()


def node(name: str = "a", gpus: float = 8.0, alive: bool = True) -> dict[str, Any]:
    return {"Alive": alive, "NodeManagerHostname": name, "Resources": {"GPU": gpus}, "NodeID": name}


class Ray(ModuleType):
    """Ray as the check uses it: the nodes come one after another, every task is done here."""

    def __init__(self, *seen: list[dict[str, Any]]) -> None:
        super().__init__("ray")
        self.seen = list(seen)
        self.remote = lambda **options: (
            lambda call: SimpleNamespace(options=lambda scheduling_strategy: SimpleNamespace(remote=call))
        )
        self.get = lambda asked, timeout: asked
        self.init = lambda **words: None
        self.get_runtime_context = lambda: SimpleNamespace(gcs_address="10.0.0.1:8100")

    def nodes(self) -> list[dict[str, Any]]:
        return self.seen.pop(0) if len(self.seen) > 1 else self.seen[0]


def cluster(monkeypatch: pytest.MonkeyPatch, *seen: list[dict[str, Any]]) -> None:
    strategies = ModuleType("ray.util.scheduling_strategies")
    strategies.NodeAffinitySchedulingStrategy = lambda node, soft: node  # type: ignore[attr-defined]
    for module in (Ray(*seen), ModuleType("ray.util"), strategies):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(nodes.time, "sleep", lambda seconds: None)


def test_the_wait_says_each_change_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cluster(monkeypatch, [], [], [node()], [node(), node("b")])
    assert len(nodes.wait(2, 16, 60)) == 2
    assert capsys.readouterr().out.splitlines() == [
        "[xdan][nodes] waiting: 0 of 2 nodes, 0 of 16 GPUs (none)",
        "[xdan][nodes] waiting: 1 of 2 nodes, 8 of 16 GPUs (a)",
    ]
    cluster(monkeypatch, [node()])
    with pytest.raises(JobError, match=r"after 0 s; on each worker: ray-start worker --address=10\.0\.0\.1:8100"):
        nodes.wait(2, 16, 0)


@pytest.mark.parametrize(("problems", "fails"), [([], False), (["no disk"], True)])
def test_every_node_must_be_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], problems: list[str], fails: bool
) -> None:
    cluster(monkeypatch, [node()])
    monkeypatch.setattr(nodes, "look", lambda paths, url: {"host": "a", "problems": problems})
    monkeypatch.setattr(sys, "argv", ["nodes", "--nodes", "1", "--gpus", "8", "--url", "u", "path"])
    if fails:
        with pytest.raises(JobError, match="a: no disk"):
            nodes.main()
    else:
        nodes.main()
    out = capsys.readouterr().out
    assert (f"[xdan][nodes] a: {'; '.join(problems) or 'fit'}" in out, "passed: 1 nodes" in out) == (True, not fails)


def test_the_attention_that_was_asked_for_must_be_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """flash-attn-4 lays a folder `flash_attn`, too: what is asked for is the module that transformers imports."""
    cluster(monkeypatch, [node()])
    monkeypatch.setattr(nodes, "look", lambda paths, url: {"host": "a", "problems": []})
    words = ["nodes", "--nodes", "1", "--gpus", "8", "--url", "u", "--attention"]
    monkeypatch.setattr(sys, "argv", [*words, "sdpa"])
    nodes.main()
    monkeypatch.setattr(sys, "argv", [*words, "flash_attention_2"])
    package, interface = ModuleType("flash_attn"), ModuleType("flash_attn.flash_attn_interface")
    package.__path__, package.__version__ = [], "2.8.3"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    with pytest.raises(JobError, match="a: FlashAttention 2 is not in the environment"):
        nodes.main()
    interface.flash_attn_func = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    nodes.main()
    told = [line for line in capsys.readouterr().out.splitlines() if "attention" in line and "fit" not in line]
    assert told[0] == "[xdan][nodes] attention sdpa"
    assert told[-1] == "[xdan][nodes] attention flash_attention_2, flash-attn 2.8.3"


def test_the_gap_of_each_update_is_read_and_a_missing_one_named() -> None:
    from xdan.gap import gaps

    lines = ["Global step 1: {'kl': 0.0, 'vllm_kl': -0.0002, 'reward': 0.5}", "else", "Global step 2: {'vllm_kl': nan}"]
    assert list(gaps(iter(lines))) == [(1, "-0.0002"), (2, "nan")]
    with pytest.raises(JobError, match="step 3 has no vllm_kl"):
        list(gaps(iter(["Global step 3: {'kl': 0.0}"])))
