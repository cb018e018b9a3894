"""What the user asked for beyond the job file: one entry for the start of a run and one for every resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlbox.job.param import Scalar
from rlbox.job.params import Values


def override_entry(
    values: Values,
    settings: Mapping[str, str],
    *,
    before: Mapping[str, Scalar],
    first_stage: str = "",
    force: bool = False,
    notes: Sequence[str] = (),
    resume: bool = False,
) -> dict[str, Any]:
    """Return the entry of `overrides.json` for one start of a run.

    Parameters
    ----------
    settings
        `--set` of this command line.
    before
        The parameters as they were: the job's defaults for a new run, those of the last attempt for a resumed one.
    first_stage, force
        `--from` and `--force`.
    notes
        What the user must know of it (`RunPlan.notes`).
    """
    changed = {
        name: {"before": before.get(name), "now": value, "origin": values.origins.get(name, "")}
        for name, value in values.params.items()
        if before.get(name) != value
    }
    return {
        "resume": resume,
        "profile": values.profile,
        "set": dict(settings),
        "from": first_stage,
        "force": force,
        "changed": changed,
        "notes": list(notes),
    }
