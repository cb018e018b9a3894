"""List the examples that signatures of several fixes match, the one that counts first; 1 when two tie.

    python scripts/overlaps.py

`rank` in a signature decides, then `near` or `above`, then the longer pattern.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from rlbox.config.project import Project
from rlbox.diagnose.events import make_line_event
from rlbox.diagnose.lines import CERTAIN_FAILURE, parse_line
from rlbox.diagnose.signatures import LogSignature, SignatureSet, extract_signatures
from rlbox.fixes.catalogue import load_fix_catalogue
from rlbox.fixes.render import SIGNATURE_FIELDS

CHECKOUT = Path(__file__).resolve().parents[1]


def find_overlaps() -> Iterator[tuple[str, list[LogSignature]]]:
    """Yield each example that signatures of the same role but of several fixes match, the best match first."""
    fixes = load_fix_catalogue(Project(folder=CHECKOUT))
    catalogue = SignatureSet(extract_signatures(fix.model_dump(include=SIGNATURE_FIELDS) for fix in fixes))
    for example in dict.fromkeys(row.example for fix in fixes for row in fix.signature):
        event = make_line_event(parse_line(1, example), CERTAIN_FAILURE)
        matches = [match.signature for match in catalogue.match_event(event)]
        rivals = [one for one in matches if one.role == matches[0].role]
        if len({one.fix for one in rivals}) > 1:
            yield example, rivals


def main() -> int:
    ties = 0
    for example, rivals in find_overlaps():
        best = rivals[0]
        tie = any(one.fix != best.fix and one.specificity == best.specificity for one in rivals)
        ties += tie
        names = " > ".join(dict.fromkeys(f"{one.fix} (rank {one.rank})" for one in rivals))
        print(f"{'TIE ' if tie else ''}{names}\n    {example}")
    return int(ties > 0)


if __name__ == "__main__":
    sys.exit(main())
