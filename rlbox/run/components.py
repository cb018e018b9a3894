"""What `rlbox components` does: here, in a place that was applied, or in a container of a target's image."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rlbox.app import App
from rlbox.doctor.act.stack_place import find_stack, stack_here
from rlbox.errors import NodeError, TimedOut, WorkFailed
from rlbox.image.act.plans import image_plan
from rlbox.training.act.parts import probe_components
from rlbox.training.parts import Part
from rlbox.training.parts_view import part_text, parts_data, parts_summary


def components_here(app: App, python: str, files: Sequence[str], timeout_s: float) -> int:
    """Test the stack that is here, show each part as it is known, and return rlbox's exit code."""
    began = time.monotonic()
    stack = find_stack(python, "rlbox components TARGET, or rlbox components --python FILE")
    parts: list[Part] = []
    for part in probe_components(stack, dict(os.environ), [Path(file) for file in files], timeout_s):
        parts.append(part)
        if not app.as_json and (part.state != "absent" or app.verbosity > 0):
            sys.stdout.write(part_text(part) + "\n")
            sys.stdout.flush()
    seconds = time.monotonic() - began
    app.result(parts_data(parts, stack.python, seconds), "")
    app.say(parts_summary(parts, seconds))
    states = {part.state for part in parts}
    return WorkFailed.exit_code if "failed" in states else TimedOut.exit_code if "late" in states else 0


def is_around(name: str) -> bool:
    """Return whether this process is in a target's image, or place; `NodeError` when it is in another one's."""
    here = stack_here()
    if here and here.demands.target != name:
        raise NodeError(
            f"the stack here is that of target {here.demands.target!r}", where=here.python,
            next_step=f"rlbox components, or rlbox components {name} outside of this container",
        )  # fmt: skip
    return here is not None


def components_in_container(
    app: App, name: str, data: str | None, gpus: str, files: Sequence[str], timeout_s: float
) -> int:
    """Test a target's image in a container of its own."""
    from rlbox.run.shell import open_shell

    return open_shell(app, name, ("/opt/rlbox/bin/rlbox", *_words(app, files, timeout_s)), data, gpus)


def components_applied(app: App, name: str, data: str | None, files: Sequence[str], timeout_s: float) -> int:
    """Test what `rlbox apply` laid on this machine, with the environment that runs have there."""
    from rlbox.engine.act.data_disk import data_folder
    from rlbox.place.act.bring import find_layout, place_at
    from rlbox.place.act.facts import read_record

    layout = find_layout(name, data_folder(image_plan(app.project, name).container, data))
    if read_record(layout) is None:
        raise NodeError(f"target {name} was not applied to this machine", next_step=f"rlbox apply {name}")
    place = place_at(layout)
    words = [*place.words, sys.executable, "-m", "rlbox", *_words(app, files, timeout_s)]
    return subprocess.run(words, env=dict(place.env), check=False).returncode


def _words(app: App, files: Sequence[str], timeout_s: float) -> tuple[str, ...]:
    flags = [*(["--json"] if app.as_json else []), *["-v"] * app.verbosity, *(["-q"] if app.verbosity < 0 else [])]
    return ("components", *(f"--file={file}" for file in files), f"--timeout={timeout_s:g}", *flags)
