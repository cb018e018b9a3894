"""The pages of `docs/` that are made from the fix catalogue: one for each family of fixes, and their index."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlbox.config.project import Project
from rlbox.config.schema import validate_spec
from rlbox.config.toml_files import load_toml
from rlbox.fixes.catalogue import load_fix_catalogue
from rlbox.fixes.fix import Fix
from rlbox.fixes.view import BakeEntry, format_conditions_as_toml, list_bake_entries
from rlbox.image.templates import create_docs_template_environment
from scripts.docs.coverage import Causes, CoverageRow, Demand, DemandTable, coverage_rows

DEMANDS = Path(__file__).resolve().parents[2] / "docs/internal/demands.toml"
CAUSES = Path(__file__).with_name("causes.toml")
INDEX = "docs/fixes/README.md"
NO_FAMILY = "prevention"
LONGEST_HEADING = 90
KINDS = {
    "package": "Installs",
    "env": "Sets",
    "path": "Extends",
    "file": "Writes",
    "link": "Links",
    "hook": "Runs at start",
    "run": "Starts containers with",
    "secret": "Copies the secret",
    "ray": "Starts Ray with",
    "patch": "Patches",
}
# What templates of fixes see, as `rlbox.fixes.render.build_fix_template_values` gives it.
NAMES = {
    "target": "the spec of the target, completed: `target.run.shm_gib`, `target.env`, …",
    "hardware": "its table `[hardware]`: `hardware.arch`, `hardware.gpus`, …",
    "disk": "where the container sees the data disk: `/data`",
    "python": "version of the stack's interpreter: `3.11`",
    "site": "folder of the stack's packages: `/opt/venv/lib/python3.11/site-packages`",
    "cuda": "CUDA that torch of the stack is built with (13.0); empty: not known",
    "has": '`has("vllm>=0.12")`: whether the stack has it',
    "version": '`version("vllm")`: its version, or empty',
    "aliases": "in `hook` only: the fix's own `aliases`, groups of variables that hold the same secret",
}


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """What the pages are made from; `faults` are the ids of fixes that have a fault test."""

    fixes: tuple[Fix, ...]
    demands: Mapping[str, Demand]
    causes: Causes
    faults: Set[str]
    rows: tuple[CoverageRow, ...]


def load_catalogue(project: Project, faults: Path) -> Catalogue:
    """Return the fixes of a project beside the demands; `faults` is the folder of fault tests.

    Raises
    ------
    SpecError
        A file is broken (with line), or has wrong keys and values.
    """
    fixes = load_fix_catalogue(project)
    demands = validate_spec(DemandTable, load_toml(DEMANDS), str(DEMANDS)).demand
    return Catalogue(
        fixes=fixes,
        demands=demands,
        causes=validate_spec(Causes, load_toml(CAUSES), str(CAUSES)),
        faults={fix for path in faults.glob("*.toml") for fix in load_toml(path)},
        rows=coverage_rows(demands, fixes),
    )


def fix_pages(catalogue: Catalogue, templates: Sequence[Path]) -> dict[str, str]:
    """Return every page by its path in the repository; `templates` are the folders that have `docs/*.j2`."""
    engine = create_docs_template_environment(templates, cell=_cell, sentence=_sentence)
    page, index = (engine.get_template(f"docs/{name}.md.j2") for name in ("family", "fixes"))
    headings = _distinct_headings(catalogue.fixes)
    families = _families(catalogue)
    found = {
        f"docs/fixes/{family}.md": page.render(
            family=family, fixes=[_section_values(fix, headings[fix.id], catalogue) for fix in fixes]
        )
        for family, fixes in families.items()
    }
    found[INDEX] = index.render(
        families=families,
        names=NAMES,
        heading_of=lambda fix: headings[fix.id],
        status_of=lambda fix: status(fix, tested=fix.id in catalogue.faults),
    )
    return found


def heading(fix: Fix) -> str:
    """Return the error that a user sees: the first signature's line of the log, else the failure in words."""
    if not fix.signature:
        return fix.failure or fix.title
    signature = fix.signature[0]
    lines = [line.strip() for line in signature.example.splitlines() if line.strip()]
    line = next((line for line in lines if re.search(signature.pattern, line)), lines[0])
    text = line if len(line) <= LONGEST_HEADING else f"{line[: LONGEST_HEADING - 1].rstrip()}…"
    return f"`{text.replace('`', chr(39))}`"


def _distinct_headings(fixes: Sequence[Fix]) -> dict[str, str]:
    """Return the heading of each fix by its id; a line of several fixes, or nearly one, is followed by the failure."""
    found = {fix.id: heading(fix) for fix in fixes}
    lines = Counter(map(_without_numbers, found.values()))
    return {
        fix.id: f"{text} ({fix.failure})" if lines[_without_numbers(text)] > 1 and fix.failure else text
        for fix, text in zip(fixes, found.values(), strict=True)
    }


def _without_numbers(text: str) -> str:
    return re.sub(r"\d+(?:\.\d+)?", "0", text)[:60]


def status(fix: Fix, *, tested: bool) -> str:
    """Return how far rlbox takes care of a fault."""
    if fix.benign:
        return "harmless"
    if not fix.has_bake_entries and not fix.check:
        return "known only"
    kind = "baked in" if fix.has_bake_entries else "checked"
    return f"{kind}, fault-tested" if tested else f"{kind}, no fault test: {fix.untested}" if fix.untested else kind


def _section_values(fix: Fix, heading_text: str, catalogue: Catalogue) -> dict[str, Any]:
    return {
        "fix": fix,
        "heading": heading_text,
        "status": status(fix, tested=fix.id in catalogue.faults),
        "conditions": [f"`{condition}`" for condition in format_conditions_as_toml(fix.applies)],
        "baked": [_baked(row) for row in list_bake_entries(fix, fix.bake)],
    }


def _baked(entry: BakeEntry) -> str:
    """Return one line on something that is baked; the text of files, hooks and patches stays in the fix's own file."""
    if entry.kind == "refuse":
        return f"Refuses a target: {_cell(entry.value)}."
    value = entry.value if entry.kind == "patch" else f"`{_cell(entry.value)}`"
    return f"{KINDS[entry.kind]} `{_cell(entry.name)}`" + (f": {value}" if entry.value else "")


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _families(catalogue: Catalogue) -> dict[str, Sequence[Fix]]:
    """Return the fixes by the family of the first cause that they heal, in the order of the families.

    A fix that heals none has its family in the table `without_cause`, or belongs to the last one.
    """
    causes = catalogue.causes
    found: dict[str, list[Fix]] = {family: [] for family in (*causes.family, *causes.without_cause, NO_FAMILY)}
    for fix in catalogue.fixes:
        families = [family for cause in fix.heals if (family := causes.family_of(cause))]
        families += [family for family, ids in causes.without_cause.items() if fix.id in ids]
        families += [family for family in causes.family if fix.id.startswith(f"{family}-")]
        found[families[0] if families else NO_FAMILY].append(fix)
    return {family: fixes for family, fixes in found.items() if fixes}


def _cell(text: str) -> str:
    """Return a text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
