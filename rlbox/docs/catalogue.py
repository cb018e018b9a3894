"""Read what the pages of the fix catalogue are made from."""

from __future__ import annotations

from pathlib import Path

from rlbox.docs.coverage import coverage_rows
from rlbox.docs.demand import Causes, DemandTable
from rlbox.docs.fix_docs import Catalogue
from rlbox.fixes.load import load_fixes
from rlbox.lint.drift import load_drift
from rlbox.spec.check import check_spec
from rlbox.spec.load import load_toml
from rlbox.spec.project import Project

DEMANDS = Path(__file__).with_name("demands.toml")
CAUSES = Path(__file__).with_name("causes.toml")


def load_catalogue(project: Project, faults: Path) -> Catalogue:
    """Return the fixes of a project beside the demands; `faults` is the folder of fault tests.

    Raises
    ------
    SpecError
        A file is broken (with line), or has wrong keys and values.
    """
    fixes = load_fixes(project)
    demands = check_spec(DemandTable, load_toml(DEMANDS), str(DEMANDS)).demand
    return Catalogue(
        fixes=fixes,
        demands=demands,
        causes=check_spec(Causes, load_toml(CAUSES), str(CAUSES)),
        faults={path.stem for path in faults.glob("*.toml")},
        rows=coverage_rows(demands, fixes, lint_rules()),
    )


def lint_rules() -> dict[str, tuple[str, ...]]:
    """Return the numbers that each rule of the drift table covers."""
    return {rule.id: rule.covers for rule in load_drift()}
