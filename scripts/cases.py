"""Diagnose all labelled cases, and print a table by kind; 1 when one is not right.

    make cases
    make cases CASES=DIR    cases of your own

A case is a directory with one or more logs and a `right.toml`: `kind`, a word for the table; `fix`, the id that must
be found, empty for healthy logs; and parts of what must be said: `line` of the first fatal line, `next` of the remedy.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from pathlib import Path

from rlbox.config.project import Project
from rlbox.config.toml_files import load_toml
from rlbox.diagnose.diagnosis import diagnose_paths
from rlbox.diagnose.signatures import SignatureSet, load_signatures

CHECKOUT = Path(__file__).resolve().parents[1]
CASES = CHECKOUT / "tests/cases/reports"


def find_mistakes(case: Path, signatures: SignatureSet) -> list[str]:
    """Return what is not as `right.toml` says; the first word is `wrong`, `unknown` or `partly`."""
    right = load_toml(case / "right.toml")
    found = diagnose_paths(sorted(path for path in case.iterdir() if path.name != "right.toml"), signatures)
    fix = found.signature.fix if found.signature else ""
    if fix != right["fix"]:
        said = fix or ("an unknown failure" if found.has_fatal_failure else "no failure")
        return [f"{'wrong' if fix or not right['fix'] else 'unknown'}: {said}, not {right['fix'] or 'healthy'}"]
    if not right["fix"] and found.has_fatal_failure:
        return ["wrong: an alarm on a healthy log"]
    shown = {"line": found.root.text if found.root else "", "next": found.signature.remedy if found.signature else ""}
    return [
        f"partly: {key}: {shown[key]!r} has no {right[key]!r}" for key in shown if right.get(key, "") not in shown[key]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=CASES)
    folder: Path = parser.parse_args().folder
    signatures = load_signatures(Project(folder=CHECKOUT).own_pack_and_shipped_fix_files())
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for case in sorted(path.parent for path in folder.glob("*/right.toml")):
        mistakes = find_mistakes(case, signatures)
        table[str(load_toml(case / "right.toml")["kind"])][mistakes[0].partition(":")[0] if mistakes else "right"] += 1
        for mistake in mistakes:
            print(f"{case.name}: {mistake}")
    columns = ("right", "partly", "unknown", "wrong")
    print(f"{'kind':16}" + "".join(f"{name:>9}" for name in columns))
    for kind, counts in (*sorted(table.items()), ("all", sum(table.values(), Counter()))):
        print(f"{kind:16}" + "".join(f"{counts[name]:9}" for name in columns))
    return int(any(counts["right"] < counts.total() for counts in table.values()))


if __name__ == "__main__":
    sys.exit(main())
