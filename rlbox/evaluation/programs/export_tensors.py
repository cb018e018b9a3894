"""Run by an interpreter that has torch: compare the tensors of an export with those of a trainer, bit by bit.

The request is JSON on standard input: `export`, `against` (a directory of complete tensors), `dtype`, `rename`, `tied`,
`model` and `logits`. It writes one JSON object a line: {"step": "at" | "fault" | "logits" | "end", …}. Exit status 3:
torch or safetensors is missing; 4: nothing can be compared.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

try:
    torch: Any = importlib.import_module("torch")
    load_file: Any = importlib.import_module("safetensors.torch").load_file
except ImportError as error:
    sys.stderr.write(f"{type(error).__name__}: {error}\n")
    raise SystemExit(3) from error

INDEX = "model.safetensors.index.json"
COMPUTED = "rotary_emb.inv_freq"
"""A buffer that models of some versions save and that all compute again when they load."""
EMBEDDINGS, HEADS = ("embed_tokens.weight", "wte.weight", "embed_in.weight"), ("lm_head.weight", "embed_out.weight")
_WRAPPERS = re.compile(r"(_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)\.")
_EVERY = 16
_LOGIT_TOKENS = 24


class NotComparable(Exception):
    """Files that cannot be read, or that hold no tensors by name."""


def print_step(step: str, **facts: Any) -> None:
    """Print one line."""
    sys.stdout.write(json.dumps({"step": step, **facts}) + "\n")
    sys.stdout.flush()


def read_safetensors(path: Path) -> dict[str, Any]:
    """Return the tensors of a file by name; they are mapped, and read where they are used."""
    try:
        return dict(load_file(path))
    except Exception as error:  # safetensors raises a type of its own for a truncated file
        raise NotComparable(f"{path} is not a complete safetensors file: {error}") from error


def read_torch_save(path: Path) -> dict[str, Any]:
    """Return the tensors of a file of torch.save by name; nothing else of a pickle is loaded (`weights_only`)."""
    try:
        state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # what a truncated archive raises is of many types
        raise NotComparable(f"{path} cannot be read: {str(error).splitlines()[0] or type(error).__name__}") from error
    for key in ("module", "model", "state_dict"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict):
        raise NotComparable(f"{path} holds no tensors by name")
    return {name: tensor for name, tensor in state.items() if isinstance(tensor, torch.Tensor)}


def read_trainer_tensors(directory: Path, rename: list[list[str]]) -> dict[str, Any]:
    """Return the trainer's tensors under the names that the export has for them."""
    files = sorted(directory.glob("*.safetensors"))
    if files:
        parts = [read_safetensors(path) for path in files]
    else:
        parts = [read_torch_save(path) for path in sorted([*directory.glob("*.bin"), *directory.glob("*.pt")])]
    tensors = {rename_tensor(name, rename): tensor for part in parts for name, tensor in part.items()}
    if not tensors:
        raise NotComparable(f"{directory} holds no tensors")
    return tensors


def rename_tensor(name: str, rules: list[list[str]]) -> str:
    """Return a parameter's name without what FSDP's and the compiler's wrappers put into it, by the first rule."""
    plain = _WRAPPERS.sub("", name).removeprefix("module.")
    for old, new in rules:
        if plain.startswith(old):
            return new + plain[len(old) :]
    return plain


def read_export(directory: Path) -> dict[str, Any]:
    """Return the tensors of an export as a loader finds them; print a fault for each file that none would load."""
    files = {path.name: read_safetensors(path) for path in sorted(directory.glob("*.safetensors"))}
    if not files:
        raise NotComparable(f"{directory} holds no safetensors")
    for path in sorted(directory.glob("*.bin")):
        print_step("fault", kind="stale", file=path.name, why="beside")
    index = directory / INDEX
    if index.is_file():
        return _indexed_tensors(files, json.loads(index.read_text("utf-8"))["weight_map"])
    first = "model.safetensors" if "model.safetensors" in files else next(iter(files))
    for name in files:
        if name != first:
            print_step("fault", kind="stale", file=name, why="unnamed")
    return files[first]


def _indexed_tensors(files: dict[str, Any], index: dict[str, str]) -> dict[str, Any]:
    for name in sorted(set(files) - set(index.values())):
        print_step("fault", kind="stale", file=name, why="unnamed")
    for name in sorted(set(index.values()) - set(files)):
        print_step("fault", kind="gone", file=name)
    for name, tensors in files.items():
        indexed = {tensor for tensor, file in index.items() if file == name}
        for tensor in sorted(set(tensors) - indexed) if indexed else ():
            print_step("fault", kind="misplaced", file=name, tensor=tensor)
    return {tensor: files[file][tensor] for tensor, file in index.items() if tensor in files.get(file, {})}


class Comparison:
    """Every tensor of both, one at a time; what differs is said at the end, when it is known whose it is."""

    def __init__(self, request: dict[str, Any], trainer: dict[str, Any], export: dict[str, Any]) -> None:
        self.trainer, self.export, self.tied = trainer, export, bool(request["tied"])
        self.named = getattr(torch, request["dtype"], None) if request["dtype"] else None
        self.casts: Counter[str] = Counter()
        self.digests: dict[bytes, str] = {}
        self.faults: list[tuple[dict[str, Any], bytes]] = []
        self.equal = 0

    def run(self) -> None:
        """Compare all."""
        names = sorted({*self.trainer, *self.export})
        for number, name in enumerate(names):
            if number % _EVERY == 0:
                print_step("at", done=number, of=len(names))
            self._compare(name)
        for fault, digest in self.faults:
            other = self.digests.get(digest, "")
            print_step("fault", **fault, **({"holds": other} if other and other != fault["tensor"] else {}))

    def _compare(self, name: str) -> None:
        if name not in self.trainer:
            self._check_extra(name)
        elif name not in self.export:
            self._check_missing(name)
        else:
            self._compare_pair(name, self.export[name], self.trainer[name])

    def _compare_pair(self, name: str, got: Any, own: Any) -> None:
        if list(got.shape) != list(own.shape):
            return self._fault(name, "shape", got=list(got.shape), own=list(own.shape))
        if got.dtype not in (own.dtype, self.named):
            return self._fault(
                name, "dtype", got=dtype_name(got.dtype), own=dtype_name(own.dtype), named=dtype_name(self.named)
            )
        wanted = own.to(got.dtype)
        self.digests.setdefault(tensor_digest(wanted), name)
        if same_bits(got, wanted):
            self.equal += 1
            self.casts[f"{dtype_name(own.dtype)} {dtype_name(got.dtype)}"] += 1
            return None
        self.faults.append(
            ({"kind": "differs", "tensor": name, **describe_difference(got, wanted, own)}, tensor_digest(got))
        )
        return None

    def _check_missing(self, name: str) -> None:
        if name.endswith(COMPUTED):
            return
        if self._is_tied(name, self.trainer):
            self.equal += 1
        else:
            self._fault(name, "missing")

    def _check_extra(self, name: str) -> None:
        if name.endswith(COMPUTED):
            return
        if self._is_tied(name, self.export):
            self.equal += 1
        else:
            self._fault(name, "extra")

    def _is_tied(self, name: str, tensors: dict[str, Any]) -> bool:
        """Whether a head has the same numbers as the embedding: one of both need not be saved then."""
        if not self.tied or not name.endswith(HEADS):
            return False
        embedding = next((other for other in sorted(tensors) if other.endswith(EMBEDDINGS)), "")
        return bool(embedding) and same_bits(tensors[name], tensors[embedding])

    def _fault(self, name: str, kind: str, **facts: Any) -> None:
        print_step("fault", kind=kind, tensor=name, **facts)


def dtype_name(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2] if dtype is not None else ""


def tensor_digest(tensor: Any) -> bytes:
    """Return what tells one tensor from others; the same numbers in another shape are others."""
    found = hashlib.blake2b(repr((dtype_name(tensor.dtype), list(tensor.shape))).encode(), digest_size=16)
    found.update(memoryview(as_bytes(tensor).numpy()))
    return found.digest()


def describe_difference(got: Any, wanted: Any, own: Any) -> dict[str, Any]:
    """Return how two tensors differ: how many numbers, by how much, and whether one was rounded on its way."""
    size = max(1, got.element_size())
    bits = (as_bytes(got).view(-1, size) != as_bytes(wanted).view(-1, size)).any(dim=1)
    facts: dict[str, Any] = {"wrong": int(bits.sum()), "numbers": got.numel()}
    if not got.dtype.is_floating_point:
        return facts
    facts["largest"] = float((got.double() - wanted.double()).abs().max())
    for lower in (torch.bfloat16, torch.float16):
        if lower != got.dtype and same_bits(got, own.to(lower).to(got.dtype)):
            facts["rounded"] = dtype_name(lower)
    if own.dtype == torch.float32 and got.dtype == torch.bfloat16:
        cut = (own.contiguous().view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)
        facts |= {"cut": True} if same_bits(got, cut) else {}
    return facts


def same_bits(first: Any, second: Any) -> bool:
    """Whether two tensors are the same bytes, of one type and shape."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return bool(torch.equal(as_bytes(first), as_bytes(second)))


def as_bytes(tensor: Any) -> Any:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def compare_logits(request: dict[str, Any], trainer: dict[str, Any], export: dict[str, Any]) -> dict[str, Any]:
    """Return whether the logits of a fixed row of tokens are the same in float32; `NotComparable` without any."""
    try:
        made = importlib.import_module("transformers")
        made.logging.set_verbosity_error()
        config = made.AutoConfig.from_pretrained(request["model"])
        one = made.AutoModelForCausalLM.from_pretrained(request["export"], dtype=torch.float32)
        other = made.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        state = {name: trainer[name].to(export[name].dtype) for name in export if name in trainer}
        told = other.load_state_dict({name: tensor.float() for name, tensor in state.items()}, strict=False)
        tied = bool(getattr(config, "tie_word_embeddings", False))
        if lacking := [name for name in told.missing_keys if not (tied and name.endswith("lm_head.weight"))]:
            raise NotComparable(f"transformers' model wants {lacking[0]}, which the trainer's checkpoint has not")
        other.tie_weights()
        words = torch.arange(_LOGIT_TOKENS).mul(7919).remainder(int(config.vocab_size))[None]
        with torch.no_grad():
            rows = [model.eval()(words).logits[0] for model in (one, other)]
    except (ImportError, OSError, ValueError, KeyError, AttributeError, RuntimeError, NotImplementedError) as error:
        raise NotComparable(f"no logits can be had of transformers: {str(error).splitlines()[0]}") from error
    same = bool(rows[0].shape == rows[1].shape and torch.equal(rows[0], rows[1]))
    largest = float((rows[0] - rows[1]).abs().max()) if rows[0].shape == rows[1].shape else -1.0
    return {"same": same, "largest": largest, "tokens": _LOGIT_TOKENS, "transformers": made.__version__}


def main() -> int:
    request = json.load(sys.stdin)
    try:
        trainer = read_trainer_tensors(Path(request["against"]), request["rename"])
        export = read_export(Path(request["export"]))
        comparison = Comparison(request, trainer, export)
        comparison.run()
        if request["logits"]:
            print_step("logits", **compare_logits(request, trainer, export))
    except NotComparable as error:
        sys.stderr.write(f"{error}\n")
        return 4
    casts = [
        {"own": key.split()[0], "export": key.split()[1], "tensors": count} for key, count in comparison.casts.items()
    ]
    print_step("end", equal=comparison.equal, tensors=len(export), casts=casts)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
