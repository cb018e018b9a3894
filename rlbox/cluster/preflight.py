"""Every question that is asked before anything starts, a line each, and all that they find as one table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from rlbox.amounts import columns
from rlbox.cluster.node_checks import (
    NodeNeeds,
    check_addresses,
    check_clocks,
    check_disks,
    check_engines,
    check_gpus,
    check_installations,
    check_leftovers,
    check_paths,
    check_ports,
    check_routes,
    check_size,
)
from rlbox.cluster.survey import Survey
from rlbox.findings import LEVELS, Finding, listed

CHECKS: tuple[Callable[[Survey, NodeNeeds], Iterable[Finding]], ...] = (
    check_engines,
    check_installations,
    check_gpus,
    check_disks,
    check_size,
    check_clocks,
    check_addresses,
    check_ports,
    check_routes,
    check_paths,
    check_leftovers,
)


def check_survey(survey: Survey, needs: NodeNeeds, unreached: Sequence[Finding] = ()) -> tuple[Finding, ...]:
    """Return all that is wrong with the nodes, errors first, then by node; what follows from another is left out."""
    found = [*unreached, *(finding for check in CHECKS for finding in check(survey, needs))]
    kept = [one for one in found if not any(_explains(other, one) for other in found if other is not one)]
    return tuple(sorted(kept, key=lambda one: (LEVELS.index(one.level), one.where)))


def _explains(cause: Finding, finding: Finding) -> bool:
    return finding.id in cause.breaks and cause.where == finding.where


def format_findings(findings: Sequence[Finding]) -> str:
    """Return the findings as a table: nodes, what is wrong with them, what to do; notes are left out."""
    rows = list(_rows([one for one in findings if one.level != "note"]))
    return "\n".join(columns([("node", "what", "next"), *rows])) if rows else ""


def _rows(findings: Sequence[Finding]) -> Iterator[tuple[str, str, str]]:
    """Yield a row for each problem; nodes that have the very same are one row."""
    nodes: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for one in findings:
        nodes[one.level, one.title, one.seen, one.remedy].append(one.where)
    for (level, title, seen, remedy), where in nodes.items():
        mark = "" if level == "error" else f"{level}: "
        yield listed(where), f"{mark}{title}" + (f": {seen}" if seen else ""), remedy
