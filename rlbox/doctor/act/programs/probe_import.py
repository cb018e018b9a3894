"""Run by the stack's own interpreter: import what a part is used by. Arguments: MODULE or MODULE:ATTRIBUTE.

One process a part: one that ends its process, or hangs, leaves the others alone.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import traceback


def main() -> None:
    """Import each in turn; the first that fails ends it, with the line of the stack that failed."""
    began = time.monotonic()
    for number, name in enumerate(sys.argv[1:]):
        module, _, attribute = name.partition(":")
        facts = {"name": name, "last": number == len(sys.argv) - 2}
        try:
            found = importlib.import_module(module)
            if attribute:
                getattr(found, attribute)
        except BaseException as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            frames = traceback.extract_tb(error.__traceback__)
            facts |= {"error": f"{type(error).__name__}: {lines[0] if lines else ''}"[:500]}
            facts |= {"all": str(error)[:4000], "where": f"{frames[-1].filename}:{frames[-1].lineno}"}
        sys.stdout.write("\n")  # a library may have left a line open
        ok = "error" not in facts
        sys.stdout.write(json.dumps({"step": "import", "ok": ok, **facts, "seconds": time.monotonic() - began}) + "\n")
        sys.stdout.flush()
        if not ok:
            break


if __name__ == "__main__":
    main()
