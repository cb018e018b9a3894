"""The weights of a trainer's checkpoint, one whole tensor at a time, from what frameworks write.

FSDP and verl: `model_world_size_W_rank_R.pt`, plain tensors or DTensors. DeepSpeed ZeRO 1, 2 and 3: the fp32 partitions
of the optimizer's states, laid out as its own zero_to_fp32.py reads them. Else whole tensors: safetensors, .bin, .pt.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from unpickle import Stand, read_saved  # type: ignore[import-not-found]  # beside it, where it runs

torch: Any = importlib.import_module("torch")
_RANK = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")
_ZERO = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_WRAPPED = re.compile(r"(_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)\.")
_DTYPES = dict(
    zip(
        (
            "F64",
            "F32",
            "F16",
            "BF16",
            "BOOL",
            "U8",
            "I8",
            "I16",
            "I32",
            "I64",
            "F8_E4M3",
            "F8_E5M2",
            "U16",
            "U32",
            "U64",
        ),
        (
            *("float64", "float32", "float16", "bfloat16", "bool", "uint8", "int8", "int16", "int32", "int64"),
            *("float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"),
        ),
        strict=True,
    )
)
Get = Callable[[Sequence[int]], Any]
"""Makes a tensor whole; its argument is the shape that the export gives it, for pieces that do not know their own."""


class NotRead(Exception):
    """A checkpoint of a form that is not known, or whose pieces do not fit each other."""


class TrainerWeights:
    """Tensors by name; `form` is how they are kept, `ranks` by how many, `ties` are names that share one tensor."""

    def __init__(self, form: str, ranks: int, found: dict[str, Get], ties: dict[str, str] | None = None) -> None:
        self.form, self.ranks = form, ranks
        self.found = {plain_name(name): get for name, get in found.items()}
        self.ties = {plain_name(one): plain_name(other) for one, other in (ties or {}).items()}


def plain_name(name: str) -> str:
    """Return the name of a parameter without what wrappers put before it."""
    return _WRAPPED.sub("", name).removeprefix("module.")


def open_source(folder: Path) -> TrainerWeights:
    """Return what a checkpoint's folder holds; `NotRead` says which form it has instead."""
    for place in _places(folder):
        ranks = {int(match[2]): int(match[1]) for path in place.iterdir() if (match := _RANK.fullmatch(path.name))}
        if ranks:
            return _fsdp(place, ranks)
        if any(_ZERO.fullmatch(path.name) for path in place.iterdir()):
            return _deepspeed(place)
        if any(place.glob("*.distcp")):
            raise NotRead(
                f"{place} is a distributed checkpoint (.distcp), as Megatron and slime write it: it is not read; "
                "export it with the framework's own converter, and compare with a second export of that"
            )
        whole = [*sorted(place.glob("*.safetensors")), *sorted(place.glob("*.bin")), *sorted(place.glob("*.pt"))]
        if whole:
            return _plain(place, whole)
    raise NotRead(f"{folder} holds no weights that are known: FSDP's and verl's shards, DeepSpeed's, safetensors, .bin")


def _places(folder: Path) -> Iterator[Path]:
    yield from (folder / name for name in ("", "actor") if (folder / name).is_dir())
    latest = folder / "latest"
    if latest.is_file() and "/" not in (tag := latest.read_text("utf-8").strip()) and (folder / tag).is_dir():
        yield folder / tag


def read_safetensors(path: Path) -> dict[str, Any]:
    """Return the tensors of a file, mapped; `NotRead` where it is torn."""
    try:
        data = torch.from_file(str(path), size=path.stat().st_size, dtype=torch.uint8)
        length = int.from_bytes(bytes(data[:8].tolist()), "little")
        header = json.loads(bytes(data[8 : 8 + length].numpy()))
        return {name: _mapped(data, 8 + length, row) for name, row in header.items() if name != "__metadata__"}
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise NotRead(f"{path} is no whole safetensors file: {error}") from error


def _mapped(data: Any, begin: int, row: dict[str, Any]) -> Any:
    first, last = (begin + end for end in row["data_offsets"])
    if last > data.numel():
        raise ValueError("it is cut")
    dtype = getattr(torch, _DTYPES[row["dtype"]])
    piece = data[first:last]
    if first % dtype.itemsize:
        piece = piece.clone()
    return piece.view(dtype).view(row["shape"])


def _plain(folder: Path, files: list[Path]) -> TrainerWeights:
    found: dict[str, Get] = {}
    for path in files:
        whole = path.suffix == ".safetensors"
        state = read_safetensors(path) if whole else _state(_saved(path))
        found |= {name: _whole(tensor) for name, tensor in state.items() if isinstance(tensor, torch.Tensor)}
        if whole and path is files[0]:
            files = [one for one in files if one.suffix == ".safetensors"]
    if not found:
        raise NotRead(f"{folder}: {', '.join(path.name for path in files[:3])} hold no tensors by name")
    return TrainerWeights("safetensors" if files[0].suffix == ".safetensors" else "torch.save", 1, found)


def _whole(tensor: Any) -> Get:
    return lambda shape: tensor


def _saved(path: Path) -> Any:
    try:
        return read_saved(path)
    except Exception as error:  # what a torn archive raises is of many kinds
        raise NotRead(f"{path} cannot be read: {str(error).splitlines()[0] if str(error) else error!r}") from error


def _state(saved: Any) -> dict[str, Any]:
    """Return the tensors by name, which some keep below a key."""
    for key in ("module", "model", "state_dict"):
        if isinstance(saved, dict) and isinstance(saved.get(key), dict):
            saved = saved[key]
    if not isinstance(saved, dict):
        raise NotRead("a file of torch.save that holds no tensors by name")
    return saved


def _fsdp(folder: Path, ranks: dict[int, int]) -> TrainerWeights:
    worlds = set(ranks.values())
    if len(worlds) > 1:
        raise NotRead(f"{folder}: files of {' and of '.join(map(str, sorted(worlds)))} ranks")
    world = worlds.pop()
    if missing := [rank for rank in range(world) if rank not in ranks]:
        raise NotRead(f"{folder}: ranks missing: {missing} (of {world})")
    states = [_state(_saved(folder / f"model_world_size_{world}_rank_{rank}.pt")) for rank in range(world)]
    names = [name for name in states[0] if not _is_extra(states[0][name])]
    if wrong := [name for name in names if any(name not in state for state in states)]:
        raise NotRead(f"{folder}: not every rank has {wrong[0]}")
    found = {name: _pieces(name, [state[name] for state in states]) for name in names}
    return TrainerWeights("FSDP", world, found)


def _is_extra(value: Any) -> bool:
    return not isinstance(value, (torch.Tensor, Stand))


def _pieces(name: str, pieces: list[Any]) -> Get:
    def get(shape: Sequence[int]) -> Any:
        first = pieces[0]
        if isinstance(first, torch.Tensor):
            if len(pieces) > 1 and first.shape == torch.Size(shape):
                return _copies(name, pieces)
            return _assembled(name, pieces, shape, 0)
        local = [piece.state.get("_local_tensor") for piece in pieces]
        if not first.kind.endswith(".DTensor") or any(one is None for one in local):
            raise NotRead(f"{name} is a {first.kind}, which is not read")
        placed = [(one.kind.rpartition(".")[2], one) for one in first.state["_spec"].state["placements"]]
        kinds = [kind for kind, _ in placed]
        if all(kind == "Replicate" for kind in kinds):
            return _copies(name, local)
        if kinds[-1] != "Shard" or any(kind != "Replicate" for kind in kinds[:-1]):
            raise NotRead(f"{name} is placed as {', '.join(kinds)}, which is not read")
        dim = placed[-1][1]
        return _assembled(name, local, first.args[2], int(dim.state.get("dim", *dim.args[:1])))

    return get


def _copies(name: str, pieces: Sequence[Any]) -> Any:
    if any(not same_bits(pieces[0], other) for other in pieces[1:]):
        raise NotRead(f"{name} is not the same on all ranks, though each has all of it")
    return pieces[0]


def _assembled(name: str, pieces: Sequence[Any], shape: Sequence[int], dim: int) -> Any:
    """Return pieces in the order of ranks as one; ranks that have it again must have the same."""
    if not shape:
        return _copies(name, pieces)
    copies: list[list[Any]] = [[]]
    for piece in pieces:
        if sum(one.shape[dim] for one in copies[-1]) == shape[dim] and piece.shape[dim]:
            copies.append([])
        copies[-1].append(piece)
    made = [torch.cat(copy, dim=dim) for copy in copies]
    if any(list(one.shape) != list(shape) for one in made):
        raise NotRead(f"{name}: the pieces of its ranks make {list(made[-1].shape)}, not {list(shape)}")
    return _copies(name, made)


def same_bits(one: Any, other: Any) -> bool:
    """Whether two tensors are the same bytes, of one type and shape."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return bool(torch.equal(as_bytes(one), as_bytes(other)))


def as_bytes(tensor: Any) -> Any:
    """Return the bytes of a tensor."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _deepspeed(folder: Path) -> TrainerWeights:
    files = {int(match[1]): path for path in folder.iterdir() if (match := _ZERO.fullmatch(path.name))}
    if any(int(match[2]) for path in folder.iterdir() if (match := _ZERO.fullmatch(path.name))):
        raise NotRead(f"{folder}: DeepSpeed's states of several model-parallel ranks are not read")
    optim = [_saved(path)["optimizer_state_dict"] for _, path in sorted(files.items())]
    stage, world = _number(optim[0]["zero_stage"]), optim[0]["partition_count"]
    world = max(world) if isinstance(world, list) else int(world)
    if len(files) != world:
        raise NotRead(f"{folder}: the states of {len(files)} ranks, and {world} wrote them")
    models = sorted(folder.glob("*_model_states.pt"))
    if not models:
        raise NotRead(f"{folder}: the file *_model_states.pt is missing")
    model = _saved(models[0])
    groups = [dict(group) for group in model["param_shapes"]]
    found = _third(optim, groups) if stage == 3 else _flat(optim, groups)
    module = model.get("module") or {}
    frozen = [*(model.get("frozen_param_shapes") or {}), *model.get("buffer_names", ())]
    if stage == 3 and model.get("frozen_param_shapes"):
        raise NotRead(f"{folder}: parameters that were frozen under ZeRO 3 are not read")
    found |= {name: _whole(module[name]) for name in frozen if isinstance(module.get(name), torch.Tensor)}
    shared = model.get("shared_params") or {}
    return TrainerWeights(
        f"DeepSpeed ZeRO {stage}", world, found, dict(shared.items() if isinstance(shared, dict) else shared)
    )


def _number(value: Any) -> int:
    """Return a number that may be one of an enumeration."""
    return int(value.args[0] if isinstance(value, Stand) else value)


def _flat(optim: list[Any], groups: list[dict[str, Any]]) -> dict[str, Get]:
    """ZeRO 1 and 2: a group of parameters is one flat tensor, cut into a partition a rank."""
    found: dict[str, Get] = {}
    for number, group in enumerate(groups):
        parts = [one["single_partition_of_fp32_groups"][number] for one in optim]
        at = 0
        for name, shape in group.items():
            found[name] = _cut(parts, at, shape)
            at += shape.numel()
        if at > sum(part.numel() for part in parts):
            raise NotRead("DeepSpeed's partitions are shorter than the parameters that they hold")
    return found


def _cut(parts: list[Any], begin: int, shape: Any) -> Get:
    def get(_: Sequence[int]) -> Any:
        taken, at, end = [], 0, begin + shape.numel()
        for part in parts:
            taken.append(part[max(0, begin - at) : max(0, min(part.numel(), end - at))])
            at += part.numel()
        return torch.cat(taken).view(shape)

    return get


def _third(optim: list[Any], groups: list[dict[str, Any]]) -> dict[str, Get]:
    """ZeRO 3: each parameter is cut into a piece a rank; the pieces of all parameters follow each other."""
    flats = [_one(rank["fp32_flat_groups"]) for rank in optim]
    found: dict[str, Get] = {}
    at = 0
    for name, shape in (row for group in groups for row in group.items()):
        count = -(-shape.numel() // len(flats))
        found[name] = _gathered(flats, at, count, shape)
        at += count
    if at > flats[0].numel():
        raise NotRead("DeepSpeed's partitions are shorter than the parameters that they hold")
    return found


def _one(groups: Any) -> Any:
    return torch.cat(list(groups)) if isinstance(groups, (list, tuple)) else groups


def _gathered(flats: list[Any], at: int, count: int, shape: Any) -> Get:
    return lambda _: torch.cat([flat[at : at + count] for flat in flats])[: shape.numel()].view(shape)
