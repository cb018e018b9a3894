"""`rlbox eval check` on exports of a real small model, trained and merged by FSDP2, verl and DeepSpeed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlbox.cli.root import run_root

PROGRAMS = Path(__file__).parent / "programs"
WEIGHT = "model.layers.0.self_attn.q_proj.weight"
TWIN = "model.layers.1.self_attn.q_proj.weight"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter with torch, verl and DeepSpeed, which are downloaded; RLBOX_TEST_TORCH names an existing one."""
    if known := os.environ.get("RLBOX_TEST_TORCH"):
        return known
    venv = tmp_path_factory.mktemp("torch") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    packages = ["torch==2.13.0", "verl==0.9.1", "accelerate", "safetensors", "setuptools", "wheel"]
    for names in (packages, ["deepspeed==0.19.8"]):  # whose own setup wants torch
        subprocess.run([str(venv / "bin/pip"), "install", "-q", *names], check=True)
    return str(venv / "bin/python")


@pytest.fixture(scope="module")
def trained(python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training: see train_small.py."""
    folder = tmp_path_factory.mktemp("trained")
    subprocess.run([python, "-W", "ignore", str(PROGRAMS / "train_small.py"), str(folder)], check=True)
    return folder


@pytest.fixture(scope="module")
def tied(python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of a model whose head is its embedding."""
    folder = tmp_path_factory.mktemp("tied")
    subprocess.run([python, "-W", "ignore", str(PROGRAMS / "train_small.py"), str(folder), "tied"], check=True)
    return folder


@pytest.fixture
def check(python: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any]]]:
    def asked(export: Path, against: Path, *more: str) -> tuple[int, dict[str, Any]]:
        words = ["eval", "check", str(export), "--against", str(against), "--python", python, "--json", *more]
        code, said = run_root(words), capsys.readouterr()
        assert code in (0, 1), said.err
        return code, json.loads(said.out)["check"]

    return asked


@pytest.mark.parametrize("kind", ["trained", "tied"])
def test_eval_check_good_export_of_verl_is_accepted(kind: str, check: Any, request: pytest.FixtureRequest) -> None:
    directory = request.getfixturevalue(kind)
    base = ("--model", str(directory / "base"))
    code, report = check(directory / "global_step_3", directory / "global_step_3", *base)
    assert (code, report["faults"], report["source"]) == (0, [], {"form": "FSDP", "ranks": 3})
    (cast,) = report["casts"]
    assert (cast["own"], cast["export"], cast["tensors"]) == ("bfloat16", "bfloat16", report["tensors"])
    code, report = check(directory / "two/huggingface", directory / "two", *base)  # HSDP: two copies of two pieces
    assert (code, report["source"]["ranks"]) == (0, 4)


def test_eval_check_cast_of_complete_tensors_is_accepted(trained: Path, check: Any) -> None:
    code, report = check(trained / "global_step_3", trained / "fp32", "--model", str(trained / "base"))
    assert (code, report["source"]["form"]) == (0, "safetensors")
    assert [(cast["own"], cast["export"]) for cast in report["casts"]] == [("float32", "bfloat16")]


def test_eval_check_deepspeed_partitions_are_merged(trained: Path, tmp_path: Path, python: str, check: Any) -> None:
    # DeepSpeed compiles with its ninja; a killed run leaves a lock in the home folder's cache, for which others wait
    path = f"{Path(python).parent}:{os.environ['PATH']}"
    environ = os.environ | {"PATH": path, "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")}
    subprocess.run([python, "-W", "ignore", str(PROGRAMS / "train_deepspeed.py"), trained], check=True, env=environ)
    base = ("--model", str(trained / "base"))
    for stage in (1, 2, 3):
        directory = trained / f"zero{stage}"
        code, report = check(directory / "export", directory, *base)
        assert (code, report["faults"], report["source"]) == (0, [], {"form": "DeepSpeed ZeRO", "ranks": 2})
        assert [cast["own"] for cast in report["casts"]] == ["float32"]
        export = spoilt(python, directory / "export", tmp_path / f"zero{stage}", "swapped")
        code, report = check(export, directory, *base)
        assert (code, {fault["of"] for fault in report["faults"]}) == (1, {WEIGHT, TWIN})


FAULTS = {
    "swapped": {WEIGHT: "of 1024 numbers differ, by", TWIN: "of 1024 numbers differ, by"},
    "a bit": {WEIGHT: "1 of 1024 numbers differ"},
    "negative zero": {WEIGHT: "numbers differ"},
    "another type": {WEIGHT: "it is float16, neither the trainer's float32 nor the bfloat16 that is named"},
    "another shape": {WEIGHT: "its shape is [31, 32], the trainer's [32, 32]"},
    "missing": {WEIGHT: "the export has no such tensor"},
    "transposed": {WEIGHT: "numbers differ"},
    "a stale shard": {"model-00009-of-00009.safetensors": "no index names it: it is of another export"},
    "stale weights beside": {"pytorch_model.bin": "weights of another form beside the safetensors"},
    "a stale index": {WEIGHT: "the export has no such tensor"},
    "vocabulary": {"vocabulary": "2 of"},
    "merges": {"merges": "differ; 0 is"},
    "added token": {"added tokens": 'not {"<eos>": 0, "<pad>": 1}'},
    "pre_tokenizer": {"pre_tokenizer": '"add_prefix_space": true'},
    "eos": {"eos_token": "'<pad>', not '<eos>'"},
    "template": {"chat template": "'{{ messages }}', not"},
    "configuration": {"config.json: rms_norm_eps": "0.5, not 1e-06"},
}
"""What is spoilt, and what is said: of these tensors, files or parts, and of no others but those beside them."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_named(fault: str, trained: Path, tmp_path: Path, python: str, check: Any) -> None:
    export = spoilt(python, trained / "global_step_3/huggingface", tmp_path / "export", fault)
    code, found = check(export, trained / "fp32", "--model", str(trained / "base"))
    assert code == 1
    told = {row["of"]: row["says"] for row in found["faults"]}
    for of, says in FAULTS[fault].items():
        assert says in told[of]
    assert len(told) <= 2


def test_an_export_of_another_step_differs_everywhere(trained: Path, check: Any) -> None:
    code, found = check(trained / "base", trained / "fp32", "--model", str(trained / "base"))
    assert code == 1
    assert found["equal"] == 0


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda folder: (folder / "model_world_size_3_rank_1.pt").unlink(), "ranks missing: [1] (of 3)"),
        (lambda folder: cut(folder / "model_world_size_3_rank_1.pt"), "verl.model_merger failed with status 1"),
        (lambda folder: other_form(folder), "is a distributed checkpoint (.distcp)"),
        (lambda folder: [path.unlink() for path in folder.glob("*.pt")], "holds no weights that are known"),
    ],
)
def test_a_checkpoint_that_cannot_be_read_is_said_to_be(
    trained: Path, tmp_path: Path, python: str, spoil: Callable[[Path], Any], told: str, capsys: Any
) -> None:
    folder = tmp_path / "global_step_3"
    shutil.copytree(trained / "global_step_3", folder, ignore=shutil.ignore_patterns("huggingface"))
    spoil(folder)
    words = ["eval", "check", str(trained / "fp32"), "--against", str(folder), "--model", str(trained / "base")]
    assert run_root([*words, "--python", python]) == 1
    assert told in capsys.readouterr().err


def test_eval_check_code_in_complete_tensors_is_not_run(
    trained: Path, tmp_path: Path, python: str, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = tmp_path / "evil"
    evil.mkdir()
    code = "import os, sys, torch\nclass E:\n    def __reduce__(self): return os.system, ('touch ' + sys.argv[2],)\n"
    code += "torch.save({'x': E()}, sys.argv[1])"
    subprocess.run([python, "-c", code, str(evil / "pytorch_model.bin"), str(tmp_path / "ran")], check=True)
    words = ["eval", "check", str(trained / "fp32"), "--against", str(evil), "--model", str(trained / "base")]
    assert run_root([*words, "--python", python]) == 1
    assert not (tmp_path / "ran").exists()
    assert "pytorch_model.bin cannot be read" in capsys.readouterr().err


def spoilt(python: str, export: Path, folder: Path, fault: str) -> Path:
    shutil.copytree(export, folder)
    subprocess.run([python, str(PROGRAMS / "spoil.py"), str(folder), fault], check=True)
    return folder


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def other_form(folder: Path) -> None:
    for path in folder.glob("*.pt"):
        path.unlink()
    (folder / "__0_0.distcp").write_bytes(b"x")
    (folder / ".metadata").write_bytes(b"x")
