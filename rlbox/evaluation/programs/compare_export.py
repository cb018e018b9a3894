"""Run by an interpreter that has torch, safetensors and transformers: compare an export with a trainer's checkpoint.

The request is JSON on standard input: `export`, `trainer` (a directory of complete tensors), `model` (whose tokenizer
the export must have), `dtype`, `tied`. It writes one JSON object a line:
{"step": "progress" | "fault" | "end", …}. Exit status 3: a package is missing; 4: nothing can be compared.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

try:
    torch: Any = importlib.import_module("torch")
    load_file: Any = importlib.import_module("safetensors.torch").load_file
    AutoTokenizer: Any = importlib.import_module("transformers").AutoTokenizer
except ImportError as error:
    sys.stderr.write(f"{type(error).__name__}: {error}\n")
    raise SystemExit(3) from error

INDEX = "model.safetensors.index.json"
EMBEDDINGS, HEADS = ("embed_tokens.weight", "wte.weight", "embed_in.weight"), ("lm_head.weight", "embed_out.weight")
_PROGRESS_EVERY = 16
_TOKENIZER_STEPS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token")
"""`pad_token` is not among them: trainers set it, and no answer of a model depends on it."""


class _NotComparableError(Exception):
    """Files that cannot be read, or that hold no tensors by name."""


def _print_step(step: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"step": step, **facts}) + "\n")
    sys.stdout.flush()


def _print_fault(kind: str, of: str, says: str, **facts: Any) -> None:
    _print_step("fault", kind=kind, of=of, says=says, **facts)


def _load_tensors(path: Path) -> dict[str, Any]:
    """Return the tensors of a file by name, mapped into memory; nothing else of a pickle is loaded."""
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # what a truncated file raises is of many types
        raise _NotComparableError(
            f"{path} cannot be read: {str(error).splitlines()[0] or type(error).__name__}"
        ) from error
    for key in ("module", "model", "state_dict"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict):
        raise _NotComparableError(f"{path} holds no tensors by name")
    return {name: tensor for name, tensor in state.items() if isinstance(tensor, torch.Tensor)}


def _load_trainer(directory: Path) -> dict[str, Any]:
    paths = sorted(directory.glob("*.safetensors")) or sorted([*directory.glob("*.bin"), *directory.glob("*.pt")])
    tensors = {name: tensor for path in paths for name, tensor in _load_tensors(path).items()}
    if not tensors:
        raise _NotComparableError(f"{directory} holds no tensors")
    return tensors


def _load_export(directory: Path) -> dict[str, Any]:
    """Return the tensors of an export as a loader finds them; report each file that none would load."""
    paths = sorted(directory.glob("*.safetensors"))
    if not paths:
        raise _NotComparableError(f"{directory} holds no safetensors")
    for path in sorted(directory.glob("*.bin")):
        says = "weights of another form beside the safetensors: which of both is loaded depends on who loads"
        _print_fault("stale", path.name, says, file=path.name)
    files = {path.name: _load_tensors(path) for path in paths}
    if (directory / INDEX).is_file():
        index: dict[str, str] = json.loads((directory / INDEX).read_text("utf-8"))["weight_map"]
    else:
        first = "model.safetensors" if "model.safetensors" in files else next(iter(files))
        index = dict.fromkeys(files[first], first)
    for name in sorted(set(files) - set(index.values())):
        _print_fault("stale", name, "no index names it: it is of another export", file=name)
    for name in sorted(set(index.values()) - set(files)):
        _print_fault("gone", name, "the index names it, and it is not there", file=name)
    return {tensor: files[file][tensor] for tensor, file in index.items() if tensor in files.get(file, {})}


def _compare_tensors(request: dict[str, Any], trainer: dict[str, Any], export: dict[str, Any]) -> None:
    """Compare every tensor of both, and print the end: how many are equal, and how they were cast."""
    named = getattr(torch, request["dtype"], None) if request["dtype"] else None
    casts: Counter[tuple[str, str]] = Counter()
    equal, names = 0, sorted({*trainer, *export})
    for number, name in enumerate(names):
        if number % _PROGRESS_EVERY == 0:
            _print_step("progress", done=number, total=len(names))
        if name in trainer and name in export:
            if _is_equal(name, export[name], trainer[name], named):
                equal += 1
                casts[_dtype_name(trainer[name].dtype), _dtype_name(export[name].dtype)] += 1
        elif request["tied"] and _is_tied(name, trainer if name in trainer else export):
            equal += 1
        elif name in trainer:
            _print_fault("missing", name, "the export has no such tensor", tensor=name)
        else:
            _print_fault("extra", name, "the trainer has no such tensor", tensor=name)
    cast_counts = [{"own": own, "export": got, "tensors": count} for (own, got), count in casts.items()]
    _print_step("end", equal=equal, tensors=len(export), casts=cast_counts)


def _is_equal(name: str, got: Any, own: Any, named: Any) -> bool:
    """Return whether two tensors have the same bits after the cast that is due; print the fault where not."""
    if got.shape != own.shape:
        shapes = {"got": list(got.shape), "own": list(own.shape)}
        _print_fault("shape", name, "its shape is {got}, the trainer's {own}".format(**shapes), tensor=name, **shapes)
        return False
    if got.dtype not in (own.dtype, named):
        dtypes = {"got": _dtype_name(got.dtype), "own": _dtype_name(own.dtype), "named": _dtype_name(named)}
        says = f"it is {dtypes['got']}, the trainer's is {dtypes['own']}, and no cast is named"
        if named:
            says = "it is {got}, neither the trainer's {own} nor the {named} that is named".format(**dtypes)
        _print_fault("dtype", name, says, tensor=name, **dtypes)
        return False
    due = own.to(got.dtype)
    if _has_same_bits(got, due):
        return True
    size = max(1, got.element_size())
    wrong = int((_as_bytes(got).view(-1, size) != _as_bytes(due).view(-1, size)).any(dim=1).sum())
    facts: dict[str, Any] = {"wrong": wrong, "numbers": got.numel()}
    says = f"{wrong} of {got.numel()} numbers differ"
    if got.dtype.is_floating_point:
        facts["largest"] = float((got.double() - due.double()).abs().max())
        says += f", by {facts['largest']:.3g} at most"
    _print_fault("differs", name, says, tensor=name, **facts)
    return False


def _is_tied(name: str, tensors: dict[str, Any]) -> bool:
    """Return whether a head has the same numbers as the embedding: one of both need not be saved then."""
    embedding = next((other for other in sorted(tensors) if other.endswith(EMBEDDINGS)), "")
    return name.endswith(HEADS) and bool(embedding) and _has_same_bits(tensors[name], tensors[embedding])


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.") if dtype is not None else ""


def _has_same_bits(first: Any, second: Any) -> bool:
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return bool(torch.equal(_as_bytes(first), _as_bytes(second)))


def _as_bytes(tensor: Any) -> Any:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _compare_tokenizers(export: Path, model: Path) -> int:
    """Report what differs in two tokenizers; return the tokens of the export's."""
    got, due = _load_tokenizer(export), _load_tokenizer(model)
    for part in due:
        if part in got and got[part] != due[part]:
            _print_fault("words", part, _describe_change(got[part], due[part]))
    return len(got["vocabulary"])


def _load_tokenizer(directory: Path) -> dict[str, Any]:
    """Return what transformers loads, and the parts of tokenizer.json, which other engines read and it may override."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory)
    except Exception as error:  # what its backends raise is of many types
        first_line = str(error).splitlines()[0]
        raise _NotComparableError(f"the tokenizer of {directory} cannot be read: {first_line}") from error
    parts: dict[str, Any] = {"vocabulary": tokenizer.get_vocab()}
    parts |= {name: getattr(tokenizer, name) for name in _SPECIAL_TOKENS}
    parts["chat template"] = (tokenizer.chat_template or "").strip()  # savers cut blank ends
    if (directory / "tokenizer.json").is_file():
        state = json.loads((directory / "tokenizer.json").read_text("utf-8"))
        merges = state["model"].get("merges") or ()  # pairs, as tokenizers 0.20 writes them, or text
        parts["merges"] = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
        parts["added tokens"] = {token["content"]: token["id"] for token in state["added_tokens"]}
        parts |= {step: state.get(step) for step in _TOKENIZER_STEPS}
    return parts


def _describe_change(got: Any, due: Any) -> str:
    if isinstance(due, str) and "\n" not in due:
        return f"{got!r}, not {due!r}"
    if isinstance(got, (dict, list)) and isinstance(due, (dict, list)) and len(due) > _PROGRESS_EVERY:
        pairs = (dict(enumerate(value)) if isinstance(value, list) else value for value in (got, due))
        old, new = pairs
        wrong = sorted((key for key in {*old, *new} if old.get(key) != new.get(key)), key=str)
        return f"{len(wrong)} of {len(new)} differ; {wrong[0]!r} is {old.get(wrong[0])}, not {new.get(wrong[0])}"
    return f"{_shorten(got)}, not {_shorten(due)}"


def _shorten(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"


def main() -> int:
    request = json.load(sys.stdin)
    export = Path(request["export"])
    try:
        tokens = _compare_tokenizers(export, Path(request["model"]))
        _print_step("tokenizer", tokens=tokens)
        _compare_tensors(request, _load_trainer(Path(request["trainer"])), _load_export(export))
    except _NotComparableError as error:
        sys.stderr.write(f"{error}\n")
        return 4
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
