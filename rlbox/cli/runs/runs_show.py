"""`rlbox runs ls` and `rlbox runs show`: all runs, and one of them."""

from __future__ import annotations

from typing import Any

import click

from rlbox.amounts import columns, size_text
from rlbox.app import App
from rlbox.cli.offered import complete_run
from rlbox.cli.options import disk_options, shared
from rlbox.cli.runs.runs_row import run_row
from rlbox.run.data_disk import bring_up_to_date, known_disk

_UNTOLD = ("notes", "run", "exit_code")
_NAMES = ("stage", "phase", "started_at")


@click.command("show")
@click.argument("name", metavar="[RUN]", required=False, shell_complete=complete_run)
@disk_options
@shared
def show(app: App, name: str | None, target: str, data: str | None) -> int:
    """Show RUN (by default the latest): its stages, its folder, what it holds.

    A unique prefix of its name is enough.

    \b
    Examples:
      rlbox runs show
      rlbox runs show smoke-20250101 --json
    """
    from rlbox.record.source_tree import recorded_source, source_text
    from rlbox.run.known_runs import run_facts

    ledger = known_disk(app, target, data)
    folder = ledger.find(name)
    row = run_row(ledger, folder, bring_up_to_date(app, ledger))
    facts = run_facts(ledger, app, [folder])[0]
    stages = _stages(ledger, folder)
    source = recorded_source(folder)
    found = {**row, "job": facts.job, "folder": str(folder), "bytes": facts.size, "stages": stages, "source": source}
    told = [(key, _shown(key, value)) for key, value in row.items() if value and key not in _UNTOLD]
    told += [("job", facts.job), ("folder", str(folder)), ("size", size_text(facts.size))]
    told += [("source", source_text(source))] if source else []
    lines = [row["run"], *columns([(f"  {key}:", value) for key, value in told])]
    lines += [f"  note: {note}" for note in row["notes"]]
    lines += columns([(f"  stage {one['name']}", one["state"]) for one in stages])
    lines += [f"  checkpoint {path}" for path in facts.checkpoints]
    app.result({"run": found | {"checkpoints": list(facts.checkpoints)}}, "\n".join(lines))
    return 0


def _shown(key: str, value: Any) -> str:
    return value if key in _NAMES else str(value)


def _stages(ledger: Any, folder: Any) -> list[dict[str, str]]:
    from rlbox.errors import RlboxError
    from rlbox.record.folder import load_plan

    try:
        state = ledger.state(folder, load_plan(folder))
    except RlboxError:
        return []
    return [{"name": stage.name, "state": stage.state} for stage in state.stages] if state else []
