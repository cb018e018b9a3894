"""Bring an engine where none answers, and ask how it stands."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from rlbox.engine.address import engine_is_here, engine_place
from rlbox.engine.api import engine
from rlbox.engine.status import EngineStatus, read_info
from rlbox.errors import EngineError
from rlbox.i18n import _
from rlbox.system.command import DEVNULL, PIPE, check_command, run_command, start_command
from rlbox.values import Command

_SCRIPT = str(Path(__file__).with_name("programs") / "ensure-engine.sh")
_ERROR = re.compile(r"error: (?P<what>.*?); where: (?P<where>.*?); next: (?P<next_step>.*)")
_SAYS = "ensure-engine: "


def bring_engine(say: Callable[[str], None]) -> None:
    """Start an engine, and install what it and builds need, where that is missing; `say` gets each line of talk.

    Raises
    ------
    EngineError
        There can be none here, or this user may not.
    """
    try:
        process = start_command(Command(argv=("bash", _SCRIPT)), stdout=DEVNULL, stderr=PIPE, session=False)
    except OSError as error:
        raise EngineError(
            _("bash cannot be started: {strerror}").format(strerror=error.strerror), where=_SCRIPT
        ) from error
    assert process.stderr is not None  # noqa: S101  (it is a pipe)
    failed = None
    with process.stderr:
        for raw in process.stderr:
            line = raw.decode("utf-8", "replace").rstrip("\n")
            if told := _told(line):
                failed = told
            else:
                say(line.removeprefix(_SAYS))
    if code := process.wait():
        raise failed or EngineError(
            _("the engine could not be started (exit code {code})").format(code=code), where=_SCRIPT
        )


def plan_engine() -> tuple[str, ...]:
    """Return what `bring_engine` would do, a line each; nothing is changed.

    Raises
    ------
    EngineError
        As `bring_engine`, as far as that is known without trying.
    """
    outcome = run_command(Command(argv=("bash", _SCRIPT, "--dry-run")))
    if outcome.exit_code:
        raise _told(outcome.stderr) or EngineError(_("the engine cannot be looked for"), where=_SCRIPT)
    return tuple(outcome.stdout.splitlines())


def _told(words: str) -> EngineError | None:
    lines = [line.removeprefix(_SAYS) for line in words.splitlines()]
    found = [told for line in lines if (told := _ERROR.fullmatch(line))]
    return EngineError(found[-1]["what"], where=found[-1]["where"], next_step=found[-1]["next_step"]) if found else None


def probe_status() -> EngineStatus:
    """Return how the engine stands; nothing is changed."""
    place = engine_place()
    left = tuple(
        check_command(Command(argv=("bash", _SCRIPT, "--check")), "the engine cannot be looked for").stdout.splitlines()
    )
    try:
        info = engine().info()
    except EngineError:
        return EngineStatus(place=place, left=left)
    return read_info(place, info, _free_bytes(str(info.get("DockerRootDir", ""))), left)


def _free_bytes(folder: str) -> int | None:
    try:
        return shutil.disk_usage(folder).free if engine_is_here() else None
    except OSError:
        return None  # only root sees it
