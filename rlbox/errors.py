"""Every exception of rlbox and its exit code: one class per kind of failure (DESIGN, "exit codes")."""

from __future__ import annotations

from rlbox.i18n import _, join

ISSUES = "https://github.com/rlbox-dev/rlbox/issues"
_PAGES = "https://github.com/rlbox-dev/rlbox/blob/main/docs"


def get_main_docs_url(page_name: str) -> str:
    """Return where a page of `docs/` is read by who has the wheel alone."""
    return f"{_PAGES}/{page_name}.md"


class RlboxError(Exception):
    """A failure that the user can act on.

    Parameters
    ----------
    what
        What happened, one sentence, no full stop.
    where
        File, key, node or container it happened in; empty when `what` says it: then the command is printed.
    next_step
        The smallest thing to do next, as a command where there is one.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", next_step: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.next_step = next_step

    def as_json(self) -> dict[str, str | int]:
        return {"what": self.what, "where": self.where, "next": self.next_step, "exit_code": self.exit_code}

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(_("  where: {where}").format(where=self.where))
        if self.next_step:
            lines.append(_("  next:  {step}").format(step=self.next_step))
        return join("\n", lines)


class WorkFailed(RlboxError):
    """A build or a stage failed, or a check found errors."""

    exit_code = 1


class SpecError(RlboxError):
    """A target, job or lock file is wrong, or names something that does not exist."""

    exit_code = 2


class EngineError(RlboxError):
    """The container engine is missing, too old, not permitted, or lacks something the plan needs."""

    exit_code = 4


class EngineUnavailable(EngineError):
    """No engine answers, or none may be asked now: what it would say is not known."""


class MachineError(RlboxError):
    """A machine is not fit for the plan: port taken, disk missing or full, GPU missing."""

    exit_code = 5


class RegistryError(RlboxError):
    """A registry refused a login, push or pull."""

    exit_code = 6


class TimedOut(RlboxError):
    """Something never became ready, or went silent for longer than its limit."""

    exit_code = 7


class LockHeld(RlboxError):
    """Another rlbox process holds what this one needs."""

    exit_code = 8


class Interrupted(RlboxError):
    """Stopped by the user; the message lists what was left running."""

    exit_code = 130
