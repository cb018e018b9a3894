"""Has the mean reward on held-out questions risen from the first test to the last, question by question?"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any


def scores(path: Path) -> dict[str, float]:
    """Return the score of each question of one test, as verl wrote it."""
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    found = {row["input"]: float(row["score"]) for row in rows}
    if len(found) != len(rows):
        raise ValueError(f"{path} has a question twice")
    return found


def curve(folder: Path) -> dict[int, dict[str, float]]:
    """Return the tests of a training by their step; there are two or more."""
    found = {int(path.stem): scores(path) for path in sorted(folder.glob("*.jsonl"), key=lambda path: int(path.stem))}
    if len(found) < 2:
        raise ValueError(f"{folder} has {len(found)} tests; it takes two to see a rise")
    return found


def rise(before: dict[str, float], after: dict[str, float]) -> tuple[float, float, float]:
    """Return the mean difference over the questions and the two ends of its 95 % interval."""
    if before.keys() != after.keys():
        raise ValueError("the two tests are not of the same questions")
    differences = [after[ask] - before[ask] for ask in before]
    mean = sum(differences) / len(differences)
    spread = math.sqrt(sum((one - mean) ** 2 for one in differences) / (len(differences) - 1) / len(differences))
    return mean, mean - 1.96 * spread, mean + 1.96 * spread


def report(name: str, tests: dict[int, dict[str, float]]) -> dict[str, Any]:
    """Print the curve of one training, and return it."""
    means = {step: sum(test.values()) / len(test) for step, test in tests.items()}
    for step, mean in means.items():
        print(
            f"[learn] {name} step {step}: mean reward {mean:.4f} of {len(tests[step])} held-out questions", flush=True
        )
    first, last = min(tests), max(tests)
    mean, low, high = rise(tests[first], tests[last])
    print(f"[learn] {name}: {mean:+.4f} from step {first} to {last}, 95 % {low:+.4f} to {high:+.4f}", flush=True)
    return {"means": means, "rise": mean, "low": low, "high": high, "questions": len(tests[first])}


def main() -> None:
    """Judge both trainings, write the curve, and end with status 1 where one is not as it must be."""
    parser = argparse.ArgumentParser(prog="learn.judge", description=__doc__)
    parser.add_argument("--grpo", type=Path, required=True)
    parser.add_argument("--control", type=Path, required=True)
    parser.add_argument("--least", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    try:
        told = {name: report(name, curve(getattr(args, name))) for name in ("grpo", "control")}
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"learn.judge: error: {error}")
    args.out.write_text(json.dumps({"schema": 1, **told}, indent=1) + "\n", "utf-8")
    if told["grpo"]["rise"] < args.least or told["grpo"]["low"] <= 0:
        sys.exit("[learn] FAILED: GRPO has not learnt")
    if told["control"]["rise"] >= args.least and told["control"]["low"] > 0:
        sys.exit("[learn] FAILED: the control has risen, too, without learning: what is measured is not learning")
    print("[learn] passed", flush=True)


if __name__ == "__main__":
    main()
