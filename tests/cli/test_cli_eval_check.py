"""`rlbox eval check` without torch: what is refused. tests/evaluation/test_export_check.py has a real one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fakes import Folder, Rlbox
from playbox import export

pytestmark = pytest.mark.allow("processes")
PLAYED = """import json, sys
asked = json.load(sys.stdin)
for row in ({rows}):
    print(json.dumps(row))
"""
"""Stands for the comparison: an interpreter that says these rows, whatever it is asked to run."""
TOKENIZER = {"step": "tokenizer", "tokens": 1}
END = {"step": "end", "equal": 1, "tensors": 1, "casts": [{"own": "float32", "export": "bfloat16", "tensors": 1}]}


@pytest.fixture
def site(folder: Folder) -> Path:
    for name in ("global_step_1/huggingface", "base", "trainer"):
        export(folder.path / name)
    return folder.path


def played(site: Path, *rows: object) -> str:
    path = site / "python"
    path.write_text(f"#!{sys.executable}\n" + PLAYED.format(rows=f"{[*rows, TOKENIZER, END]!r}"))
    path.chmod(0o755)
    return str(path)


def test_what_is_the_same_is_said(site: Path, rlbox: Rlbox) -> None:
    words = ("eval", "check", "global_step_1", "--against", "trainer", "--model", "base")
    said = rlbox(*words, "--python", played(site, {"step": "progress", "done": 0, "total": 1}))
    assert said.code == 0
    assert said.out == (
        "compared with safetensors of 1 ranks\ntensors: 1 of 1 are the trainer's, bit by bit\n"
        "  1 cast from float32 to bfloat16\ntokenizer: the same 1 tokens and chat template\n"
    )
    assert "0 of 1 tensors are compared" in said.err


def test_what_differs_is_named_and_has_an_exit_code(site: Path, rlbox: Rlbox) -> None:
    (site / "base/config.json").write_text('{"rope": {"theta": 1}, "use_cache": true, "hidden_size": 4}')
    config = '{"rope": {"theta": 2}, "use_cache": false, "layer_types": []}'
    (site / "global_step_1/huggingface/config.json").write_text(config)
    fault = {"step": "fault", "kind": "differs", "of": "w", "says": "1 of 4 numbers differ", "tensor": "w", "wrong": 1}
    words = ("eval", "check", "global_step_1", "--against", "trainer", "--model", "base", "--python")
    said = rlbox(*words, played(site, fault))
    assert said.code == 1
    assert "[FAIL] config.json: rope.theta: 2, not 1" in said.out
    assert "[FAIL] w: 1 of 4 numbers differ" in said.out
    faults = rlbox(*words, played(site, fault), "--json").data["check"]["faults"]
    assert faults[0] == {"of": "config.json: rope.theta", "says": "2, not 1", "kind": "config"}
    assert {name: faults[1][name] for name in ("of", "kind", "wrong")} == {"of": "w", "kind": "differs", "wrong": 1}
    assert len(faults) == 2


def test_a_comparison_that_dies_says_nothing_of_the_export(site: Path, rlbox: Rlbox) -> None:
    path = site / "python"
    path.write_text("#!/bin/sh\necho 'out of memory' >&2\nexit 9\n")
    path.chmod(0o755)
    words = ("eval", "check", "global_step_1", "--against", "trainer", "--model", "base", "--python", str(path))
    said = rlbox(*words)
    assert said.code == 1
    assert "nothing was compared: the comparison ended with status 9: out of memory" in said.err


@pytest.mark.parametrize(
    ("names", "merger"),
    [
        (
            ["model_world_size_1_rank_0.pt"],
            "-m verl.model_merger merge --backend fsdp --local_dir trainer ",
        ),
        (["bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"], "-m deepspeed.utils.zero_to_fp32 . "),
    ],
)
def test_shards_are_merged_by_the_framework_that_wrote_them(
    site: Path, rlbox: Rlbox, names: list[str], merger: str
) -> None:
    for path in (site / "trainer").iterdir():
        path.unlink()
    for name in names:
        (site / "trainer" / name).write_bytes(b"")
    python = site / "python"
    python.write_text(f'#!/bin/sh\necho "$*" >>{site}/argv\nexit 7\n')
    python.chmod(0o755)
    words = ("eval", "check", "global_step_1", "--against", "trainer", "--model", "base", "--python", str(python))
    said = rlbox(*words)
    assert (said.code, "failed with status 7" in said.err) == (1, True)
    assert (site / "argv").read_text().startswith(merger)


def test_missing_ranks_and_unknown_forms_are_reported(site: Path, rlbox: Rlbox) -> None:
    words = ("eval", "check", "global_step_1", "--against", "trainer", "--model", "base", "--python", "python3")
    (site / "trainer/model_world_size_3_rank_1.pt").write_bytes(b"")
    assert "ranks missing: [0, 2] (of 3)" in rlbox(*words).err
    for path in (site / "trainer").iterdir():
        path.unlink()
    assert "holds no weights that are known" in rlbox(*words).err
    (site / "trainer/__0_0.distcp").write_bytes(b"")
    assert "is a distributed checkpoint (.distcp)" in rlbox(*words).err
