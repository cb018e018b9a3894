"""Run by an interpreter of the machine: what it has of a framework's image, one JSON object a line.

Arguments: `versions` or `imports`, then names of distributions. It imports nothing of rlbox, and nothing else for
`versions`, so that an answer takes a moment.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import sys


def say(step: str, **facts: object) -> None:
    """Write one step's outcome; a library may have left a line open."""
    sys.stdout.write("\n" + json.dumps({"step": step, **facts}) + "\n")
    sys.stdout.flush()


def distribution(name: str) -> importlib.metadata.Distribution | None:
    """Return what is installed under a name, None when nothing is."""
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def modules(found: importlib.metadata.Distribution) -> list[str]:
    """Return the top-level modules of a distribution that can be found, the one of its own name first.

    That is tried whatever its files say: one that is installed as a link to its sources may name none.
    """
    own = str(found.metadata["Name"]).lower().replace("-", "_").replace(".", "_")
    told = (found.read_text("top_level.txt") or "").split()
    files = [str(path) for path in found.files or () if not str(path).startswith(("..", "__"))]
    code = [path for path in files if ".py" in path or ".so" in path]
    laid = [path.partition("/")[0] if "/" in path else path.partition(".")[0] for path in code]
    names = [name for name in dict.fromkeys([own, *told, *laid]) if name.isidentifier()]
    there = [name for name in names if importlib.util.find_spec(name)]
    return sorted(there, key=lambda name: (name.lower() != own, name.startswith("_")))


def versions(names: list[str]) -> None:
    """Say which Python this is, where its packages lie, and which version of each name it has."""
    folders = [os.path.abspath(path) for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    number = f"{sys.version_info[0]}.{sys.version_info[1]}"
    say("python", version=number, folders=folders)
    for name in names:
        found = distribution(name)
        say("held", name=name, version=found.version if found else "")


def imports(names: list[str]) -> None:
    """Import the first module of each name; one that cannot be imported leaves the others alone."""
    for name in names:
        found = distribution(name)
        module = next(iter(modules(found)), "") if found else ""
        try:
            if module:
                importlib.import_module(module)
        except BaseException as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            say("import", name=name, module=module, error=f"{type(error).__name__}: {lines[0] if lines else ''}"[:300])
        else:
            say("import", name=name, module=module, error="")


if __name__ == "__main__":
    {"versions": versions, "imports": imports}[sys.argv[1]](sys.argv[2:])
