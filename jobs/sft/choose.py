"""Choose the best checkpoint by the seed's rule and hold it against the baseline (P189, P191).

First the share of problems whose program runs (codecontests_valid/exec_success_rate); those within `near` of the
highest are decided by codecontests_valid/accepted_at_1, then by the earlier step; val/loss decides nothing (P176). The
choice is flagged when its humaneval/accepted_at_1 lies clearly below the baseline's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sft import results

# What SFT is expected to bring over the baseline, in percentage points (P191).
WANTED = {"codecontests_valid": 10.0, "mbpp_reg": 0.0, "humaneval": 0.0}
SLACK = 2.0  # points within which "no regression" holds; no seed says
_MARKS = {"ok": "OK", "below": "FAIL", "unknown": "WARN"}


def figure(row: Mapping[str, Any], name: str, key: str = "accepted_at_1") -> float | None:
    """Return one figure of an evaluation, or nothing where the set was not judged."""
    value = (row["scores"].get(name) or {}).get(key)
    return None if value is None else float(value)


def best_of(history: Sequence[Mapping[str, Any]], near: float) -> Mapping[str, Any]:
    """Return the evaluation of the best checkpoint; `ValueError` when none was judged on codecontests_valid."""
    judged = [row for row in history if figure(row, "codecontests_valid", "exec_success_rate") is not None]
    if not judged:
        raise ValueError("no checkpoint was judged on codecontests_valid")
    top = max(figure(row, "codecontests_valid", "exec_success_rate") or 0.0 for row in judged)
    close = [row for row in judged if top - (figure(row, "codecontests_valid", "exec_success_rate") or 0.0) <= near]
    return max(close, key=lambda row: (figure(row, "codecontests_valid") or 0.0, -row["step"]))


def compare(row: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a verdict (ok, below, unknown) and a sentence for each set that has a target."""
    found = []
    for name, wanted in WANTED.items():
        after, before = figure(row, name), figure(baseline, name)
        if after is None or before is None:
            where = "this checkpoint" if after is None else "the baseline"
            found.append(("unknown", f"{name} accepted@1: {where} was not judged on it"))
            continue
        gained = 100 * (after - before)
        verdict = "ok" if gained >= wanted - (0 if wanted else SLACK) else "below"
        asked = f"+{wanted:.0f} pp wanted" if wanted else "no regression wanted"
        found.append((verdict, f"{name} accepted@1: {before:.2%} -> {after:.2%} ({gained:+.1f} pp, {asked})"))
    return found


def read_baseline(path: Path) -> dict[str, Any]:
    """Return the summary.json of the baseline's evaluation; `ValueError` when its parameters are others."""
    from sft import eval_config

    row: dict[str, Any] = json.loads(path.read_text())
    if row["config"] != eval_config.digest():
        raise ValueError(f"{path} was made with other evaluation parameters: not comparable (P134)")
    return row


def main() -> None:
    """Print the table, the choice and the comparison; write best_checkpoint.json."""
    parser = argparse.ArgumentParser(prog="sft.choose", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the evaluation's results")
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--near", type=float, default=0.01, help="how near two success rates are a tie")
    parser.add_argument("--baseline", default="", help="summary.json of the baseline's evaluation")
    args = parser.parse_args()
    try:
        history = results.read_history(args.out)
        best = best_of(history, args.near)
        baseline = read_baseline(Path(args.baseline)) if args.baseline else None
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"sft.choose: error: {error}")
    print(results.table(history))
    verdicts = compare(best, baseline) if baseline else []
    for verdict, line in verdicts:
        print(f"[{_MARKS[verdict]}] {line}")
    if figure(best, "humaneval") is None:
        again = f"--from evaluate --set only={best['step']} --set tier=3"
        print(f"[WARN] step {best['step']} was not judged on humaneval: {again}")
    if baseline is None:
        print("[WARN] no baseline was given: regression was not looked for (--set baseline=…/summary.json)")
    path = args.checkpoints / f"global_step_{best['step']}"
    chosen = {"step": best["step"], "path": str(path), "model": str(path / "huggingface"), "config": best["config"]}
    chosen |= {"scores": best["scores"], "comparison": [{"verdict": v, "says": line} for v, line in verdicts]}
    chosen["regression"] = any(v == "below" and line.startswith("humaneval") for v, line in verdicts)
    results.write_json(args.out / results.BEST, chosen)
    print(f"best checkpoint: step {best['step']}, {path / 'huggingface'}")


if __name__ == "__main__":
    main()
