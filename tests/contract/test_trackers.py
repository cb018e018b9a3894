"""Real trackers: what their writers write is read to the last digit, and what is exported arrives in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import CHECKOUT
from metricsbox import CASES, ROWS, read_sources_with_equal_curves
from reportbox import write_run

pytestmark = [pytest.mark.slow, pytest.mark.allow("processes")]
PACKAGES = ("tensorboard", "orjson", "sqlalchemy", "alembic", "pandas", "prometheus-client")

READ_BACK = """
import re, struct, sys
from collections import defaultdict
from pathlib import Path
from mlflow import MlflowClient
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from rlbox.logs.metric_files import MetricFilesReader
from rlbox.report.metric_export import _make_mlflow_key, collect_export_series, load_exporter
from rlbox.report.read import load_run_record
from rlbox.secrets.masks import SecretMasker

record = load_run_record(Path(sys.argv[1]), SecretMasker({}), max_points_per_series=0)
series = collect_export_series(record, 1795180000.0)
for name, place in (("mlflow", "sqlite:///ml.db"), ("tensorboard", "tb"), ("wandb", "wb"), ("prometheus", "a.prom")):
    load_exporter(name)(record, series, place)
families = text_string_to_metric_families(Path("a.prom").read_text())
assert sum(len(family.samples) for family in families) == len(series) + 1 > 80
client = MlflowClient("sqlite:///ml.db")
[run] = client.search_runs([client.get_experiment_by_name("rlbox").experiment_id])
assert (run.info.status, run.data.params["rollouts"], run.data.tags["rlbox.stage.smoke"]) == ("FAILED", "120", "failed")
events = EventAccumulator("tb/holdem-1", size_guidance={"scalars": 0}).Reload()
wandb = defaultdict(list)
for name, value in (item for _, row in MetricFilesReader(Path("wb")).read_new_rows() for item in row.values.items()):
    wandb[name].append(value)
for one in series:
    points = [(step, value) for step, _, value in one.points]
    history = client.get_metric_history(run.info.run_id, _make_mlflow_key(one))
    assert sorted((metric.step, metric.value) for metric in history) == sorted(points), one.path
    assert wandb[one.path] == [value for _, value in sorted(points)], one.path
    scalars = events.Scalars(re.sub(r"[^-/\\w.]", "_", one.path))
    single = [(step, struct.unpack("<f", struct.pack("<f", value))[0]) for step, value in points]
    assert [(scalar.step, scalar.value) for scalar in scalars] == single, one.path
"""


def test_curves_of_real_writers_are_read_and_an_exported_run_arrives_in_real_trackers(tmp_path: Path) -> None:
    uv, python = Path(sys.executable).with_name("uv"), tmp_path / "venv/bin/python"
    write_run(tmp_path / "holdem-1")
    for argv in (
        (uv, "venv", "--quiet", "--python", sys.executable, tmp_path / "venv"),
        (uv, "pip", "install", "--quiet", "--python", python, f"{CHECKOUT}[mlflow,tensorboard,wandb]", *PACKAGES),
        (python, CASES / "record.py", tmp_path / "run", json.dumps(ROWS)),
        (python, "-c", READ_BACK, tmp_path / "holdem-1"),
    ):
        subprocess.run(argv, cwd=tmp_path, env={**os.environ, "WANDB_MODE": "offline"}, check=True, timeout=600)
    assert len(read_sources_with_equal_curves(tmp_path / "run")) == 5
