"""Logs that reach lines of `rlbox diagnose` which no log before them reached, by Atheris where it has a wheel.

`python tests/fuzz/covering.py CORPUS [-runs=N] [-max_total_time=S]` (flags of libFuzzer): what was found worth keeping
lies in CORPUS and is where the next campaign begins; what falls lies in the working directory. Bytes make a log: pieces
of what programs say, and text of nobody, joined as the bytes tell.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

import atheris  # noqa: E402

with atheris.instrument_imports(include=["rlbox.diagnose", "rlbox.logs"]):
    from fuzz.diagnosing import BEFORE, SAID, Judged

_BEFORE, _SAID = list(BEFORE), list(SAID)
_EVERY_S = 30.0
"""Seconds between two lines of how far the campaign came."""


def log_of(data: bytes) -> tuple[list[bytes], list[int]]:
    """Return the logs, and the places at which they are cut, that bytes tell of."""
    told = atheris.FuzzedDataProvider(data)
    logs = []
    for _ in range(told.ConsumeIntInRange(1, 3)):
        lines = []
        for _ in range(told.ConsumeIntInRange(0, 14)):
            pieces = [told.PickValueInList(_BEFORE)]
            for _ in range(told.ConsumeIntInRange(0, 3)):
                pieces.append(told.PickValueInList(_SAID) if told.ConsumeBool() else told.ConsumeUnicode(40))
            lines.append("".join(pieces))
        logs.append(told.PickValueInList(["\n", "\r\n", "\r"]).join(lines).encode("utf-8", "surrogatepass"))
    cuts = [told.ConsumeIntInRange(0, 400) for _ in range(told.ConsumeIntInRange(0, 4))]
    logs[-1] += told.ConsumeBytes(200)
    return logs, cuts


class _Counted:
    """Judges what bytes tell of, and says now and then how many it were."""

    def __init__(self, judged: Judged) -> None:
        self._judged = judged
        self._count, self._begun = 0, time.monotonic()
        self._told = self._begun

    def one(self, data: bytes) -> None:
        """Judge one case."""
        logs, cuts = log_of(data)
        self._judged.whole(logs, cuts)
        self._count += 1
        if time.monotonic() - self._told > _EVERY_S:
            self._told = time.monotonic()
            sys.stdout.write(
                f"{self._count} logs: nothing fell; {self._count / (self._told - self._begun):.0f} a second; "
                f"{len(self._judged.told)} answers\n"
            )
            sys.stdout.flush()


def main(words: list[str]) -> None:
    """Carry out a campaign; it ends the process."""
    corpus = Path(words[0])
    corpus.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.gettempdir()) / f"rlbox-covering-{os.getpid()}"
    folder.mkdir()
    counted = _Counted(Judged(folder))
    atheris.Setup([sys.argv[0], str(corpus), *words[1:]], counted.one)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
