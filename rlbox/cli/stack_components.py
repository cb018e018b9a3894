"""What `rlbox components` does: here, in a place that was applied, or in a container of a target's image."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rlbox.act.probe_components import probe_components
from rlbox.act.stack_place import find_stack, stack_here
from rlbox.cli.app import App
from rlbox.errors import WorkFailed
from rlbox.plan.component_parts import Part
from rlbox.report.components_view import part_text, parts_data, parts_summary


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
    return WorkFailed.exit_code if any(part.state == "failed" for part in parts) else 0


def components_of(app: App, name: str, data: str | None, gpus: str, words: Sequence[str]) -> int:
    """Test a target: where it was applied to this machine there, else in a container of its image."""
    from rlbox.act.apply_facts import read_record
    from rlbox.act.disk import data_folder
    from rlbox.cli.open_shell import open_shell
    from rlbox.cli.place_here import find_layout, place_at

    flags = [*(["--json"] if app.as_json else []), *["-v"] * app.verbosity, *(["-q"] if app.verbosity < 0 else [])]
    argv = ["components", *words, *flags]
    image = app.image_plan(name)
    layout = find_layout(name, data_folder(image.container, data))
    if read_record(layout) is not None or stack_here():
        place = place_at(layout)
        done = subprocess.run([*place.words, sys.executable, "-m", "rlbox", *argv], env=dict(place.env), check=False)
        return done.returncode
    return open_shell(app, name, ("/opt/rlbox/bin/rlbox", *argv), data, gpus)
