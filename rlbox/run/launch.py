"""Start a run at its place, follow it or leave it alone, and say how it ended."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rlbox.app import App
from rlbox.errors import EngineError, Interrupted, NodeError, SpecError
from rlbox.machine.act.identity import user_name
from rlbox.record.act.disk_hold import Holder, held_by
from rlbox.record.act.ledger import Ledger
from rlbox.record.act.state import load_run_state
from rlbox.run.follow import finish, follow
from rlbox.run.places import Start
from rlbox.run.stop import stop_run

_ENGINE_S = 60.0
"""How long an engine may be away, as when it is restarted, before nobody can tell how its container is."""
_PAUSE_S = 0.05


def launch(app: App, ledger: Ledger, me: Holder, prepare: Callable[[], Start], *, detach: bool) -> int:
    """Start a run on a data disk and follow it to its end, or leave it alone; return rlbox's exit code.

    Parameters
    ----------
    me
        Who holds the disk while the run is being started.
    prepare
        Called once the disk is held and older runs are settled.

    Raises
    ------
    LockHeld
        Another run goes on there.
    Interrupted
        Ctrl-C or SIGTERM came; the run was stopped, nothing of it is left.
    """
    with interruptible() as stopped:
        start = _begin(app, ledger, me, prepare, stopped)
        alive = _Alive(ledger, start)
        if detach and not stopped():
            return _leave_alone(app, ledger, start, alive)
        follow(app, start.run_dir, lambda: not stopped() and alive())
        if stopped():
            app.say("stopping the run")
            stop_run(ledger, start.run_dir, start.plan, user=user_name(), by=stopped.name)
    code = finish(app, ledger, start.run_dir, start.plan, me)
    if stopped():
        what = f"run {start.plan.run_id} was stopped; nothing of it is left running"
        raise Interrupted(what, where=str(start.run_dir))
    return code


def _begin(app: App, ledger: Ledger, me: Holder, prepare: Callable[[], Start], stopped: Stopped) -> Start:
    hold = ledger.take(me)
    try:
        found = ledger.settle_held()
        for run, why in found.unsettled.items():
            app.say(f"run {run} {why}")
        if found.alive:
            run = found.alive[0]
            raise held_by(Holder(run=run, what="its container runs"), hold.path, ledger.stage_of(run))
        start = prepare()
        hold.tell(dataclasses.replace(me, run=start.plan.run_id, job=start.plan.job))
        if stopped():
            what = f"run {start.plan.run_id} was stopped before it started"
            raise Interrupted(what, where=str(start.run_dir), next_step=f"rlbox run --resume {start.plan.run_id}")
        start.begin(hold)
    except OSError as error:
        raise NodeError(
            f"the run cannot be written down: {error.strerror or error}",
            where=str(error.filename or ledger.folder),
            next_step="free space there, or name another disk with --data DIR",
        ) from error
    finally:
        hold.leave()
    return start


def _leave_alone(app: App, ledger: Ledger, start: Start, alive: Callable[[], bool]) -> int:
    """Wait until the supervisor has taken over, and say how to come back to the run."""
    run = start.plan.run_id
    while alive():
        try:
            state = load_run_state(start.run_dir)
        except SpecError:
            state = None
        if state and state.attempt >= start.plan.attempt and state.state == "running":
            app.result({"run": run, "folder": str(start.run_dir), "state": state.state}, run)
            app.say(f"run {run} goes on by itself: rlbox attach {run}, rlbox logs -f {run}, rlbox stop {run}")
            return 0
        time.sleep(_PAUSE_S)
    return finish(app, ledger, start.run_dir, start.plan, Holder(what="the end of a run"))


class _Alive:
    """Whether a run goes on: its supervisor holds the disk, or its container or process is there."""

    def __init__(self, ledger: Ledger, start: Start) -> None:
        self._ledger = ledger
        self._start = start
        self._away_since = 0.0

    def __call__(self) -> bool:
        if self._ledger.held_by(self._start.plan.run_id):
            return True
        try:
            found = self._start.alive()
        except EngineError:
            self._away_since = self._away_since or time.monotonic()
            if time.monotonic() - self._away_since > _ENGINE_S:
                raise
            return True
        self._away_since = 0.0
        return found


class Stopped:
    """Whether Ctrl-C or SIGTERM came; it is asked between polls, so that no step is torn."""

    def __init__(self) -> None:
        self.name = ""

    def __call__(self) -> bool:
        return bool(self.name)

    def note(self, number: int, frame: FrameType | None) -> None:
        """Remember the first signal."""
        self.name = self.name or ("Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name)


@contextmanager
def interruptible() -> Iterator[Stopped]:
    """Note Ctrl-C and SIGTERM instead of dying of them while the block runs."""
    stopped = Stopped()
    before = {number: signal.signal(number, stopped.note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, action in before.items():
            signal.signal(number, action)
