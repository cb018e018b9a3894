"""What `rlbox components` does: with the stack that is here, or with a target's at a place of runs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from rlbox.app import App
from rlbox.doctor.stack_location import find_local_stack, find_stack
from rlbox.errors import NodeError, TimedOut, WorkFailed
from rlbox.evaluation.components import Part, part_text, parts_data, parts_summary, probe_components
from rlbox.i18n import _
from rlbox.run.places import load_backend


def run_component_tests(app: App, python: str, files: Sequence[str], timeout_s: float) -> int:
    """Test the stack that is here, show each part as it is known, and return rlbox's exit code."""
    began = time.monotonic()
    stack = find_stack(python, "rlbox components TARGET, or rlbox components --python FILE")
    parts: list[Part] = []
    for part in probe_components(stack, dict(os.environ), [Path(file) for file in files], timeout_s):
        parts.append(part)
        if not app.as_json and (part.state != "absent" or app.verbosity > 0):
            app.show(part_text(part))
    seconds = time.monotonic() - began
    app.result(parts_data(parts, stack.python, seconds), "")
    app.say(parts_summary(parts, seconds))
    states = {part.state for part in parts}
    return WorkFailed.exit_code if "failed" in states else TimedOut.exit_code if "late" in states else 0


def is_inside_target(name: str) -> bool:
    """Return whether this process is in a target's image, or place; `NodeError` when it is in another one's."""
    here = find_local_stack()
    if here and here.requirements.target != name:
        raise NodeError(
            _("the stack here is that of target {target!r}").format(target=here.requirements.target), where=here.python,
            next_step=_("rlbox components, or rlbox components {name} outside of this container").format(name=name),
        )  # fmt: skip
    return here is not None


def run_component_tests_at(
    app: App, place: str, name: str, data: str | None, gpus: str, files: Sequence[str], timeout_s: float
) -> int:
    """Test the stack of a target at a place where runs take place."""
    return load_backend(place).run_rlbox(app, name, _words(app, files, timeout_s), data, gpus)


def _words(app: App, files: Sequence[str], timeout_s: float) -> tuple[str, ...]:
    return ("components", *(f"--file={file}" for file in files), f"--timeout={timeout_s:g}", *app.words)
