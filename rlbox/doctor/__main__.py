"""What rlbox starts in a container to have it examined; people type `rlbox doctor`.

`python -m rlbox.doctor build` checks the fixes of the image around it, `python -m rlbox.doctor container SECONDS` all
that can be wrong there. Both are of the half of rlbox that decides an image, so that host and container always fit.
"""

from __future__ import annotations

import json
import os
import sys

from rlbox.doctor.fix_checks import run_fix_checks_retrying_failed


def main(argv: list[str]) -> int:
    """Print JSON: an object a line for each fix that is absent, or the whole report; 1 when there is an error."""
    match argv:
        case ["container", budget_s]:
            from rlbox.doctor.container import examine_container

            report = examine_container(dict(os.environ), float(budget_s))
            sys.stdout.write(json.dumps(report.as_json(), ensure_ascii=False) + "\n")
            return 1 if report.has_errors else 0
        case ["build"]:
            found = run_fix_checks_retrying_failed("build")
            for finding in found:
                sys.stdout.write(json.dumps(finding.as_json(), ensure_ascii=False) + "\n")
            return 1 if any(finding.level == "error" for finding in found) else 0
        case _:
            return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
