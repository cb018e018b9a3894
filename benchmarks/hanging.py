"""Goal 27: how soon steps that stop are found, and that healthy logs are never called hung.

`python -m benchmarks.hanging LOG ...` replays logs by their own times and says which would have been called hung.
"""

from __future__ import annotations

import lzma
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.pairs import Sample, Unusable
from benchmarks.place import Place
from benchmarks.watching import Supervised, bare_stage, unix
from rlbox.hang.detector import HangDetector, HangOrTimeout, load_shipped_phases, merge_phases
from rlbox.logs.lines import LineSplitter
from rlbox.system.counters import ActivityRates

NCCL_TIMEOUT_S = 600.0
"""What a silent hang takes to be found today: the time-out of the process group, verl's default."""

LOGS = Path(__file__).parents[1] / "tests" / "cases" / "hang" / "logs"
STEPS, FEW_STEPS = 15, 11
STEPPER = """
import sys, threading, time
def beat():
    while True:
        print("heartbeat: all workers registered", flush=True)
        time.sleep(float(sys.argv[2]))
threading.Thread(target=beat, daemon=True).start()
for n in range(int(sys.argv[1])):
    print(f"step {n} loss {2 / (n + 1):.4f} at {time.time():.6f}", flush=True)
    time.sleep(1)
time.sleep(1000)
"""

_SECONDS = 2.0
_STAMP = re.compile(r"(?:(\d{4})-)?(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)")
_BAR = re.compile(r"/(\d+)(?: examples)? \[(?:(\d+):)?(\d+):(\d\d)<")


class Hangs:
    """Runs whose steps stop, and when each kind of event first came, in seconds after the last step."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._made: list[dict[str, float]] = []
        self._taken: dict[str, int] = {}

    def take(self, event: str, rounds: int) -> list[dict[str, float]]:
        """Return that many runs of which no row about this event had any yet; one of another event may have."""
        first = self._taken.get(event, 0)
        last = self._taken[event] = first + rounds
        while len(self._made) < last:
            self._made.append(self._run(f"hang-{len(self._made)}"))
        return self._made[first:last]

    def _run(self, name: str) -> dict[str, float]:
        # its steps end earlier in a small place, and the silence, which no heartbeat may break
        steps, beat_s, silence_s = self._place.pick((STEPS, 3, 600.0), (FEW_STEPS, 100, 8.0))
        stage = bare_stage("s", ("-c", STEPPER, str(steps), str(beat_s)), silence_s=silence_s)
        with Supervised(self._place, name, [stage]) as run:
            run.finish(ends=(7,))
            last = float(run.log("s").read_text().split(" at ")[-1].split()[0])
            return {one["event"]: unix(one["t"]) - last for one in reversed(run.events())}


def found(event: str) -> Callable[[Place], Sample]:
    """Return the measurement of an event: steps of one second stop, heartbeats go on."""

    def measure(place: Place) -> Sample:
        runs = place.kept.get(Hangs).take(event, place.rounds)
        if not all(event in run for run in runs):
            raise Unusable(f"no event {event!r}")
        return Sample(ours=tuple(run[event] for run in runs), anchor=(NCCL_TIMEOUT_S,) * len(runs))

    return measure


def false_alarms(place: Place) -> Sample:
    """How many of the healthy logs would have been called hung."""
    logs = sorted(LOGS.glob("*.log.xz"))
    alarms = [path for path in logs if replay(lzma.decompress(path.read_bytes()))]
    return Sample(ours=(float(len(alarms)),), anchor=(1.0,), unit="")


def replay(data: bytes, silence_s: float = 600.0) -> HangOrTimeout | None:
    """Return the hang that a log would have been called, at the speed of its own times and its processes idle.

    Lines without a time, and states of progress bars whose clock went back, are spread evenly between their
    neighbours. That nothing is known of the processes makes it the hardest case: everything looks idle.
    """
    phases = merge_phases((), load_shipped_phases().phases, silence_s, override_shipped_silence=False)
    judge, now_s = HangDetector(phases, silence_s, 20.0, 0.0), 0.0
    for text, end, at in _timed(list(_parts(data))):
        while now_s < at:
            step_s = min(_SECONDS, at - now_s)
            now_s += step_s
            judge.feed_rates(ActivityRates(seconds=step_s), now_s, log_advanced=judge.last_progress_s > now_s - step_s)
            if stall := judge.find_hang(now_s):
                return stall
        if end == "\r":
            judge.feed_partial_line_and_get_phase_start(text, now_s)
        else:
            judge.feed_lines(LineSplitter().feed(f"{text}\n".encode()).joined, now_s)
    return None


def _parts(data: bytes) -> Iterator[tuple[str, str]]:
    for line in data.decode("utf-8", "replace").split("\n"):
        *states, last = line.split("\r")
        yield from ((state, "\r") for state in states)
        yield last, "\n"


def _timed(parts: Sequence[tuple[str, str]]) -> list[tuple[str, str, float]]:
    known = [(index, at) for index, at in enumerate(_told([text for text, _ in parts])) if at is not None]
    times, (before, then) = [0.0] * len(parts), (-1, 0.0)
    for index, at in known:
        for between in range(before + 1, index + 1):
            times[between] = then + (at - then) * (between - before) / (index - before)
        before, then = index, at
    times[before + 1 :] = [then] * (len(parts) - before - 1)
    return [(text, end, at) for (text, end), at in zip(parts, times, strict=True)]


def _told(texts: Sequence[str]) -> Iterator[float | None]:
    """Yield for each text the seconds since the log's begin that it tells, by a date or by a progress bar's clock."""
    first = re.search(r"(20\d\d)-\d\d-\d\d[ T]\d\d:", "\n".join(texts))
    year, now = int(first.group(1)) if first else 2026, 0.0
    begun: float | None = None
    bars: dict[str, tuple[int, float]] = {}
    for text in texts:
        at: float | None = None
        if stamp := _STAMP.search(text):
            year = int(stamp.group(1) or year)
            month, day, hour, minute, second = (int(part) for part in stamp.groups()[1:])
            unix = datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc).timestamp()
            begun = unix - now if begun is None else begun
            at = unix - begun if unix - begun >= now else None
        elif bar := _BAR.search(text):
            clock = int(bar.group(2) or 0) * 3600 + int(bar.group(3)) * 60 + int(bar.group(4))
            before, then = bars.get(bar.group(1), (clock + 1, 0.0))
            at = max(now, then + clock - before) if clock >= before else None
            bars[bar.group(1)] = (clock, now if at is None else at)
        now = now if at is None else at
        yield at


def main(paths: Sequence[str]) -> int:
    """Replay logs; return 1 when one is called hung."""
    code = 0
    for path in paths:
        stall = replay(Path(path).read_bytes())
        said = (
            f"hang ({stall.rule}, phase {stall.phase.name or 'none'}, {stall.silent_s:.0f} s)" if stall else "healthy"
        )
        sys.stdout.write(f"{said:>10}  {path}\n")
        code = 1 if stall else code
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
