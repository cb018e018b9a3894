"""`rlbox bundle`: one archive with all that explains a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlbox.app import App
from rlbox.cli.offered import complete_run
from rlbox.cli.options import disk_options, dry_run, shared
from rlbox.errors import RlboxError
from rlbox.run.data_disk import bring_up_to_date, known_disk, run_masks

if TYPE_CHECKING:
    from rlbox.record.ledger import Ledger
    from rlbox.record.state import RunState
    from rlbox.supervise.bundle_plan import Selection


@click.command()
@click.argument("name", metavar="[RUN]", required=False, shell_complete=complete_run)
@click.option("--out", metavar="FILE", type=click.Path(path_type=Path), help="Archive to write [RUN.tar.gz here].")
@click.option("--full", is_flag=True, help="Include logs in full, not only their last 20 MB.")
@disk_options
@dry_run
@shared
def verb(app: App, name: str | None, out: Path | None, full: bool, target: str, data: str | None) -> int:
    """Write an archive with all that explains RUN (the latest by default): logs, evidence, configuration, machine.

    A run may be bundled at any time, even while it is running. Models and checkpoints are left out; secrets are masked.

    \b
    Examples:
      rlbox bundle
      rlbox bundle smoke-20260101 --out /tmp/smoke.tar.gz --full
    """
    from rlbox.amounts import size_text
    from rlbox.supervise.bundle import check_place, list_files, write_bundle
    from rlbox.supervise.bundle_plan import select_files
    from rlbox.supervise.bundle_texts import bundle_texts
    from rlbox.system.progress import show_byte_progress

    ledger = known_disk(app, target, data)
    run_dir = ledger.find(name)
    try:
        bring_up_to_date(app, ledger)
    except RlboxError as error:  # a disk that cannot be written is a reason for a bundle, not against it
        app.say(f"it is not yet known how the run ended: {error.what}")
    out = Path(os.path.abspath(out or f"{run_dir.name}.tar.gz"))
    with app.checking("file"):
        check_place(run_dir, out)
    selection = select_files(list_files(run_dir), full=full)
    if app.dry_run:
        masks = run_masks(app, run_dir)  # names of files may hold secrets, too
        told = {"run": run_dir.name, "file": str(out), **masks.tree(_plan(selection))}
        return app.planned(told, masks.text(_table(selection)), f"write {out}")
    total = sum(taken.keep for taken in selection.taken)
    app.say(f"bundling {len(selection.taken)} files, {size_text(total)}; {len(selection.left)} left out")
    texts = bundle_texts(run_dir, run_dir.name, _state(ledger, run_dir), selection)
    with show_byte_progress(app, f"bundling {run_dir.name}", total) as on_bytes:
        made = write_bundle(run_dir, selection, texts, out, run_masks(app, run_dir), on_bytes)
    size = out.stat().st_size
    told = {"run": run_dir.name, "file": str(out), "bytes": size, "files": [vars(row) for row in made.files]}
    app.result({**told, "left_out": [vars(left) for left in made.left]}, str(out))
    app.say(f"{size_text(size)}; read {run_dir.name}/SUMMARY.md in it first")
    return 0


def _state(ledger: Ledger, run_dir: Path) -> RunState | None:
    from rlbox.record.folder import load_plan
    from rlbox.record.state import load_run_state

    try:
        return ledger.state(run_dir, load_plan(run_dir))
    except RlboxError:
        pass  # the plan is torn; the state may be whole
    try:
        return load_run_state(run_dir)
    except RlboxError:
        return None


def _plan(selection: Selection) -> dict[str, Any]:
    taken = [{"name": taken.name, "bytes": taken.bytes, "keep": taken.keep} for taken in selection.taken]
    return {"files": taken, "left_out": [vars(left) for left in selection.left]}


def _table(selection: Selection) -> str:
    from rlbox.amounts import size_text

    rows = [
        f"{size_text(taken.keep):>10}  {taken.name}" + ("" if taken.keep == taken.bytes else f" (end of {taken.bytes})")
        for taken in selection.taken
    ]
    return "\n".join((*rows, *(f"{'left out':>10}  {left.name}: {left.why}" for left in selection.left)))
