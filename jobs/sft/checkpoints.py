"""Checkpoints of verl below one folder: `global_step_N`, complete or not, in the order of their steps."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

_STEP = re.compile(r"global_step_(\d+)")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One `global_step_N`. `missing` says what a server would miss in its Hugging Face export; empty when complete."""

    step: int
    path: Path
    missing: str

    @property
    def export(self) -> Path:
        """The folder that vLLM loads."""
        return self.path / "huggingface"


def find_checkpoints(folder: Path) -> list[Checkpoint]:
    """Return the checkpoints below `folder`, by step; 1000 comes behind 200."""
    found = [
        (int(match.group(1)), path) for path in folder.glob("global_step_*") if (match := _STEP.fullmatch(path.name))
    ]
    return [
        Checkpoint(step=step, path=path, missing=what_is_missing(path / "huggingface")) for step, path in sorted(found)
    ]


def one_checkpoint(folder: Path) -> Checkpoint:
    """Return the checkpoint that `folder` itself is; `ValueError` when its name tells no step."""
    match = _STEP.fullmatch(folder.name)
    if match is None:
        raise ValueError(f"{folder} is no global_step_N")
    return Checkpoint(step=int(match.group(1)), path=folder, missing=what_is_missing(folder / "huggingface"))


def what_is_missing(export: Path) -> str:
    """Return the first thing that a Hugging Face export lacks, or nothing: config, tokenizer, every shard."""
    if not (export / "config.json").is_file():
        return f"{export / 'config.json'} is missing"
    if not any((export / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        return f"{export}: no tokenizer"
    index = export / "model.safetensors.index.json"
    shards = [export / "model.safetensors"]
    if index.is_file():
        shards = [export / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    return next((problem for shard in shards if (problem := _shard_problem(shard))), "")


def _shard_problem(path: Path) -> str:
    """A safetensors file says in its header where its data end."""
    try:
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length)) if 0 < length < 100 << 20 else {}
    except FileNotFoundError:
        return f"{path} is missing"
    except ValueError:
        return f"{path} is not a safetensors file"
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    if not ends or path.stat().st_size != 8 + length + max(ends):
        return f"{path} is cut: {path.stat().st_size} bytes"
    return ""
