"""`rlbox diagnose --teach` and `--unknowns`: learn from what no signature knew."""

from __future__ import annotations

import os
import shlex
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from rlbox.app import App
from rlbox.errors import NodeError, SpecError

if TYPE_CHECKING:
    from rlbox.diagnose.act.sources import Source
    from rlbox.diagnose.catalogue import SignatureSet
    from rlbox.diagnose.learn.lesson import Lesson
    from rlbox.diagnose.verdict import Diagnosis


_THERE = "there is a file of that name, which is left alone"


def teach(
    app: App,
    found: Diagnosis,
    sources: list[Source],
    catalogue: SignatureSet,
    logs: tuple[str, ...],
    write: Path | None,
) -> int:
    """Show what a diagnosis teaches, and write it where that is asked for; return the exit code."""
    from rlbox.diagnose.act.teach import teach as learn_from
    from rlbox.diagnose.learn.written import file_text

    typed = shlex.join(logs) if logs else "RUN"  # the last run, whose name the report of a diagnosis does not tell
    lesson = learn_from(found, sources, catalogue, os.environ, _private(), typed)
    placed = found.placed or {}
    text = file_text(lesson, " ".join(filter(None, (placed.get("package", ""), placed.get("versions", "")))))
    place = _write(write, lesson.id, text) if write else None
    data = {
        "id": lesson.id,
        "line": lesson.line,
        "template": lesson.template,
        "scope": lesson.scope,
        "near_miss": lesson.near_miss,
        "near_miss_line": lesson.near_miss_line,
        "file": text,
        "written": str(place) if place else None,
    }
    app.result({"lesson": data}, "" if app.as_json else _report(lesson, text, place))
    if place:
        app.say(f"next: rlbox diagnose {typed} --signatures {shlex.quote(str(place.parent))}")
    else:
        app.say(f"next: rlbox diagnose {typed} --teach --write DIR")
    return 0


def _report(lesson: Lesson, text: str, place: Path | None) -> str:

    rows = [
        f"root: line {lesson.line}",
        f"template: {lesson.template}",
        f"scope: {lesson.scope}" if lesson.scope else "scope: anywhere",
        f"near miss: line {lesson.near_miss_line}: {lesson.near_miss}",
    ]
    if not lesson.near_miss:
        rows[-1] = "near miss: none, for the log has no harmless line"
    rows += ["", "This is all that would leave this machine if you gave the file to somebody; nothing is sent:"]
    rows += ["", text]
    rows += [f"written: {place}"] if place else []
    return "\n".join(rows)


def _write(goal: Path, name: str, text: str) -> Path:
    """Write the file: to a name that ends in .toml, else into that folder; return where it is.

    Raises
    ------
    SpecError
        It is there already, with other words.
    NodeError
        It cannot be written.
    """
    from rlbox.files.act.folders import write_atomic

    place = goal if goal.suffix == ".toml" and not goal.is_dir() else goal / f"{name}.toml"
    try:
        if place.exists() and place.read_bytes() != text.encode():
            raise SpecError(_THERE, where=str(place), next_step="name another")
        write_atomic(place, text)
    except OSError as error:
        told = f"it cannot be written: {error.strerror or error}"
        raise NodeError(told, where=str(place), next_step="name another") from error
    return place


def _private() -> set[str]:
    """Return the names of this user and this host, which nobody else needs."""
    from rlbox.machine.act.identity import user_name

    host = socket.gethostname()
    return {name for name in (user_name(), Path.home().name, host, host.partition(".")[0]) if len(name) > 2} - {"root"}


def unknowns(app: App, catalogue: SignatureSet, target: str, data: str | None) -> int:
    """Show what stayed unknown on this machine, the costliest first; return the exit code."""
    from rlbox.diagnose.act.unknowns import kept
    from rlbox.diagnose.learn.unknowns import grouped, table
    from rlbox.run.data_disk import bring_up_to_date, known_disk
    from rlbox.run.known_runs import unknown_runs

    ledger = known_disk(app, target, data)
    bring_up_to_date(app, ledger)
    runs = str(ledger.folder / "runs")
    noted = [one for one in kept() if not all(name.startswith(runs) for name in one.of)]
    words = ("--data", data) if data else ()
    groups = grouped([*unknown_runs(ledger, words), *noted], catalogue)
    told = table(groups) if groups else "nothing stayed unknown on this machine"
    app.result({"unknowns": [group.as_json() for group in groups]}, told)
    return 0
