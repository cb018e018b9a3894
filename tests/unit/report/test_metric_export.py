"""A run's metrics under common names: in the report, between two runs, and for trackers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes import CHECKOUT
from metricsbox import ROWS, unpack_curves
from reportbox import write_run

from rlbox.config.toml_files import load_toml
from rlbox.errors import SpecError
from rlbox.record.state import StageState
from rlbox.report import metric_export
from rlbox.report.metric_export import collect_export_series, load_exporter
from rlbox.report.metrics import read_metrics
from rlbox.report.read import load_run_record
from rlbox.secrets.masks import SecretMasker

DATES = {"started_at": "2026-11-01T00:00:00+00:00", "ended_at": "2027-01-31T00:00:00+00:00"}
STAGES = (StageState(name="train", title="t", directory="stages/1-train", **DATES),)


def test_the_most_exact_source_of_a_stage_counts(tmp_path: Path) -> None:
    unpack_curves(tmp_path / "stages/1-train")
    metrics = {metric.series.name: metric for metric in read_metrics(tmp_path, STAGES, 100)}
    assert {*metrics} == {"reward", "kl", "mfu", "entropy"}
    assert metrics["reward"].source == "verl stages/1-train: critic/score/mean"
    assert [point.value for point in metrics["reward"].points] == [row["critic/score/mean"] for row in ROWS]
    assert len(metrics["entropy"].points) == 39  # without the NaN


def test_runs_of_two_trainers_have_the_same_names(tmp_path: Path) -> None:
    unpack_curves(tmp_path / "a", ".wandb")  # not in a stage's directory: the stage of its time
    state = {"log_history": [{"step": 1, "reward": 0.75, "kl": 0.1}]}
    (tmp_path / "b/stages/1-train").mkdir(parents=True)
    (tmp_path / "b/stages/1-train/trainer_state.json").write_text(json.dumps(state, indent=2))
    names = [{(m.stage, m.series.name) for m in read_metrics(tmp_path / run, STAGES, 2)} for run in "ab"]
    assert names[0] & names[1] == {("train", "reward"), ("train", "kl")}


def test_an_export_holds_all_kinds_and_prometheus_a_line_for_each(tmp_path: Path) -> None:
    write_run(tmp_path / "holdem-1")
    record = load_run_record(tmp_path / "holdem-1", SecretMasker({}), max_points_per_series=0)
    series = {one.path: one for one in collect_export_series(record, 1795180000.0)}
    assert {one.kind for one in series.values()} == {"metric", "stage", "gate", "phase", "resource"}
    assert (len(series["phase/smoke/rollout"].points), len(series["resource/cpu_pct"].points)) == (3, 400)
    metric_export.export_to_prometheus(record, [*series.values()], str(tmp_path / "rlbox.prom"))
    lines = (tmp_path / "rlbox.prom").read_text().splitlines()
    assert sum(not line.startswith("# TYPE ") for line in lines) == len(series) + 1
    assert 'rlbox_stage{run="holdem-1",stage="train-only",name="passed"} 1.0' in lines


def test_exporters_of_the_project_exist_and_name_their_extra() -> None:
    project = load_toml(CHECKOUT / "pyproject.toml")["project"]
    for name, place in project["entry-points"][metric_export.EXPORTER_GROUP].items():
        assert place == f"{metric_export.__name__}:export_to_{name}"
        assert name == "prometheus" or project["optional-dependencies"][name]
    with pytest.raises(SpecError, match="no exporter named nope"):
        load_exporter("nope")
    with pytest.raises(SpecError) as error:
        metric_export._import_extra("missing_package", extra="mlflow")
    assert error.value.next_step == "pip install 'rlbox[mlflow]'"
