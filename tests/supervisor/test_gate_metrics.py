"""Gates on metrics by common name, in real runs: the files of any trainer, without a path in the job."""

from __future__ import annotations

from pathlib import Path

import pytest
from metricsbox import unpack_curves
from supervised import Bench, python

from rlbox.job.gate import MetricRule


@pytest.mark.parametrize("name", ["verl.jsonl", "tensorboardX/", ".wandb", "hf/"])
def test_a_common_name_is_found_in_the_files_that_a_stage_writes(bench: Bench, tmp_path: Path, name: str) -> None:
    unpack_curves(tmp_path / "made", name)
    unpack_curves(tmp_path / "run/old")  # only rows of the stage count
    metrics = (
        MetricRule(name="floor", metric="reward", at_least=-0.4, when="always", points=40),
        MetricRule(name="kl", metric="kl", trend="falls", steps_rise=True),
        MetricRule(name="own key", metric="perf/mfu/actor", at_most=0.5),
    )
    bench.stage("train", python(f"import shutil; shutil.copytree({str(tmp_path / 'made')!r}, 'out')"), metrics=metrics)
    assert bench.run() == 0, bench.cause()
    assert [(r.state, r.count) for r in bench.last("train").gate if r.kind == "metric"] == [("held", 40)] * 3


MISSING = "m has no point: no metrics file of the stage has mfu, perf/mfu/actor"


@pytest.mark.parametrize(("metric", "problem"), [("kl", "m is nan at step 1"), ("mfu", MISSING)])
def test_nan_or_a_missing_metric_fails_the_stage(bench: Bench, metric: str, problem: str) -> None:
    row = '{"step":1,"data":{"actor/kl_loss":null}}'
    code = f"import time; open('n.jsonl', 'w').write({row!r} + chr(10)); time.sleep({60 * (metric == 'kl')})"
    bench.stage("train", python(code), metrics=(MetricRule(name="m", metric=metric),))
    assert bench.run() == 1
    assert bench.cause().what == f"stage train: metric {problem}; the rule is m: finite"
