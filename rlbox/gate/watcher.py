"""What a rule of a gate looks for in a log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlbox.logs.lines import Line


@dataclass(eq=False)
class Watcher:
    """One thing that is looked for in a log.

    `met` is called with each line that fits and the way to read it that fits; it sets `done` when no further line
    matters. `rewritten` ones look at the overwritten states of progress bars, too, and `whole` ones at all that lines
    hold and do not show. In what a model may have written, only those that `marks` its end and `whole` ones look.
    """

    pattern: str
    met: Callable[[Line, str], None]
    rewritten: bool = False
    whole: bool = False
    marks: bool = False
    done: bool = False
