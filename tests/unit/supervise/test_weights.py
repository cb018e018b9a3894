"""How large the weights are that a command names."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlbox.supervise.services import count_weight_bytes


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "original").mkdir(parents=True)
    for name, size in {
        "model-1.safetensors": 3000, "model-2.safetensors": 4000, "pytorch_model.bin": 7000, "config.json": 9,
        "original/consolidated.pth": 7000,
    }.items():  # fmt: skip
        (folder / name).write_bytes(b"w" * size)
    return folder


def test_a_folder_counts_once_and_in_one_form(model: Path) -> None:
    assert count_weight_bytes(("vllm", "--model", str(model), f"--tokenizer={model}/")) == 7000


def test_files_links_and_what_is_not_there(model: Path, tmp_path: Path) -> None:
    """A snapshot of the Hugging Face cache is links."""
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "model.safetensors").symlink_to(model / "model-1.safetensors")
    assert count_weight_bytes(("serve", str(snapshot))) == 3000
    assert count_weight_bytes(("serve", f"--model={model}/model-2.safetensors", str(snapshot))) == 7000
    assert count_weight_bytes(("serve", "/nowhere", "Qwen/Qwen3-8B", "--port=1", "/etc/hostname")) == 0
