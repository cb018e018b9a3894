"""`rlbox eval judge --follow`: checkpoints are judged as a run writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rlbox.app import App
from rlbox.errors import EngineError, SpecError

if TYPE_CHECKING:
    from rlbox.evaluation.following.follow import Followed
    from rlbox.evaluation.judge import Judging, Suites

_GONE_LOOKS = 3
"""Looks in a row at which a run that has not said how it ended must be carried out by nobody."""


def follow_run(
    app: App, folder: Path, judging: Judging, suites: Suites, ended: Callable[[], bool], settle_s: float
) -> Followed:
    """Judge the checkpoints of a folder until the run that writes them has ended; say what was not judged."""
    from rlbox.evaluation.following.follow import Following

    found = Following(folder, judging, suites, ended, settle_s).follow()
    for name, why in found.failed.items():
        app.say(f"not judged: {name}: {why}")
    return found


def ends_with(app: App, run: str, target: str, data: str | None) -> Callable[[], bool]:
    """Return what tells whether a run of the data disk has ended; a dead one is settled, as by every verb about runs.

    Raises
    ------
    SpecError
        There is no such run.
    """
    from rlbox.record.settle import has_ended
    from rlbox.run.data_disk import bring_up_to_date, known_disk

    ledger = known_disk(app, target, data)
    run_dir, gone = ledger.find(run), 0

    def ended() -> bool:
        nonlocal gone
        try:
            bring_up_to_date(app, ledger)
            gone = 0 if ledger.goes_on(run_dir.name) else gone + 1
        except EngineError:  # it may be back at the next look; what the run wrote itself is known without it
            return has_ended(run_dir)
        return gone > 0 and (has_ended(run_dir) or gone >= _GONE_LOOKS)

    return ended


def one_folder(exports: tuple[Path, ...], url: str) -> Path:
    """Return the folder in which checkpoints appear; `SpecError` where it is none, or one server is to serve all."""
    if url:
        raise SpecError("--url is one server: to follow, name the interpreter that starts one with --engine FILE")
    if len(exports) != 1 or not exports[0].is_dir():
        named = ", ".join(map(str, exports))
        raise SpecError("--follow wants one folder that is there, in which checkpoints appear", where=named)
    return exports[0]
