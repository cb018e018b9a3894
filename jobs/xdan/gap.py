"""The gap between the engine's and the trainer's log-probabilities, of each update, from the log of the stage `train`.

OpenRLHF 0.10 tells it as `vllm_kl` beside the update's other numbers; a weight that did not reach vLLM shows nowhere
else.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from xdan.program import JobError, run

_STEP = re.compile(r"Global step (\d+): \{(.*)")
_GAP = re.compile(r"'vllm_kl': ([^,}\s]+)")


def gaps(lines: Iterator[str]) -> Iterator[tuple[int, str]]:
    """Yield step and gap of each update that a log tells of. Raises JobError for one without a gap."""
    for line in lines:
        if step := _STEP.search(line):
            gap = _GAP.search(step.group(2))
            if gap is None:
                raise JobError(f"step {step.group(1)} has no vllm_kl: OpenRLHF 0.10.2 or newer prints it")
            yield int(step.group(1)), gap.group(1)


def main() -> None:
    """Print the gaps of the newest attempt of the training."""
    parser = argparse.ArgumentParser(prog="xdan.gap", description=__doc__)
    parser.add_argument("run", type=Path, help="the run's folder")
    args = parser.parse_args()
    logs = sorted(args.run.glob("stages/*-train*/stage.log"), key=lambda path: path.stat().st_mtime)
    if not logs:
        raise JobError(f"{args.run} has no log of the stage train")
    count = 0
    with logs[-1].open(encoding="utf-8", errors="replace") as file:
        for step, gap in gaps(iter(file)):
            print(f"[xdan][gap] step {step}: {gap}", flush=True)
            count += 1
    if not count:
        raise JobError(f"{logs[-1]} tells of no update")
    print(f"[xdan][gap] passed: {count} updates", flush=True)


if __name__ == "__main__":
    run("xdan.gap", main)
