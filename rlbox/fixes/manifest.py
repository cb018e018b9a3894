"""What an image and a run are told of fixes: how `rlbox doctor` and a run check them, and what lines of logs mean."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rlbox.diagnose.signatures import rows_json, signatures_of
from rlbox.fixes.applies import Versions
from rlbox.fixes.bake import fill, template_values
from rlbox.fixes.fix import Fix
from rlbox.target.target import Target

if TYPE_CHECKING:
    from rlbox.job.gate_plan import BenignPlan

SCHEMA = 1
SIGNED = {"id", "title", "failure", "remedy", "heals", "benign", "signature"}
"""What of a fix a judge of logs needs."""
_TOLD = {"id", "title", "title_zh", "remedy", "remedy_zh", "heals"}


def fix_manifest(chosen: Iterable[Fix], target: Target, versions: Versions, facts: Mapping[str, Any]) -> str:
    """Return the manifest as JSON text.

    Keys: `schema`, `target` (its name), `facts` (what the image should find on its machine), and `fixes`, each with id,
    titles, remedies, the causes that it heals, and its check (`run`, `when`) or null.
    """
    values = template_values(target, versions)
    rows = [{**fix.model_dump(mode="json", include=_TOLD), "check": _check(fix, values)} for fix in chosen]
    data = {"schema": SCHEMA, "target": target.name, "facts": facts, "fixes": rows}
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def signature_list(fixes: Iterable[Fix]) -> str:
    return rows_json(signatures_of(fix.model_dump(include=SIGNED) for fix in fixes)) + "\n"


def _check(fix: Fix, values: Mapping[str, Any]) -> dict[str, Any] | None:
    if fix.check is None:
        return None
    return {"run": fill(fix.check.run, values, f"templates/fixes/{fix.id}.toml"), "when": list(fix.check.when)}


def known_benign(fixes: Iterable[Fix]) -> tuple[BenignPlan, ...]:
    """Return the benign lines of the catalogue, in any log.

    Those of fixes named `benign-…`; another benign fix tells that nothing is broken, not that nothing happened.
    """
    from rlbox.job.gate_plan import BenignPlan

    return tuple(
        BenignPlan(pattern=signature.pattern, after=signature.after, why=fix.title, known=fix.id)
        for fix in fixes
        if fix.benign and fix.id.startswith("benign-")
        for signature in fix.signature
    )
