"""Have the source in the working folder build its wheel: `build_wheel.py OUT BACKEND [FOLDER...]`.

Run by the target's Python, with what the build imports on its path. BACKEND and the FOLDERs to find it in are those of
`build-system` in the source's pyproject.toml (source: PEP 517).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence


def main(out: str, backend: str, folders: Sequence[str]) -> None:
    """Build the wheel into `out`."""
    sys.path[:0] = [os.path.abspath(folder) for folder in folders]
    module, _, name = backend.partition(":")
    built = importlib.import_module(module)
    for part in name.split(".") if name else ():
        built = getattr(built, part)
    built.build_wheel(out)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
