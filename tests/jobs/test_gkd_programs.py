"""The programs of `gkd`: what the check refuses, and how the teacher is asked."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from gkd import check, teacher


@pytest.fixture
def trees(tmp_path: Path) -> dict[str, Path]:
    """Data, recipe and library as the run wants them."""
    registry = tmp_path / "verl/workers/rollout/base.py"
    registry.parent.mkdir(parents=True)
    registry.write_text('("vllm", "sync"): ...')
    (tmp_path / "main_gkd.py").touch()
    (tmp_path / "train.parquet").write_bytes(b"x")
    return {"--library": tmp_path, "--recipe": tmp_path, "--train-file": tmp_path / "train.parquet"}


def asked(trees: dict[str, Path], monkeypatch: pytest.MonkeyPatch, **more: str) -> None:
    words = {"--actor-gpus": "2", "--rollout-gpus": "2", "--teacher-gpus": "4"} | {k: str(v) for k, v in trees.items()}
    words |= {f"--{key.replace('_', '-')}": value for key, value in more.items()}
    monkeypatch.setattr(sys, "argv", ["check", *(word for pair in words.items() for word in pair)])
    monkeypatch.setattr(check.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(check, "visible_gpus", lambda: 8)
    check.main()


def test_all_that_is_wrong_is_said_at_once(
    trees: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked(trees, monkeypatch)
    out = capsys.readouterr().out
    assert [line.partition("]")[0] for line in out.splitlines()] == ["[OK", "[OK", "[OK", "[OK", "[check"]
    assert "[check] passed: 8 GPUs" in out
    with pytest.raises(SystemExit) as ended:
        asked(trees | {"--train-file": Path("/none")}, monkeypatch, total_gpus="3")
    out = capsys.readouterr().out
    assert ended.value.code == 1
    assert [line.partition("]")[0] for line in out.splitlines()] == ["[FAIL", "[FAIL", "[OK", "[OK"]
    assert "3 are visible" in out


def test_the_library_must_have_the_registry(trees: dict[str, Path]) -> None:
    (trees["--library"] / "verl/workers/rollout/base.py").unlink()
    assert "no verl with synchronous rollouts" in check.library_problem(trees["--library"], trees["--recipe"])


@pytest.mark.parametrize(("size", "took_s", "warned"), [(2 << 20, 1.0, True), (2 << 20, 0.07, False), (10, 1.0, False)])
def test_slow_data_are_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    size: int,
    took_s: float,
    warned: bool,
) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(bytes(size))
    clock = iter((0.0, took_s))
    monkeypatch.setattr(check.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(check.importlib.util, "find_spec", lambda name: name)
    assert check.data_problem(path) == ""
    assert ("[WARN]" in capsys.readouterr().out) == warned


def test_gpus_and_interfaces_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check.split_problem(1, 1, ["x"], 8) == "teacher_gpus names GPU x, the node has 0 to 7"
    monkeypatch.setattr(check.socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth1")])
    assert check.interface_problem("nope0", "Iface\n\neth9 00000000 0\n").endswith("--set interface=eth9")
    assert check.interface_problem("nope0", "eth9 000011AC 0\n").endswith("--set interface=eth1")
    assert check.interface_problem("^lo") == ""


def test_the_teacher_says_what_is_no_request() -> None:
    class Engine:
        def get_topk_logprobs(self, *words: Any, **named: Any) -> tuple[Any, Any, Any]:
            return words, named, 0

    wrong = {"status": "error", "reason": "invalid request format."}
    assert teacher.answer(Engine(), {"max_tokens": 1}) == wrong
    assert teacher.answer(Engine(), ["prompt_token_ids"]) == wrong
    told = teacher.answer(Engine(), {"prompt_token_ids": [[1]]})
    assert (told["responses"], told["teacher_topk_logprobs"]) == (
        ([[1]], 0.8),
        {"max_new_tokens": 1, "only_response": False},
    )


def test_token_ids_become_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Llm:
        def generate(self, prompts: Any = None, *words: Any, **named: Any) -> Any:
            return prompts

    vllm = ModuleType("vllm")
    vllm.LLM = Llm  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    teacher.accept_token_ids()
    assert Llm().generate(prompt_token_ids=[(1, 2)]) == [{"prompt_token_ids": [1, 2]}]
    assert Llm().generate("text") == "text"
