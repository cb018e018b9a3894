"""Run by the stack's own interpreter: its version, and which packages it has; nothing is imported."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys


def _main() -> None:
    packages: dict[str, str] = {}
    for row in importlib.metadata.distributions():
        name = row.metadata["Name"]
        if name:
            packages.setdefault(name.lower().replace("_", "-").replace(".", "-"), row.version)
    facts = {"python": platform.python_version(), "packages": packages}
    sys.stdout.write(json.dumps({"step": "installed", "ok": True, **facts}) + "\n")


if __name__ == "__main__":
    _main()
