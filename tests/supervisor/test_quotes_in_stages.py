"""A healthy run whose model quotes a failure passes; the same line of a run that fails is its cause. In real stages."""

from __future__ import annotations

import json

from supervised import Bench, forbid_rule, python

from rlbox.job.gate import IgnoredModelText

OOM = "torch.OutOfMemoryError: CUDA out of memory"
STEP = "print(f'step {n} loss {1 / n}', flush=True); time.sleep(0.2)"


def test_a_run_that_goes_on_after_such_a_line_passes(bench: Bench) -> None:
    code = f"import time\nfor n in range(1, 6):\n    {STEP}\n    if n == 3: print('I answer: {OOM}', flush=True)"
    bench.stage("train", python(code), forbid=(forbid_rule("CUDA out of memory"),))
    assert bench.run() == 0
    rows = [json.loads(line) for line in (bench.run_dir / "events.jsonl").read_text().splitlines()]
    assert [(row["number"], row["log"]) for row in rows if row["event"] == "noted"] == [(4, "stage")]


def test_a_quoted_failure_is_not_the_cause_of_another(bench: Bench) -> None:
    said = f"print('DEBUG: my answer'); print('{OOM}'); print('INFO: update done', flush=True)"
    code = f"{said}\nraise ValueError('the real one')"
    spans = (IgnoredModelText(begins="^DEBUG:", ends="^INFO: update done"),)
    bench.stage("train", python(code), forbid=(forbid_rule("CUDA out of memory"),), model_texts=spans)
    assert bench.run() == 1
    assert bench.cause().kind == "exit"
    assert "the real one" in bench.cause().line
