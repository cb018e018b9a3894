"""What the files of a checkpoint must be, in each framework's layout; what is missing or cut short.

verl: `global_step_N/`, of FSDP one `{model,optim,extra_state}_world_size_W_rank_R.pt` a rank, flat (SFT) or below
`actor/` and `critic/`, of Megatron a distributed checkpoint; source: verl's docs, "Checkpoint Saving Directory
Structure". Megatron-LM and slime: `iter_NNNNNNN/`, whose `.metadata` is written last, and the tracker beside.
OpenRLHF: DeepSpeed's `global_stepN/` with the file `latest` beside, and `global_stepN_hf/`. Hugging Face:
`checkpoint-N/`, or a model's folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["verl", "megatron", "deepspeed", "hf"]
FOLDERS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("verl", re.compile(r"global_steps?_(?P<step>\d+)")),
    ("megatron", re.compile(r"iter_(?P<step>\d{7,})")),
    ("megatron", re.compile(r"release")),
    ("deepspeed", re.compile(r"global_step(?P<step>\d+)")),
    ("hf", re.compile(r"global_step(?P<step>\d+)_hf")),
    ("hf", re.compile(r"checkpoint-(?P<step>\d+)")),
)
_RANK = re.compile(r"(?:(.*)/)?(model|optim|extra_state)_world_size_(\d+)_rank_(\d+)\.pt")
_ZERO = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_(model|optim)_states\.pt")
_WEIGHTS = re.compile(r".*\.(safetensors|bin)")
_MODELS = ("model", "pytorch_model", "adapter_model")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A file of a checkpoint: its path below it, bytes, how many seconds ago it was written.

    `damage` says why it is not whole; `names` are the files that it lists, where it is such a list.
    """

    path: str
    size: int
    age_s: float = 1e9
    damage: str = ""
    names: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """The folder it is in, below the checkpoint; empty for the checkpoint itself."""
        return self.path.rpartition("/")[0]

    @property
    def part(self) -> str:
        """What it belongs to: `hf`, `optimizer`, `model` or `extra`."""
        folders, name = self.path.split("/")[:-1], self.path.rpartition("/")[2]
        if any(folder == "huggingface" or folder.endswith("_huggingface") for folder in folders):
            return "hf"
        if "optimizer" in folders or ("optim" in name and not name.startswith(_MODELS)):
            return "optimizer"
        if name.startswith(_MODELS) or "model" in folders or "_model_states" in name or name.endswith(".distcp"):
            return "model"
        return "extra"

    @property
    def weights(self) -> bool:
        """Whether it has weights in Hugging Face's form."""
        return _WEIGHTS.fullmatch(self.path) is not None


def kind_of(folder: str) -> tuple[Kind, int | None] | None:
    """Return what a folder of this name is, with its step; None when it is no checkpoint."""
    for kind, pattern in FOLDERS:
        if match := pattern.fullmatch(folder):
            step = match.groupdict().get("step")
            return kind, int(step) if step else None
    return None


def is_exported(kind: Kind, entries: Sequence[Entry]) -> bool:
    """Return whether weights are there in Hugging Face's form; verl writes configuration without them, too."""
    return any(entry.weights for entry in entries if kind == "hf" or entry.part == "hf")


def problems_of(kind: Kind, entries: Sequence[Entry]) -> Iterator[str]:
    """Yield what is missing or cut short."""
    if not entries:
        yield "it is empty"
        return
    yield from (f"{entry.path}: {entry.damage}" for entry in entries if entry.damage)
    yield from _ranks(entries)
    yield from _zero(entries)
    yield from _lists(entries)
    if not is_exported(kind, entries) and (kind == "hf" or all(entry.part != "model" for entry in entries)):
        yield "it holds no weights"
    yield from _beside(kind, entries)


def _beside(kind: Kind, entries: Sequence[Entry]) -> Iterator[str]:
    """Yield what must lie beside weights, and beside the pieces of a distributed checkpoint."""
    names = {entry.path for entry in entries}
    exports = {entry.folder for entry in entries if entry.weights and (kind == "hf" or entry.part == "hf")}
    for folder in sorted(exports):
        if not names & {_join(folder, "config.json"), _join(folder, "adapter_config.json")}:
            yield f"{_join(folder, 'config.json')} is missing"
    for folder in sorted({entry.folder for entry in entries if entry.path.endswith(".distcp")}):
        if _join(folder, ".metadata") not in names:
            yield f"{_join(folder, '.metadata')} is missing, which is written last"


def _ranks(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield which ranks' files are missing."""
    groups: dict[tuple[str, str, int], set[int]] = {}
    for entry in entries:
        if match := _RANK.fullmatch(entry.path):
            groups.setdefault((match[1] or "", match[2], int(match[3])), set()).add(int(match[4]))
    for (folder, what, world), ranks in groups.items():
        if missing := sorted(set(range(world)) - ranks):
            yield f"{_join(folder, what)}_world_size_{world}_rank_*.pt: ranks missing: {_numbers(missing)} (of {world})"
    for folder in sorted({folder for folder, _, _ in groups}):
        worlds = sorted({world for name, _, world in groups if name == folder})
        if len(worlds) > 1:
            yield f"{folder or 'its'} files are of {' and of '.join(map(str, worlds))} ranks"


def _zero(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield DeepSpeed's ranks that miss a file which others have."""
    found: dict[str, set[int]] = {"model": set(), "optim": set()}
    for entry in entries:
        if match := _ZERO.fullmatch(entry.path.rpartition("/")[2]):
            found[match[3]].add(int(match[1]))
    count = max(found["model"] | found["optim"], default=-1) + 1
    for what, ranks in found.items():
        if ranks and (missing := sorted(set(range(count)) - ranks)):
            yield f"zero_pp_rank_*_{what}_states.pt: ranks missing: {_numbers(missing)} (of {count})"


def _lists(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield what an index names and is not there."""
    names = {entry.path for entry in entries}
    for entry in entries:
        missing = [name for name in entry.names if _join(entry.folder, name) not in names]
        if missing:
            yield f"{entry.path} names {', '.join(missing[:3])}{' …' if missing[3:] else ''}: {len(missing)} missing"


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:5])) + (" …" if numbers[5:] else "")
