"""`python -m rlbox.doctor PHASE`: check the fixes of the image around it. Started by rlbox, not by people."""

from __future__ import annotations

import json
import sys

from rlbox.doctor.act.fix_checks import probe_fixes


def main(argv: list[str]) -> int:
    """Print one JSON object a line for each fix that is absent; 1 when there is one."""
    found = probe_fixes(argv[0])
    for finding in found:
        sys.stdout.write(json.dumps(finding.as_json(), ensure_ascii=False) + "\n")
    return 1 if any(finding.level == "error" for finding in found) else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
