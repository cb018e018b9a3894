"""The share of exception lines that the inventory places at the package and function that raised them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from exceptions import Raised, raised_lines

from rlbox.inventory.place import place
from rlbox.inventory.table import shipped

_SITE = re.compile(r"/(?:site|dist)-packages/(.+)$")
_FOLDERS = {
    "megatron": "megatron-core", "huggingface_hub": "huggingface-hub", "hydra": "hydra-core", "flashinfer": "flashinfer-python",
    "flash_attn": "flash-attn",
}  # fmt: skip


def share(cases: Iterable[Any]) -> tuple[int, int, int, list[str]]:
    """Return the lines whose last frame is in a package of the inventory, and how many are placed right.

    A line counts once a log and text. One that its own package did not say (a system call failed below it, a C++ library
    spoke) has no message there: it is counted apart, by `of_the_package`.
    """
    lines = package = function = 0
    missed = []
    for case in cases:
        for raised in {(one.text, one.file): one for log in case.logs.values() for one in raised_lines(log)}.values():
            own = package_of(raised.file)
            if own is None or not of_the_package(raised):
                continue
            lines += 1
            found = place(raised.text, {**_known(case), own: ""} if False else _known(case))
            right = found is not None and (found.package == own or own in found.rivals)
            package += right
            if found is not None and right and found.where.rpartition(": ")[2].rpartition(".")[2] == raised.function:
                function += 1
            else:
                got = f"{found.package} {found.where}" if found else "nowhere"
                missed.append(f"{case.recipe.name}/{case.env}: {raised.text[:110]!r} of {own} {raised.function}: {got}")
    return lines, package, function, missed


def package_of(file: str) -> str | None:
    """Return the package of the inventory that a file belongs to."""
    found = _SITE.search(file)
    if not found:
        return None
    folder = found.group(1).split("/")[0]
    name = _FOLDERS.get(folder, folder.replace("_", "-"))
    name = {"vllm": "vllm"}.get(name, name)
    return name if name in shipped().packages else None


def of_the_package(raised: Raised) -> bool:
    """Whether the message is the package's own, and not the system's, the interpreter's or a C++ library's."""
    return not _FOREIGN.search(raised.text)


_FOREIGN = re.compile(
    r"\[Errno -?\d+\]|^ModuleNotFoundError: No module named|^ImportError: (?:cannot import name|/|lib)|^OSError: (?:/|lib)"
    r"|^(?:AttributeError|TypeError|KeyError|IndexError|ZeroDivisionError|MemoryError|UnboundLocalError): "
    r"|undefined symbol|cannot open shared object|^KeyboardInterrupt|^AssertionError$|^StopIteration"
    r"|^json\.decoder|^FileNotFoundError: \[|^PermissionError: \["
)


def _known(case: Any) -> dict[str, str]:
    return dict(case.label.get("versions", {}))
