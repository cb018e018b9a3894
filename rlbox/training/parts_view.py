"""How the parts of a component test are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlbox.amounts import duration_text
from rlbox.training.parts import Part

_WORDS = {"ok": "ok", "failed": "failed", "late": "late", "no-gpu": "no GPU", "absent": "absent"}
_WIDTH = 18


def part_text(part: Part) -> str:
    """Return a part as one line, with the next step below it when it failed."""
    line = f"{_WORDS[part.state]:<7} {part.name:<{_WIDTH}} {part.detail}"
    line += f", {duration_text(part.seconds)}" if part.seconds >= 0.1 else ""
    return f"{line}\n{'':<8}next: {part.next_step}" if part.next_step else line


def parts_summary(parts: Sequence[Part], seconds: float) -> str:
    """Return the line that stands on stderr: `components: 9 ok, 1 failed, 3 want a GPU, 4 absent, 8.2 s`."""
    counts = {state: sum(part.state == state for part in parts) for state in _WORDS}
    said = [f"{counts['ok']} ok"]
    said += [f"{counts['failed']} failed"] if counts["failed"] else []
    said += [f"{counts['late']} not done in time"] if counts["late"] else []
    said += [f"{counts['no-gpu']} not tested: there is no GPU here"] if counts["no-gpu"] else []
    said += [f"{counts['absent']} not in this stack"] if counts["absent"] else []
    return f"components: {', '.join(said)}, {duration_text(seconds)}"


def parts_data(parts: Sequence[Part], python: str, seconds: float) -> dict[str, Any]:
    """Return the test as JSON types."""
    failed, late = ([part.name for part in parts if part.state == state] for state in ("failed", "late"))
    rows = [part.as_json() for part in parts]
    return {"python": python, "seconds": round(seconds, 2), "failed": failed, "late": late, "parts": rows}
