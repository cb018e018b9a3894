"""Run by an interpreter that has torch: the tensors of an export against a trainer's checkpoint, bit by bit.

What is asked is JSON on standard input: `export`, `against`, `dtype`, `rename`, `tied`, `model` and `logits`. It writes
a JSON object a line: {"step": "source" | "at" | "fault" | "logits" | "end", …}. Exit status 3: torch is missing;
4: nothing can be compared.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

try:
    import sources  # type: ignore[import-not-found]  # beside it, where it runs
    from sources import NotRead, TrainerWeights, as_bytes, open_source, read_safetensors, same_bits, torch
except ImportError as error:
    sys.stderr.write(f"{type(error).__name__}: {error}\n")
    raise SystemExit(3) from error

INDEX = "model.safetensors.index.json"
COMPUTED = "rotary_emb.inv_freq"
"""A buffer that models of some versions save and all make anew."""
EMBEDDED, HEAD = ("embed_tokens.weight", "wte.weight", "embed_in.weight"), ("lm_head.weight", "embed_out.weight")
_EVERY = 16


def say(step: str, **facts: Any) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps({"step": step, **facts}) + "\n")
    sys.stdout.flush()


def read_export(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the tensors of an export and the file of each, as who loads it finds them; say which files are stale."""
    files = {path.name: read_safetensors(path) for path in sorted(folder.glob("*.safetensors"))}
    if not files:
        raise NotRead(f"{folder} holds no safetensors")
    index = folder / INDEX
    for path in sorted(folder.glob("*.bin")):
        say("fault", kind="stale", file=path.name, why="beside")
    if index.is_file():
        return _indexed(files, json.loads(index.read_text("utf-8"))["weight_map"])
    first = "model.safetensors" if "model.safetensors" in files else next(iter(files))
    for name in files:
        if name != first:
            say("fault", kind="stale", file=name, why="unnamed")
    return files[first], dict.fromkeys(files[first], first)


def _indexed(files: dict[str, Any], index: dict[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    for name in sorted(set(files) - set(index.values())):
        say("fault", kind="stale", file=name, why="unnamed")
    for name in sorted(set(index.values()) - set(files)):
        say("fault", kind="gone", file=name)
    for name, tensors in files.items():
        for tensor in sorted(set(tensors) - {one for one, file in index.items() if file == name}):
            if name in index.values():
                say("fault", kind="misplaced", file=name, tensor=tensor)
    found = {tensor: files[file][tensor] for tensor, file in index.items() if tensor in files.get(file, {})}
    return found, {tensor: index[tensor] for tensor in found}


def renamed(source: TrainerWeights, rules: list[list[str]]) -> dict[str, Any]:
    """Return what makes each tensor, under the names that the export has for them."""
    found = {}
    for name, get in source.found.items():
        for old, new in rules:
            if name.startswith(old):
                name = new + name[len(old) :]
                break
        found[name] = get
    return found


class Comparison:
    """Every tensor of both, one at a time; what differs is said at the end, when it is known whose it is."""

    def __init__(
        self, asked: dict[str, Any], gets: dict[str, Any], export: dict[str, Any], source: TrainerWeights
    ) -> None:
        self.asked, self.gets, self.export, self.source = asked, gets, export, source
        self.named = getattr(torch, asked["dtype"], None) if asked["dtype"] else None
        self.casts: Counter[str] = Counter()
        self.digests: dict[bytes, str] = {}
        self.faults: list[tuple[dict[str, Any], bytes]] = []
        self.equal = 0

    def carry_out(self) -> None:
        """Compare all."""
        names = sorted({*self.gets, *self.export})
        for number, name in enumerate(names):
            if number % _EVERY == 0:
                say("at", done=number, of=len(names))
            self._one(name)
        for fault, digest in self.faults:
            other = self.digests.get(digest, "")
            say("fault", **fault, **({"holds": other} if other and other != fault["tensor"] else {}))

    def _one(self, name: str) -> None:
        if name not in self.gets:
            self._extra(name)
        elif name not in self.export:
            self._missing(name)
        else:
            got = self.export[name]
            try:
                own = self.gets[name](got.shape)
            except NotRead as error:
                return self._fault(name, "unread", why=str(error))
            self._pair(name, got, own)
        return None

    def _pair(self, name: str, got: Any, own: Any) -> None:
        if list(got.shape) != list(own.shape):
            return self._fault(name, "shape", got=list(got.shape), own=list(own.shape))
        if got.dtype not in (own.dtype, self.named):
            return self._fault(name, "dtype", got=word(got.dtype), own=word(own.dtype), named=word(self.named))
        wanted = own.to(got.dtype)
        self.digests.setdefault(digest(wanted), name)
        if same_bits(got, wanted):
            self.equal += 1
            self.casts[f"{word(own.dtype)} {word(got.dtype)}"] += 1
            return None
        self.faults.append(({"kind": "differs", "tensor": name, **how(got, wanted, own)}, digest(got)))
        return None

    def _missing(self, name: str) -> None:
        twin = self._twin(name, self.gets)
        if name.endswith(COMPUTED):
            return
        if twin and self.asked["tied"]:
            shape = self.export[twin].shape if twin in self.export else ()
            if same_bits(self.gets[name](shape), self.gets[twin](shape)):
                self.equal += 1
                return
        self._fault(name, "missing")

    def _extra(self, name: str) -> None:
        twin = self._twin(name, self.export)
        if name.endswith(COMPUTED):
            return
        if twin and self.asked["tied"] and same_bits(self.export[name], self.export[twin]):
            self.equal += 1
            return
        self._fault(name, "extra")

    def _twin(self, name: str, among: Any) -> str:
        """Return the tensor that one shares its numbers with: by the trainer's own word, or the head's embedding."""
        if (told := self.source.ties.get(name)) and told in among:
            return str(told)
        if not name.endswith(HEAD):
            return ""
        return next((other for other in sorted(among) if other.endswith(EMBEDDED)), "")

    def _fault(self, name: str, kind: str, **facts: Any) -> None:
        say("fault", kind=kind, tensor=name, **facts)


def word(dtype: Any) -> str:
    """Return the name of a type."""
    return str(dtype).rpartition(".")[2] if dtype is not None else ""


def digest(tensor: Any) -> bytes:
    """Return what tells one tensor from others; the same numbers in another shape are others."""
    found = hashlib.blake2b(repr((word(tensor.dtype), list(tensor.shape))).encode(), digest_size=16)
    found.update(memoryview(as_bytes(tensor).numpy()))
    return found.digest()


def how(got: Any, wanted: Any, own: Any) -> dict[str, Any]:
    """Return how two tensors differ: how many numbers, by how much, and whether one was rounded on its way."""
    size = max(1, got.element_size())
    bits = (as_bytes(got).view(-1, size) != as_bytes(wanted).view(-1, size)).any(dim=1)
    facts: dict[str, Any] = {"wrong": int(bits.sum()), "numbers": got.numel()}
    if not got.dtype.is_floating_point:
        return facts
    facts["largest"] = float((got.double() - wanted.double()).abs().max())
    for lower in (torch.bfloat16, torch.float16):
        if lower != got.dtype and same_bits(got, own.to(lower).to(got.dtype)):
            facts["rounded"] = word(lower)
    if own.dtype == torch.float32 and got.dtype == torch.bfloat16:
        cut = (own.contiguous().view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)
        facts |= {"cut": True} if same_bits(got, cut) else {}
    return facts


def main() -> int:
    """Compare, and say how it went."""
    asked = json.load(sys.stdin)
    try:
        source = open_source(Path(asked["against"]))
        say("source", form=source.form, ranks=source.ranks, tensors=len(source.found), torch=torch.__version__)
        export, _ = read_export(Path(asked["export"]))
        gets = renamed(source, asked["rename"])
        found = Comparison(asked, gets, export, source)
        found.carry_out()
        if asked["logits"]:
            from export_logits import compare_logits  # type: ignore[import-not-found]

            say("logits", **compare_logits(asked, gets, export))
    except (NotRead, sources.NotRead) as error:
        sys.stderr.write(f"{error}\n")
        return 4
    casts = [{"own": key.split()[0], "export": key.split()[1], "tensors": count} for key, count in found.casts.items()]
    say("end", equal=found.equal, tensors=len(export), casts=casts)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
