"""Run by the stack's own interpreter: which packages and modules it has. Arguments: names of modules.

Nothing is imported: an answer takes a moment, and a package that breaks as it is imported is still found.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import sys


def is_there(module: str) -> bool:
    """Return whether a module can be found; one whose parent is missing cannot."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def main() -> None:
    """Say it in one line."""
    packages: dict[str, str] = {}
    for row in importlib.metadata.distributions():
        name = row.metadata["Name"]
        if name:
            packages.setdefault(name.lower().replace("_", "-").replace(".", "-"), row.version)
    found = [name for name in sys.argv[1:] if is_there(name)]
    facts = {"python": platform.python_version(), "packages": packages, "modules": found}
    sys.stdout.write(json.dumps({"step": "installed", "ok": True, **facts}) + "\n")


if __name__ == "__main__":
    main()
