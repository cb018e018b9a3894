"""End a run that goes on, from any process: it is asked to, and killed when it does not in time."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from rlbox.errors import NodeError
from rlbox.i18n import _
from rlbox.job.plan import RunPlan
from rlbox.record.ledger import RunStore
from rlbox.record.supervisor_file import SupervisorInfo, is_supervisor_alive, load_supervisor, request_stop

GRACE_S = 20
"""Seconds between asking and killing: a supervisor ends a stage and its services within 12 s."""

_SETTLE_S = 20.0
_PAUSE_S = 0.05


def stop_run(
    run_store: RunStore, run_dir: Path, plan: RunPlan, *, user: str, by: str, grace_s: float = GRACE_S
) -> None:
    """Ask the run to stop, wait for its end, and kill its supervisor after `grace_s` seconds.

    It may be called again and at the same time by others: the first one who asked is remembered. `Ledger.settle`
    then settles what was killed.

    Raises
    ------
    NodeError
        The run belongs to another user, who alone may end it.
    EngineError
        Its engine does not answer.
    """
    with contextlib.suppress(OSError):  # a full or removed run directory: the signal itself is enough
        request_stop(run_dir, user, by)
    carrier = run_store.find_runtime(plan.run_id)
    if carrier:
        carrier.stop(int(grace_s))
        return
    _stop_here(run_store, run_dir, plan, grace_s)


def _stop_here(run_store: RunStore, run_dir: Path, plan: RunPlan, grace_s: float) -> None:
    asked = killed = 0.0
    begun = time.monotonic()
    while run_store.is_locked_by(plan.run_id):
        now, facts = time.monotonic(), load_supervisor(run_dir)
        if facts and not asked and is_supervisor_alive(run_dir, facts):
            asked = now
            _signal(facts, signal.SIGTERM)
        if facts and not killed and now > (asked or begun) + grace_s and is_supervisor_alive(run_dir, facts):
            killed = now
            _signal(facts, signal.SIGKILL)  # its warden ends the rest
        if now > (asked or begun) + grace_s + _SETTLE_S:
            return
        time.sleep(_PAUSE_S)


def _signal(facts: SupervisorInfo, number: signal.Signals) -> None:
    try:
        os.kill(facts.pid, number)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise NodeError(
            _("the run belongs to another user (uid {uid})").format(uid=facts.uid),
            next_step=_("ask that user, or stop it as root"),
        ) from error
