"""The gates of the shipped jobs on the logs of the runs that are kept from GPUs: what passed there passes now."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from jobplan import PATHS, job_of
from packed import read_packed

from rlbox.config.pattern import compile_re2
from rlbox.job.params import resolve_params
from rlbox.job.plan import plan_run

KEPT = read_packed(Path(__file__).parents[1] / "gpu/kept.tar.xz")
JOBS = ("gkd", "grpo", "holdem", "sft", "xdan")
NEW = (r"\[xdan\]\[nodes\] attention ",)
"""Beginnings of lines that a job's own program prints only since these runs were kept."""
RUNS = sorted(path.partition("/")[0] for path in KEPT if path.startswith(JOBS) and path.endswith("/run.json"))


@pytest.mark.parametrize("name", RUNS)
def test_a_kept_run_passes_the_gates_of_now(name: str) -> None:
    run = json.loads(KEPT[f"{name}/run.json"])
    job = job_of(run["job"])
    # versions that were profiles then are the defaults now
    profiles = [
        profile for profile in run["profile"].split("+") if profile in job.profiles
    ]  # some are the defaults now
    plan = plan_run(job, resolve_params(job, profiles, {}), PATHS, run_id="one", place="docker", target=job.target)
    text = KEPT[f"{name}/stages.log"].decode("utf-8")
    parts = re.split(r"^=== \d+-(\S+)\n", text, flags=re.MULTILINE)
    logs = dict(zip(parts[1::2], parts[2::2], strict=True))
    passed = {stage["name"] for stage in run["stages"] if stage["state"] == "passed"}
    stages = [stage for stage in plan.stages if stage.name in passed]
    assert stages
    for stage in stages:
        lines = logs[stage.name].splitlines()
        for rule in stage.require:
            if rule.pattern.startswith(NEW):
                continue
            count = sum(bool(compile_re2(rule.pattern).search(line)) for line in lines)
            assert count >= rule.count, (stage.name, rule.pattern)
        benign = [compile_re2(rule.pattern) for rule in stage.benign]
        for rule in stage.forbid:
            bad = [line for line in lines if compile_re2(rule.pattern).search(line)]
            assert [line for line in bad if not any(one.search(line) for one in benign)] == [], stage.name
