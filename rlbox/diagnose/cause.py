"""Why a stage ended as it did, in one sentence, and the exit code that belongs to it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rlbox.amounts import decimal_size_text
from rlbox.errors import Interrupted, MachineError, TimedOut, WorkFailed
from rlbox.i18n import EnglishMessage, _, message_or_text_from_json, message_or_text_to_json
from rlbox.job.plan import StagePlan

CauseKind = Literal[
    "fix", "need", "port", "program", "service", "ready", "forbid", "exit", "ray", "require", "file", "silence",
    "total", "oom", "disk", "interrupted", "bug", "lost", "within", "metric", "probe", "contradiction",
    "listens", "node",
]  # fmt: skip

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
        """Make the messages again of a cause that was read; of any other, note what makes them."""
        with contextlib.suppress(LookupError, TypeError, ValueError, AttributeError):  # of a damaged run.json
            for name, read in ((name, message_or_text_from_json(data)) for name, data in self.messages.items()):
                if name in ("what", "next_step") and read == getattr(self, name):  # else it was replaced
                    object.__setattr__(self, name, read)
        texts = {"what": self.what, "next_step": self.next_step}
        messages = {
            name: message_or_text_to_json(text) for name, text in texts.items() if isinstance(text, EnglishMessage)
        }
        object.__setattr__(self, "messages", messages)

    def as_json(self) -> dict[str, str]:
        """Return it as JSON types, in English."""
        return {name: value for name, value in asdict(self).items() if name != "messages"}


def get_run_exit_code(cause: Cause | None) -> int:
    if cause is None:
        return 0
    if cause.kind in _NODE:
        return MachineError.exit_code
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
