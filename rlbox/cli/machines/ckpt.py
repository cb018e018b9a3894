"""`rlbox ckpt`: which checkpoints there are, whether they are whole, and what can be removed."""

from __future__ import annotations

from pathlib import Path

import click

from rlbox.amounts import counted
from rlbox.app import App
from rlbox.cli.options import Action, disk_options, shared
from rlbox.run.data_disk import known_disk


@click.command()
@click.argument("action", type=Action(["ls", "check"]))
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=click.Path(path_type=Path))
@disk_options
@shared
def verb(app: App, action: str, paths: tuple[Path, ...], target: str, data: str | None) -> int:
    """List the checkpoints below PATH, by default those on the data disk, or check that all are whole.

    Those of verl, Megatron and slime, DeepSpeed and OpenRLHF, and Hugging Face are known. `ls` also says what can be
    removed and removes nothing; `check` gives exit code 1 when one is torn, or the tracker names one that is missing.

    \b
    Examples:
      rlbox ckpt ls
      rlbox ckpt check /data/ckpts/holdem
    """
    from rlbox.errors import SpecError, WorkFailed
    from rlbox.evaluation.ckpt import plan_series
    from rlbox.evaluation.ckpt_files import find_checkpoints, read_tracker
    from rlbox.evaluation.training_view import series_text

    roots = [path.absolute() for path in paths] or [known_disk(app, target, data).folder]
    if missing := [str(path) for path in paths if not path.is_dir()]:
        raise SpecError("there is no such folder", where=missing[0], next_step="rlbox ckpt ls FOLDER")
    found = {folder: rows for root in roots for folder, rows in find_checkpoints(root).items()}
    series = [plan_series(str(folder), rows, read_tracker(folder)) for folder, rows in sorted(found.items())]
    shown = [one for one in series if action == "ls" or app.verbosity > 0 or not one.whole]
    text = series_text(shown, removable=action == "ls") if series else "no checkpoint yet"
    app.result({"series": [one.as_json() for one in series]}, text)
    torn = sum(not row.whole for one in series for row in one.checkpoints)
    total = sum(len(one.checkpoints) for one in series)
    count = counted(total, "checkpoint", "checkpoints")
    app.say(f"ckpt: {count}, {torn} torn" if torn else f"ckpt: {count}, none torn")
    return WorkFailed.exit_code if action == "check" and not all(one.whole for one in series) else 0
