"""What decides the bytes of a compiled wheel, as one checksum: it is kept, and asked for, by that."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from rlbox.target.compiled import Compile, arch_env
from rlbox.target.lock import Compiled, Deb, GitTree, Package
from rlbox.target.target import Target

RECIPE = 4
"""Number of the way rlbox compiles; another one when its programs or fixed settings make other bytes."""


def recipe_digest(
    target: Target,
    entry: Compile,
    source: Package | GitTree,
    tools: Iterable[Package],
    toolchain: Iterable[Deb],
    *,
    units: bool = True,
) -> str:
    """Return the sha256 of everything that decides a compiled wheel, hex.

    Parameters
    ----------
    units
        Without them it is what decides one object file, whichever others are compiled.
    """
    decides = {
        "rlbox": RECIPE,
        "name": entry.distribution,
        "source": source.sha256,
        "folder": entry.folder,
        "tools": sorted(package.sha256 for package in tools),
        "system": sorted(deb.sha256 for deb in toolchain) or f"this machine's: {target.base.image}",
        "python": [target.python.version, target.python.platform],
        "archs": entry.wanted_archs(target.hardware.arch),
        "cuda": entry.cuda,
        "env": build_env(target, entry),
        "units": entry.units if units else (),
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def objects_digest(target: Target, entry: Compile, compiled: Compiled, toolchain: Iterable[Deb]) -> str:
    return recipe_digest(target, entry, compiled.source, compiled.tools, toolchain, units=False)


def build_env(target: Target, entry: Compile) -> dict[str, str]:
    """Return the environment that the spec gives a build; how many compilers it starts decides nothing."""
    given = {**arch_env(entry.wanted_archs(target.hardware.arch)), **entry.env}
    return {name: text for name, text in sorted(given.items()) if name != "MAX_JOBS"}
