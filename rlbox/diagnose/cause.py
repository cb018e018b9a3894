"""Why a stage ended as it did, in one sentence, and the exit code that belongs to it.

A supervisor that is gone without a last word leaves a cause too: told from facts, never guessed.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rlbox.amounts import decimal_size_text
from rlbox.errors import Interrupted, NodeError, TimedOut, WorkFailed
from rlbox.i18n import EnglishMessage, _, message_from_json, message_to_json
from rlbox.job.plan import StagePlan

CauseKind = Literal[
    "fix", "need", "port", "program", "service", "ready", "forbid", "exit", "ray", "require", "file", "silence",
    "total", "oom", "disk", "interrupted", "bug", "lost", "within", "metric", "probe", "contradiction",
    "listens", "node",
]  # fmt: skip

ExitKind = Literal[
    "killed", "ended", "memory", "removed", "rebooted", "restarted", "engine", "gone", "elsewhere", "again"
]
_ENGINE_LOST = 255
_KILLED = 137

_NODE: frozenset[CauseKind] = frozenset({"fix", "need", "port", "disk", "node"})
TIMEOUT_KINDS: frozenset[CauseKind] = frozenset({"ready", "silence", "total", "within"})
"""Causes that say that something took too long."""
EXHAUSTION_KINDS: frozenset[CauseKind] = frozenset({"oom", "disk"})
"""Causes whose own next step is better than that of a line's signature."""
EXIT_BUG = 3


@dataclass(frozen=True, kw_only=True)
class Cause:
    """The first thing that went wrong.

    `where` is a log below the run directory, with `:NUMBER` when `line` quotes that line of it. `known` is the id of
    the fix that knows this failure, empty when none does. Of a hang, `phase` is where it happened, `waits` says what
    the first of its processes waits for, and `report` is the page below the run directory that says the rest.
    `messages` keeps `what` and `next_step` in run.json so that they can be shown in another language.
    """

    kind: CauseKind
    what: str
    where: str = ""
    line: str = ""
    next_step: str = ""
    known: str = ""
    phase: str = ""
    waits: str = ""
    report: str = ""
    messages: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        with contextlib.suppress(LookupError, TypeError, ValueError, AttributeError):  # of a damaged run.json
            for name, read in ((name, message_from_json(data)) for name, data in self.messages.items()):
                if name in ("what", "next_step") and read == getattr(self, name):  # else it was replaced
                    object.__setattr__(self, name, read)
        texts = {"what": self.what, "next_step": self.next_step}
        messages = {name: message_to_json(text) for name, text in texts.items() if isinstance(text, EnglishMessage)}
        object.__setattr__(self, "messages", messages)


def get_run_exit_code(cause: Cause | None) -> int:
    if cause is None:
        return 0
    if cause.kind in _NODE:
        return NodeError.exit_code
    if cause.kind in TIMEOUT_KINDS:
        return TimedOut.exit_code
    return {"interrupted": Interrupted.exit_code, "bug": EXIT_BUG}.get(cause.kind, WorkFailed.exit_code)


def describe_exit(exit_code_or_negative_signal: int) -> str:
    """Return for example `exit code 3`, `signal 9 (SIGKILL)`."""
    if exit_code_or_negative_signal >= 0:
        return _("exit code {code}").format(code=exit_code_or_negative_signal)
    number = -exit_code_or_negative_signal
    name = f" ({signal.Signals(number).name})" if number in set(signal.Signals) else ""
    return _("signal {number}{name}").format(number=number, name=name)


def get_stage_log_path(stage: StagePlan) -> str:
    """Below the run directory, as is that of a service."""
    return f"{stage.directory}/stage.log"


def get_service_or_stage_log_path(stage: StagePlan, service_name: str) -> str:
    services = {service.name: service.log for service in stage.services}
    return f"{stage.directory}/{services[service_name]}" if service_name in services else get_stage_log_path(stage)


def make_port_conflict_cause(port_name: str, port: int, holder: str) -> Cause:
    return Cause(
        kind="port",
        what=_("port {port} ({name}) is taken by {holder}").format(port=port, name=port_name, holder=holder),
        next_step=_(
            "end that process if it is yours, or start a new run with --shift-ports 100: it moves all its ports"
        ),
    )


def make_disk_full_cause(path: str, free_bytes: int) -> Cause:
    return Cause(
        kind="disk",
        what=_("data disk full: {size} free at {path}").format(size=decimal_size_text(free_bytes), path=path),
        where=path,
        next_step=_("free space there, then run again"),
    )


def make_interrupted_cause(signal_name: str) -> Cause:
    return Cause(kind="interrupted", what=_("interrupted by {what}").format(what=signal_name))


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
