"""Run a program and answer calls of its functions, over descriptor 3; it knows nothing of what is expected.

`main.py` in the working folder is the program. Run by the stack's interpreter, behind the same walls as the program.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import wire  # type: ignore[import-not-found]  # beside it, where it runs

_LINE = 3


class _Kept:
    """What has no plain kind, by number."""

    def __init__(self) -> None:
        self.things: list[Any] = []

    def keep(self, thing: Any) -> dict[str, Any]:
        self.things.append(thing)
        return {"k": "kept", "v": len(self.things) - 1, "of": type(thing).__name__}

    def find(self, value: dict[str, Any]) -> Any:
        return self.things[value["v"]]


def main() -> None:
    """Load the program, say that it is there or what it raised, and answer until the line is closed."""
    kept, module = _Kept(), ModuleType("__main__")
    sys.modules["__main__"], space = module, module.__dict__
    sys.path[0] = os.getcwd()
    with open("main.py", encoding="utf-8") as stream:
        text = stream.read()
    try:
        exec(compile(text, "main.py", "exec"), space)  # noqa: S102 this is what it is for
        wire.send(_LINE, {"value": None})
    except BaseException as error:
        wire.send(_LINE, _raised(error))
        raise
    while True:
        asked = wire.receive(_LINE)
        try:
            answer = {"value": wire.encode(_do(asked, kept, space), kept.keep)}
        except BaseException as error:
            answer = _raised(error)
        wire.send(_LINE, answer)


def _do(asked: dict[str, Any], kept: _Kept, space: dict[str, Any]) -> Any:
    if asked["do"] == "name":
        return space[asked["name"]]
    thing = kept.things[asked["at"]]
    if asked["do"] == "get":
        return getattr(thing, asked["name"])
    words = wire.decode(asked["words"], kept.find)
    names = {name: wire.decode(value, kept.find) for name, value in asked["names"].items()}
    return thing(*words, **names)


def _raised(error: BaseException) -> dict[str, Any]:
    return {"raised": [type(error).__name__, str(error)[:500]]}


if __name__ == "__main__":
    main()
