"""The cause that is recorded when a run's supervisor is gone without a last word: told from facts, never guessed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlbox.causes.cause import Cause, ended

End = Literal["killed", "ended", "memory", "removed", "rebooted", "restarted", "engine", "gone", "elsewhere"]
_ENGINE_LOST = 255
_KILLED = 137


@dataclass(frozen=True, kw_only=True)
class LastWord:
    """What is known of a supervisor's end.

    `exit_code` is its own (negative for a signal) or its container's; `note` is the end of what it wrote to standard
    error; `container` is the name of its container, empty in place; `host` is where it was, when that is not here.
    """

    end: End
    exit_code: int = 0
    container: str = ""
    note: str = ""
    host: str = ""


def container_end(container: str, exit_code: int, *, out_of_memory: bool, note: str) -> LastWord:
    """Return what the exit code and the flag of an ended container say.

    Source: the engine gives 255 to a container whose end it did not see, 128+N to one that ended by signal N.
    """
    if out_of_memory:
        return LastWord(end="memory", exit_code=exit_code, container=container, note=note)
    if exit_code == _ENGINE_LOST:
        return LastWord(end="engine", exit_code=exit_code, container=container)
    return process_end(exit_code, note, container)


def process_end(exit_code: int, note: str, container: str = "") -> LastWord:
    """Return what the exit code of the supervisor says."""
    killed = exit_code < 0 or exit_code == _KILLED
    return LastWord(end="killed" if killed else "ended", exit_code=exit_code, container=container, note=note)


def lost_cause(last: LastWord, when: str, run_id: str) -> Cause:
    """Return the cause of a run that was lost at the moment `when` (`while stage X was running`)."""
    next_step = f"rlbox run --resume {run_id}"
    match last.end:
        case "memory":
            what = f"out of memory: the engine ended container {last.container} {when}"
            return Cause(
                kind="oom", what=what, next_step="give the container more memory, or use a smaller batch or model"
            )
        case "killed":
            what = f"the supervisor was killed ({ended(_as_signal(last.exit_code))}) {when}"
        case "ended":
            note = last.note.strip()[-500:]
            what = f"the supervisor died with {ended(last.exit_code)} {when}" + (f": {note}" if note else "")
            return Cause(kind="lost", what=what, next_step=next_step)
        case "removed":
            what = f"container {last.container} was removed, not by rlbox, {when}"
        case "rebooted":
            what = f"the machine was restarted {when}"
        case "restarted":
            what = f"the container that rlbox runs in was restarted {when}"
        case "engine":
            what = f"the engine lost container {last.container} (exit code 255: it was restarted or killed) {when}"
        case "elsewhere":
            what = f"the supervisor at host {last.host} is gone {when}: nothing of the run has grown since"
        case "gone":
            what = f"the supervisor is gone without a word (killed, with all that watched over it) {when}"
    return Cause(kind="lost", what=what, next_step=next_step)


def removed_folder(path: str) -> Cause:
    """Somebody removed the run directory while the run went on."""
    return Cause(
        kind="disk", what="the run directory was removed while the run went on; its logs went with it", where=path
    )


def _as_signal(exit_code: int) -> int:
    return 128 - exit_code if exit_code > 128 else exit_code
