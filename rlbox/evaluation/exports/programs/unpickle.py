"""Read files of torch.save without carrying anything of them out: tensors and plain values, all else is inert.

A checkpoint is what a workload wrote; `torch.load` as it comes would run what it says. Here classes that are not known
become stand-ins that keep their state, so that sharded tensors are read without a process group, in any torch version.
"""

from __future__ import annotations

import importlib
import pickle
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

torch: Any = importlib.import_module("torch")
_TAKEN = {
    ("torch._utils", "_rebuild_tensor"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("torch", "device"),
    ("torch", "Tensor"),
    ("torch.nn.parameter", "Parameter"),
}
"""What makes tensors; none of it does more."""


class Stand:
    """In place of an object of a class that is not known: what it was made of, and its state."""

    kind = ""

    def __new__(cls, *args: Any, **_named: Any) -> Stand:
        """Keep what it is made of."""
        made = super().__new__(cls)
        made.args, made.state = args, {}
        return made

    args: tuple[Any, ...]
    state: dict[str, Any]

    def __init__(self, *_args: Any, **_named: Any) -> None:
        """Do nothing."""

    def __setstate__(self, state: Any) -> None:
        """Keep the state, that of slots too."""
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict):
                self.state.update(part)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Keep nothing: items of mappings that are not known."""

    def append(self, value: Any) -> None:
        """Keep nothing: items of lists that are not known."""

    def extend(self, values: Any) -> None:
        """Keep nothing, as `append`."""


def _rebuild(function: Any, kind: Any, args: tuple[Any, ...], state: Any) -> Any:
    """Return a tensor, or the stand-in of a subclass of one, as DTensor is, with its own state."""
    if isinstance(kind, type) and issubclass(kind, Stand):
        made = kind(*args)
        made.__setstate__(state)
        return made
    return function(*args)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return what makes tensors and plain values; for all else a stand-in."""
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._tensor", "_rebuild_from_type_v2"):
            return _rebuild
        if module == "builtins" and name in ("set", "dict", "list", "tuple", "frozenset", "bytearray", "complex"):
            return super().find_class(module, name)
        known = getattr(torch, name, None) if module == "torch" else None
        if (module, name) in _TAKEN or isinstance(known, torch.dtype):
            return super().find_class(module, name)
        return type(name, (Stand,), {"kind": f"{module}.{name}"})


def read_saved(path: Path) -> Any:
    """Return what torch.save wrote; tensors are mapped and read where they are used."""
    inert = SimpleNamespace(
        Unpickler=_Unpickler, __name__="pickle"
    )  # no `load`: files of before PyTorch 1.6 are refused
    return torch.load(path, map_location="cpu", mmap=True, weights_only=False, pickle_module=inert)
