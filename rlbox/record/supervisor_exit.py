"""Why a run ended whose supervisor is gone without a last word: told from facts, never guessed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from rlbox.diagnose.cause import Cause, describe_exit
from rlbox.i18n import _

ExitKind = Literal[
    "killed", "ended", "memory", "removed", "rebooted", "restarted", "engine", "gone", "elsewhere", "again"
]
_ENGINE_LOST = 255
_KILLED = 137


@dataclass(frozen=True, kw_only=True)
class SupervisorExit:
    """What is known of a supervisor's end.

    `exit_code` is its own (negative for a signal) or its container's; `container_name` is empty in place; `host` is
    where it was, when that is not here.
    """

    kind: ExitKind
    exit_code: int = 0
    container_name: str = ""
    stderr_tail: str = ""
    host: str = ""


def make_container_exit_info(
    container_name: str, exit_code: int, *, out_of_memory: bool, stderr_tail: str
) -> SupervisorExit:
    """Return what the exit code and the flag of an ended container say.

    Source: the engine gives 255 to a container whose end it did not see, 128+N to one that ended by signal N.
    """
    info = replace(make_killed_or_ended_exit_info(exit_code, stderr_tail), container_name=container_name)
    if out_of_memory:
        return replace(info, kind="memory")
    return replace(info, kind="engine") if exit_code == _ENGINE_LOST else info


def make_killed_or_ended_exit_info(exit_code: int, stderr_tail: str) -> SupervisorExit:
    kind: ExitKind = "killed" if exit_code < 0 or exit_code == _KILLED else "ended"
    return SupervisorExit(kind=kind, exit_code=exit_code, stderr_tail=stderr_tail)


_LOST: dict[ExitKind, str] = {
    "memory": _("out of memory: the engine ended container {container} {when}"),
    "killed": _("the supervisor was killed ({ended}) {when}"),
    "ended": _("the supervisor died with {ended} {when}"),
    "removed": _("container {container} was removed, not by rlbox, {when}"),
    "rebooted": _("the machine was restarted {when}"),
    "restarted": _("the container that rlbox runs in was restarted {when}"),
    "engine": _("the engine lost container {container} (exit code 255: it was restarted or killed) {when}"),
    "again": _("container {container} was started a second time, not by rlbox; its first start ended {when}"),
    "elsewhere": _("the supervisor at host {host} is gone {when}"),
    "gone": _(
        "the supervisor ended without a record (it was killed with its watchdog, or the record is damaged) {when}"
    ),
}


def make_lost_run_cause(exit_info: SupervisorExit, during_phrase: str, run_id: str) -> Cause:
    """`during_phrase` says at which moment: `while stage X was running`."""
    code = exit_info.exit_code
    if exit_info.kind == "killed" and code > 128:
        code = 128 - code
    what = _LOST[exit_info.kind].format(
        container=exit_info.container_name, host=exit_info.host, ended=describe_exit(code), when=during_phrase
    )
    if exit_info.kind == "memory":
        return Cause(
            kind="oom", what=what, next_step=_("give the container more memory, or use a smaller batch or model")
        )
    if exit_info.kind == "ended" and (note := exit_info.stderr_tail.strip()[-500:]):
        what += f": {note}"
    return Cause(kind="lost", what=what, next_step=f"rlbox run --resume {run_id}")
