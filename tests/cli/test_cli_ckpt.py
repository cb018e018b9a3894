"""`rlbox ckpt` on folders that are laid out as each framework lays them out."""

from __future__ import annotations

import io
import json
import os
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from fakes import CHECKOUT, Rlbox

OLD = time.time() - 3600


def torch_file(size: int = 200) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("archive/data.pkl", b"x" * size)
    return made.getvalue()


def safetensors(values: int = 16) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [values], "data_offsets": [0, values]}}).encode()
    return len(header).to_bytes(8, "little") + header + b"\0" * values


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (OLD, OLD))
    return folder


def verl_step(folder: Path, step: int, *, ranks: int = 2, actor: str = "", export: bool = True) -> Path:
    files = {
        f"{actor}{what}_world_size_{ranks}_rank_{rank}.pt": torch_file()
        for what in ("model", "optim", "extra_state")
        for rank in range(ranks)
    }
    files |= {f"{actor}huggingface/config.json": b"{}", "data.pt": torch_file()}
    if export:
        names = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
        files |= {f"{actor}huggingface/{name}": safetensors() for name in names["weight_map"].values()}
        files |= {f"{actor}huggingface/model.safetensors.index.json": json.dumps(names).encode()}
    return write(folder / f"global_step_{step}", files)


def check(rlbox: Rlbox, folder: Path, *words: str) -> tuple[int, Any]:
    said = rlbox("ckpt", "check", str(folder), "--json", *words)
    (series,) = said.data["series"]
    return said.code, series


@pytest.fixture
def sft(tmp_path: Path) -> Path:
    """Three steps of an SFT, the tracker at the last."""
    folder = tmp_path / "phase 1"
    for step in (100, 200, 378):
        verl_step(folder, step)
    return write(folder, {"latest_checkpointed_iteration.txt": b"378"})


def test_whole_checkpoints_and_what_can_go(rlbox: Rlbox, sft: Path) -> None:
    said = rlbox("ckpt", "ls", str(sft.parent))
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0] == str(sft)
    assert lines[1].split() == ["step", "kind", "state", "size", "model", "optimizer", "hf", "export"]
    assert [line.split()[:4] for line in lines[2:5]] == [
        ["100", "verl", "whole", "2.6"],
        ["200", "verl", "whole", "2.6"],
        ["378", "verl", "whole,", "latest"],
    ]
    assert [line.split()[2:] for line in lines[6:]] == [
        f"{sft}/global_step_{step}/optim_world_size_2* (the optimizer of a step that no run resumes from)".split()
        for step in (100, 200)
    ]
    assert said.err == "ckpt: 3 checkpoints, none torn\n"
    assert check(rlbox, sft)[0] == 0


def test_the_layout_of_the_note(rlbox: Rlbox, tmp_path: Path) -> None:
    for step in (100, 200):
        files = {"model/shard_0.pt": torch_file(), "optimizer/shard_0.pt": torch_file(), "extra/meta.json": b"{}"}
        files |= {"huggingface/config.json": b"{}", "huggingface/model.safetensors": safetensors()}
        write(tmp_path / f"global_step_{step}", files)
    code, series = check(rlbox, tmp_path)
    assert code == 0
    assert [row["path"] for row in series["removable"]] == [f"{tmp_path}/global_step_100/optimizer"]


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("rank", "model_world_size_2_rank_*.pt: ranks missing: 1 (of 2)"),
        ("pt", "optim_world_size_2_rank_0.pt: its end is missing"),
        ("empty", "extra_state_world_size_2_rank_1.pt: it is empty"),
        ("shard", "huggingface/model-00002-of-00002.safetensors: it is truncated: 80 of 86 bytes"),
        (
            "gone",
            "huggingface/model.safetensors.index.json names model-00001-of-00002.safetensors: 1 missing",
        ),
        ("config", "huggingface/config.json is missing"),
        ("mixed", "its files are of 2 and of 4 ranks"),
    ],
)
def test_what_is_torn_is_named_and_can_go(rlbox: Rlbox, sft: Path, damage: str, problem: str) -> None:
    step = sft / "global_step_200"
    match damage:
        case "rank":
            (step / "model_world_size_2_rank_1.pt").unlink()
        case "pt":
            write(step, {"optim_world_size_2_rank_0.pt": torch_file()[:-30]})
        case "empty":
            write(step, {"extra_state_world_size_2_rank_1.pt": b""})
        case "shard":
            write(step, {"huggingface/model-00002-of-00002.safetensors": safetensors()[:-6]})
        case "gone":
            (step / "huggingface/model-00001-of-00002.safetensors").unlink()
        case "config":
            (step / "huggingface/config.json").unlink()
        case "mixed":
            write(step, {f"model_world_size_4_rank_{rank}.pt": torch_file() for rank in range(4)})
    code, series = check(rlbox, sft)
    assert code == 1
    torn = [row for row in series["checkpoints"] if not row["whole"]]
    assert [(row["step"], row["problems"]) for row in torn] == [(200, [problem])]
    assert [row["why"] for row in series["removable"] if row["path"] == str(step)] == [
        "it is truncated, and step 378 is complete"
    ]


def test_a_step_that_the_tracker_does_not_name_yet_was_not_finished(rlbox: Rlbox, sft: Path) -> None:
    write(sft, {"latest_checkpointed_iteration.txt": b"200"})
    code, series = check(rlbox, sft)
    last = series["checkpoints"][-1]
    assert (code, last["problems"]) == (1, ["it was never finished: the tracker names step 200"])
    assert not last["being_written"]
    (sft / "global_step_378/data.pt").touch()
    assert check(rlbox, sft)[1]["checkpoints"][-1]["being_written"]
    said = rlbox("ckpt", "ls", str(sft))
    assert "torn, or being written" in said.out
    assert f"{sft}/global_step_378 " not in said.out


def test_the_checkpoint_to_resume_from_is_never_offered(rlbox: Rlbox, sft: Path) -> None:
    write(sft, {"latest_checkpointed_iteration.txt": b"100"})
    assert f"{sft}/global_step_100" not in json.dumps(check(rlbox, sft)[1]["removable"])


def test_without_an_export_nothing_is_offered(rlbox: Rlbox, tmp_path: Path) -> None:
    for step in (1, 2):
        verl_step(tmp_path, step, actor="actor/", export=False)
    code, series = check(rlbox, tmp_path)
    assert (code, series["removable"]) == (0, [])
    assert [row["hf_export"] for row in series["checkpoints"]] == [False, False]


def test_a_tracker_that_names_nothing(rlbox: Rlbox, sft: Path) -> None:
    write(sft, {"latest_checkpointed_iteration.txt": b"500\n"})
    code, series = check(rlbox, sft)
    assert (code, series["problems"]) == (1, ["the tracker names '500', which is not there: nothing can be resumed"])


def test_megatron(rlbox: Rlbox, tmp_path: Path) -> None:
    pickle = b"\x80\x04 __0_0.distcp __0_1.distcp"
    files = {".metadata": pickle, "__0_0.distcp": b"1", "__0_1.distcp": b"1", "common.pt": torch_file()}
    write(tmp_path / "iter_0000100", files)
    write(tmp_path / "iter_0000200", {**files, ".metadata": pickle + b" __1_0.distcp"})
    write(tmp_path / "iter_0000300", {name: data for name, data in files.items() if name != ".metadata"})
    code, series = check(rlbox, tmp_path)
    assert code == 1
    assert [row["problems"] for row in series["checkpoints"]] == [
        [],
        [".metadata names __1_0.distcp: 1 missing"],
        [".metadata is missing, which is written last"],
    ]
    assert series["problems"] == ["latest_checkpointed_iteration.txt is missing: Megatron loads nothing without it"]
    write(tmp_path, {"latest_checkpointed_iteration.txt": b"100"})
    assert check(rlbox, tmp_path)[1]["checkpoints"][0]["latest"]


def test_a_converted_model_of_megatron(rlbox: Rlbox, tmp_path: Path) -> None:
    write(tmp_path / "m_torch_dist/release", {".metadata": b"__0_0.distcp", "__0_0.distcp": b"1"})
    assert rlbox("ckpt", "check", str(tmp_path), "--json").data["series"] == []
    write(tmp_path / "m_torch_dist", {"latest_checkpointed_iteration.txt": b"release"})
    code, series = check(rlbox, tmp_path)
    assert (code, [row["latest"] for row in series["checkpoints"]]) == (0, [True])


def test_openrlhf(rlbox: Rlbox, tmp_path: Path) -> None:
    files = {f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt": torch_file() for rank in range(2)}
    files |= {f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt": torch_file() for rank in range(2)}
    write(tmp_path / "_actor/global_step10", files)
    del files["bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"]
    write(tmp_path / "_actor/global_step20", files)
    write(tmp_path / "_actor", {"latest": b"global_step10"})
    write(tmp_path / "global_step10_hf", {"config.json": b"{}", "model.safetensors": safetensors()})
    said = rlbox("ckpt", "check", str(tmp_path), "--json")
    assert said.code == 1
    exports, actor = said.data["series"][::-1] if said.data["series"][0]["tracker"] else said.data["series"]
    assert [(row["kind"], row["hf_export"], row["whole"]) for row in exports["checkpoints"]] == [("hf", True, True)]
    assert [(row["latest"], row["problems"]) for row in actor["checkpoints"]] == [
        (True, []),
        (False, ["zero_pp_rank_*_optim_states.pt: ranks missing: 1 (of 2)"]),
    ]


def test_a_model(rlbox: Rlbox, tmp_path: Path) -> None:
    model = write(tmp_path / "Qwen", {"config.json": b"{}", "model.safetensors": safetensors()})
    assert rlbox("ckpt", "check", str(model)).out == ""
    assert rlbox("ckpt", "check", str(tmp_path)).out == "no checkpoint yet\n"
    write(model, {"model.safetensors": b"\xff" * 20})
    said = rlbox("ckpt", "check", str(model))
    assert said.code == 1
    assert (
        "  Qwen: model.safetensors: it is a truncated safetensors file: 20 bytes do not hold its header\n" in said.out
    )
    assert said.err == "ckpt: 1 checkpoint, 1 torn\n"


def test_what_the_smoke_wrote(rlbox: Rlbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below a data disk, by its manifest, which names what is missing."""
    monkeypatch.syspath_prepend(CHECKOUT / "jobs")
    from smoke.checkpoint import write as write_checkpoint  # type: ignore[import-not-found]

    folder = tmp_path / "runs/smoke-1/train/checkpoint"
    write_checkpoint(folder, lambda draft: write(draft, {"config.json": b"{}", "model.safetensors": safetensors()}))
    said = rlbox("ckpt", "ls", "--data", str(tmp_path))
    assert (said.code, said.err) == (0, "ckpt: 1 checkpoint, none torn\n")
    assert said.out.splitlines()[0] == str(folder.parent)
    assert said.out.splitlines()[2].split()[:3] == ["-", "hf", "whole"]
    (folder / "config.json").unlink()
    said = rlbox("ckpt", "check", "--data", str(tmp_path))
    assert said.code == 1
    assert "  checkpoint: checkpoint.json names config.json: 1 missing\n" in said.out
    (folder / "checkpoint.json").write_text("[]")
    assert (
        "  checkpoint: checkpoint.json: it is not a manifest\n" in rlbox("ckpt", "check", "--data", str(tmp_path)).out
    )
