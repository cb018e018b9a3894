"""Run a program and answer what the checker asks of it, over descriptor 3; it knows nothing of what is expected.

`main.py` in the working folder is the program. Run by the stack's interpreter, behind the same walls as the program.
"""

from __future__ import annotations

import asyncio
import os
import sys
from types import CoroutineType, ModuleType
from typing import Any

import peer  # type: ignore[import-not-found]  # beside it, where it runs


class _Candidate(peer.Peer):  # type: ignore[misc]
    side = "p"
    space: dict[str, Any]

    def _carry_out(self, question: dict[str, Any]) -> Any:
        if question["do"] == "load":
            with open("main.py", encoding="utf-8") as stream:
                return exec(compile(stream.read(), "main.py", "exec"), self.space)  # noqa: S102 this is what it is for
        if question["do"] == "name":
            return self.space[question["name"]]
        if question["do"] == "await":
            return asyncio.run(self.things[question["at"]])
        return super()._carry_out(question)

    def _refer(self, thing: Any) -> dict[str, Any]:
        reference: dict[str, Any] = super()._refer(thing)
        return {**reference, "k": "coroutine"} if isinstance(thing, CoroutineType) else reference


def _main() -> None:
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.path[0] = os.getcwd()
    candidate = _Candidate(3)
    candidate.space = module.__dict__
    candidate.start_receiver_thread()
    while message := candidate.questions.get():
        candidate.answer(message)


if __name__ == "__main__":
    _main()
