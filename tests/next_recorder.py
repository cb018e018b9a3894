"""Note which test makes which place that gives a next step: `pytest -p next_recorder`, with tests/ on PYTHONPATH.

Every text that is handed to an error, a cause, a finding or a part, or said behind `next:`, is looked up among the
places of the source; of places with the same text it is the one whose function, or module, is at work then. What is
found goes to the file that `RLBOX_NEXT_STEPS` names: a line of JSON for each place and test.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from next_places import Place, places

CHECKOUT = Path(__file__).resolve().parents[1]
_made: set[tuple[Place, str]] = set()


def pytest_configure(config: pytest.Config) -> None:
    """Look into all that carries a next step."""
    from rlbox.app import App
    from rlbox.diagnose.cause import Cause
    from rlbox.errors import RlboxError
    from rlbox.evaluation.components import Part
    from rlbox.findings import Finding

    for made in (RlboxError, Cause, Finding, Part):
        made.__init__ = _noting(made.__init__, lambda words: words.get("next_step") or words.get("remedy") or "")  # type: ignore[misc]
    App.say = _noting(App.say, lambda words: str(words["text"]).partition("next: ")[2])  # type: ignore[method-assign]


def pytest_sessionfinish() -> None:
    """Write what was found."""
    with open(os.environ["RLBOX_NEXT_STEPS"], "a", encoding="utf-8") as file:
        for place, test in sorted(_made):
            file.write(json.dumps([*place, test]) + "\n")


def _noting(call: Callable[..., Any], text_of: Callable[[dict[str, Any]], str]) -> Callable[..., Any]:
    @functools.wraps(call)
    def noted(*args: Any, **words: Any) -> Any:
        said = text_of({"text": args[-1], **words})
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        if said and test:
            _made.update((place, test) for place in _meant(said, sys._getframe(1)))
        return call(*args, **words)

    return noted


def _meant(said: str, frame: FrameType) -> Iterator[Place]:
    text = " ".join(said.split())
    found = [place for place in places(CHECKOUT) if place.pattern.search(text)]
    working = set(_working(frame))
    nearest = [place for place in found if (place.module, place.function) in working]
    yield from nearest or [place for place in found if any(module == place.module for module, _ in working)]
    if not any(place.module == module for place in found for module, _ in working):
        most = max((len(place.text) for place in found), default=0)
        yield from (place for place in found if len(place.text) == most and len({one.text for one in found}) == 1)


def _working(frame: FrameType | None) -> Iterator[tuple[str, str]]:
    while frame:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(CHECKOUT / "rlbox"):
            yield (
                path.relative_to(CHECKOUT).as_posix(),
                getattr(frame.f_code, "co_qualname", frame.f_code.co_name).replace(".<locals>", ""),
            )
        frame = frame.f_back
