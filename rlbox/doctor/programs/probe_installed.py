"""Run by the stack's own interpreter: which packages and modules it has. Arguments: names of modules.

Nothing is imported: an answer takes a moment, and a package that breaks as it is imported is still found.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import sys
from pathlib import Path


def is_there(module: str) -> bool:
    """Return whether a module can be found, and the file of a module of it: another package may have its folder."""
    package, _, below = module.partition(".")
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    if spec is None or not below:
        return spec is not None
    files = (Path(folder, *below.split(".")) for folder in spec.submodule_search_locations or ())
    return any(file.is_dir() or file.with_suffix(".py").is_file() for file in files)


def _main() -> None:
    packages: dict[str, str] = {}
    for row in importlib.metadata.distributions():
        name = row.metadata["Name"]
        if name:
            packages.setdefault(name.lower().replace("_", "-").replace(".", "-"), row.version)
    found = [name for name in sys.argv[1:] if is_there(name)]
    facts = {"python": platform.python_version(), "packages": packages, "modules": found}
    sys.stdout.write(json.dumps({"step": "installed", "ok": True, **facts}) + "\n")


if __name__ == "__main__":
    _main()
