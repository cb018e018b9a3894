"""Choose the best checkpoint by suite, then by the rule of this job and hold it against the baseline.

The rule is rlbox's (`rlbox eval choose`): the share of problems whose program runs, of those not clearly below the
highest the share that is right, of those the earlier step; val/loss decides nothing. What is here is what SFT is
expected to bring over the baseline.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rlbox.evaluation.files import (
    BEST_FILE,
    SUMMARY_FILE,
    read_result,
    read_result_export_path_or_empty,
    read_results_sorted_by_step,
    write_json,
)
from rlbox.evaluation.lock import LocksDifferError
from rlbox.evaluation.result import ACCEPTED, EvaluationResult
from rlbox.evaluation.scores import compute_paired_difference_of_common_problems
from rlbox.evaluation.selection import choice_to_json, choose_best_and_compare, classify_regression, format_choice
from sft import eval_config

# What SFT is expected to bring over the baseline, in percentage points; 0: no regression.
WANTED = {"codecontests_valid": 10.0, "mbpp_reg": 0.0, "humaneval": 0.0}
_MARKS = {"ok": "OK", "below": "FAIL", "unsure": "WARN", "unknown": "WARN"}


def compare(best: EvaluationResult, baseline: EvaluationResult) -> list[tuple[str, str]]:
    """Return a verdict (ok, below, unsure, unknown) and a sentence for each suite that has a target.

    What a suite of this size cannot tell is unsure: the target lies within the interval of the difference.
    """
    found = []
    for name, wanted in WANTED.items():
        one, other = (
            best.get_metric_values_or_empty(name, ACCEPTED),
            baseline.get_metric_values_or_empty(name, ACCEPTED),
        )
        if not one or not other:
            where = "the baseline" if one else "this checkpoint"
            found.append(("unknown", f"{name} accepted@1: {where} was not judged on it"))
            continue
        pair = compute_paired_difference_of_common_problems(one, other)
        gained, low, high = (100 * share for share in (pair.difference, pair.low, pair.high))
        if wanted:
            verdict = "ok" if gained >= wanted else "below" if high < wanted else "unsure"
        else:
            verdict = {"worse": "below", "kept": "ok"}.get(classify_regression(pair).verdict, "unsure")
        asked = f"+{wanted:.0f} pp wanted" if wanted else "no regression wanted"
        found.append((verdict, f"{name} accepted@1: {gained:+.1f} pp ({low:+.1f} to {high:+.1f}), {asked}"))
    return found


def baseline_of(args: argparse.Namespace) -> EvaluationResult | None:
    """Return the result that is named, or that of the model before training; `ValueError` where it is none."""
    beside = args.out / eval_config.BASE / SUMMARY_FILE
    path = Path(args.baseline) if args.baseline else beside if beside.is_file() else None
    return read_result(path) if path else None


def main() -> None:
    """Print the table, the choice and the comparison; write best_checkpoint.json."""
    parser = argparse.ArgumentParser(prog="sft.choose", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the evaluation's results")
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--baseline", default="", help="summary.json of the baseline's evaluation")
    args = parser.parse_args()
    try:
        baseline = baseline_of(args)
        found = choose_best_and_compare(
            read_results_sorted_by_step(args.out), baseline=baseline, guard_suite=eval_config.GUARD
        )
    except LocksDifferError as error:
        fields = "; ".join(map(str, error.differences))
        sys.exit(f"sft.choose: error: not comparable, the evaluation locks differ: {fields}")
    except ValueError as error:
        sys.exit(f"sft.choose: error: {error}")
    for line in format_choice(found):
        print(line)
    best = found.result
    verdicts = compare(best, baseline) if baseline else []
    for verdict, line in verdicts:
        print(f"[{_MARKS[verdict]}] {line}")
    if not best.get_metric_values_or_empty(eval_config.GUARD, ACCEPTED):
        again = f"--from evaluate --set only={best.step} --set tier=3"
        print(f"[WARN] step {best.step} was not judged on {eval_config.GUARD}: {again}")
    if baseline is None:
        print("[WARN] judge the model before training for one: --set base=FOLDER, or name one: --set baseline=FILE")
    path = args.checkpoints / f"global_step_{best.step}"
    chosen = choice_to_json(found) | {
        "path": str(path),
        "model": read_result_export_path_or_empty(args.out / best.name),
    }
    chosen["regression"] = found.has_regressed_on_guard
    write_json(args.out / BEST_FILE, chosen | {"comparison": [{"verdict": v, "says": line} for v, line in verdicts]})
    print(f"best checkpoint: step {best.step}, {path / 'huggingface'}")


if __name__ == "__main__":
    main()
