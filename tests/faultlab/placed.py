"""The share of exception lines that the inventory places at the package and function that raised them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from exceptions import Raised, raised_lines

from rlbox.inventory.place import Placement, place, place_raised
from rlbox.inventory.table import shipped

_SITE = re.compile(r"/(?:site|dist)-packages/(.+)$")
_FOLDERS = {
    "flash_attn": "flash-attn", "flashinfer": "flashinfer-python", "hydra": "hydra-core", "megatron": "megatron-core",
    "huggingface_hub": "huggingface-hub",
}  # fmt: skip
_SAYS = re.compile(r"raise \w+[.\w]*\(|raise [A-Z]|assert ")
_WORDLESS = re.compile(r"^(?:KeyError: .*|\w+(?:Error|Exception):?)$")
"""A line of an exception of Python's own with no words of anybody."""


def share(cases: Iterable[Any]) -> tuple[Counter[str], list[str]]:
    """Return how many exception lines there are and how many are placed right, and the lines that are not.

    A line counts once a log, when its last frame is a `raise` or `assert` in a package of the inventory. It is right
    when its package and function are those of that frame, or of another frame that the exception passed through in its
    chain (one raises another's text again). What compiled code or the interpreter raises below a package's frame, and a
    caught exception that is raised again, is counted apart, as `elsewhere`. Both are placed by their words alone; as
    `shown` all of them with their tracebacks, as `rlbox diagnose` tells of them.
    """
    count: Counter[str] = Counter()
    missed = []
    for case in cases:
        for raised in {(one.text, one.file): one for log in case.logs.values() for one in raised_lines(log)}.values():
            if package_of(raised.file) is None or _WORDLESS.match(raised.text):
                continue
            packages = {name: "" for file, _ in raised.frames if (name := package_of(file))}
            versions = case.label.get("versions", {})
            found = place(raised.text, {**packages, **versions})
            kind = "raised" if _SAYS.match(raised.source) else "elsewhere"
            right_package, right_function = _right(raised, found)
            shown = _right(raised, place_raised(raised.text, raised.frames, versions))
            count.update({kind: 1, f"{kind}: package": right_package, f"{kind}: package and function": right_function})
            count.update({"shown": 1, "shown: package": shown[0], "shown: package and function": shown[1]})
            if kind == "raised" and not right_function:
                got = f"{found.package} {found.where}" if found else "nowhere"
                missed.append(f"{case.recipe.name}/{case.env}: {raised.text[:110]!r} of {raised.function}: {got}")
    return count, missed


def _right(raised: Raised, found: Placement | None) -> tuple[bool, bool]:
    if found is None:
        return False, False
    passed = {(package_of(file), function) for file, function in raised.frames}
    if raised.function == "<module>" and ": " not in found.where:
        return found.package == package_of(raised.file), found.package == package_of(raised.file)
    functions = {where.rpartition(": ")[2].rpartition(".")[2] for where in (found.where, *found.places)}
    owners = {found.package, *found.rivals}
    return bool(owners & {package for package, _ in passed}), any(
        (owner, function) in passed for owner in owners for function in functions
    )


def package_of(file: str) -> str | None:
    """Return the package of the inventory that a file belongs to."""
    found = _SITE.search(file)
    if not found:
        return None
    folder = found.group(1).split("/")[0]
    name = _FOLDERS.get(folder, folder.replace("_", "-"))
    return name if name in shipped().packages else None
