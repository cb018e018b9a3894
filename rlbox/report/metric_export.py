"""Export a run as series of numbers: TensorBoard, MLflow, W&B, a Prometheus text file. Their libraries are extras."""

from __future__ import annotations

import dataclasses
import os
import posixpath
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

from rlbox.amounts import zoned_iso_to_unix
from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.job.param import format_scalar
from rlbox.record.resources import ResourceSample
from rlbox.report.html import make_timeline_rows
from rlbox.report.metrics import read_metrics
from rlbox.report.read import RunRecord, dict_or_empty
from rlbox.system.files import write_atomic

EXPORTER_GROUP = "rlbox.metric_exporters"
_PROJECT = "rlbox"
_PARAM = "param."
_MLFLOW_STATUS = {"passed": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
_MLFLOW_METRICS, _MLFLOW_PARAMS, _MLFLOW_KEY, _MLFLOW_TEXT = 1000, 100, 250, 500
"""Limits of one request of MLflow, and of characters."""
_NOT_IN_MLFLOW_KEYS = re.compile(r"[^\w\-. /:]", re.ASCII)


class ExportSeries(NamedTuple):
    """`kind` is metric, stage, gate, phase or resource; a resource has no stage. A point: step, Unix time, value."""

    kind: str
    stage: str
    name: str
    points: Sequence[tuple[int, float, float]]

    @property
    def group(self) -> str:
        return "/".join(filter(None, (self.kind, self.stage)))

    @property
    def path(self) -> str:
        return f"{self.group}/{self.name}"


MetricExporter = Callable[[RunRecord, Sequence[ExportSeries], str], str]
"""Writes the series of a run to a destination, and returns where they are, for people."""


def load_exporter(name: str) -> MetricExporter:
    """Raises SpecError: no installed package registers an exporter of this name."""
    loaders = {point.name: point.load for point in entry_points(group=EXPORTER_GROUP)}
    if name not in loaders:
        raise SpecError(
            _("no exporter named {name}").format(name=name),
            where="--format",
            next_step=_("choose one of: {names}").format(names=", ".join(sorted(loaders))),
        )
    exporter: MetricExporter = loaders[name]()
    return exporter


def list_run_facts(record: RunRecord) -> dict[str, str]:
    state, params = record.state, dict_or_empty(record.plan, "params")
    facts = {name: str(getattr(state, name)) for name in ("state", "job", "target", "place", "profile")}
    facts |= {f"stage.{stage.name}": stage.state for stage in state.stages}
    return facts | {f"{_PARAM}{name}": format_scalar(value) for name, value in params.items()}


def collect_export_series(record: RunRecord, now_unix_s: float) -> list[ExportSeries]:
    began = zoned_iso_to_unix(record.state.started_at) or now_unix_s
    return [
        *_iter_metric_series(record, began),
        *_iter_stage_series(record, now_unix_s),
        *_iter_phase_series(record, now_unix_s),
        *_iter_resource_series(record.samples, began),
    ]


def _iter_metric_series(record: RunRecord, began: float) -> Iterator[ExportSeries]:
    by_path: dict[str, ExportSeries] = {}
    for metric in read_metrics(record.folder, record.state.stages, 2):
        points = [
            (number if step is None else step, unix_s or began, value)
            for number, (step, unix_s, value) in enumerate(metric.points)
        ]
        series = ExportSeries("metric", metric.stage, metric.series.name, points)
        by_path.setdefault(series.path, series)  # others: the same metric in more folders of one format
    yield from by_path.values()


def _iter_stage_series(record: RunRecord, now_unix_s: float) -> Iterator[ExportSeries]:
    for stage in record.state.stages:
        at = zoned_iso_to_unix(stage.ended_at) or now_unix_s
        rules = {rule.kind_and_rule: float(rule.state == "held") for rule in stage.gate}
        values = {"passed": float(stage.state == "passed"), "seconds": stage.seconds, "attempt": float(stage.attempt)}
        for kind, rows in {"stage": values, "gate": rules}.items():
            for name, value in rows.items():
                yield ExportSeries(kind, stage.name, name, [(0, at, value)])


def _iter_phase_series(record: RunRecord, now_unix_s: float) -> Iterator[ExportSeries]:
    """Yield the seconds of each phase, one point for each time that it was entered."""
    for row in make_timeline_rows(record.state, record.events, now_unix_s):
        points_by_phase = defaultdict[str, list[tuple[int, float, float]]](list)
        for span in () if row.service else row.phases:
            points = points_by_phase[span.label]
            points.append((len(points), span.end_unix_s, span.end_unix_s - span.begin_unix_s))
        for label, points in points_by_phase.items():
            yield ExportSeries("phase", row.name, label, points)


def _iter_resource_series(samples: Sequence[ResourceSample], began: float) -> Iterator[ExportSeries]:
    """Yield resources over time; the step is the number of seconds since the run began."""
    points_by_name = defaultdict[str, list[tuple[int, float, float]]](list)
    for sample in samples:
        unix_s = zoned_iso_to_unix(sample.t) or began
        gpus = {f"gpu{g.index}/{name}": value for g in sample.gpus for name, value in dataclasses.asdict(g).items()}
        for name, value in {**vars(sample), **gpus}.items():
            if isinstance(value, (int, float)):
                points_by_name[name].append((max(0, round(unix_s - began)), unix_s, float(value)))
    for name, points in points_by_name.items():
        yield ExportSeries("resource", "", name, points)


def export_to_tensorboard(record: RunRecord, series: Sequence[ExportSeries], destination: str) -> str:
    folder = os.path.join(destination, record.state.run_id)
    with _import_extra("tensorboardX", extra="tensorboard").SummaryWriter(folder) as writer:
        for one in series:
            for step, unix_s, value in one.points:
                writer.add_scalar(one.path, value, step, walltime=unix_s)
        writer.add_text("run", "\n".join(f"- {name}: {value}" for name, value in list_run_facts(record).items()), 0)
    return folder


def export_to_mlflow(record: RunRecord, series: Sequence[ExportSeries], destination: str) -> str:
    """Create an MLflow run in the experiment `rlbox` of a tracking URI."""
    client = _import_extra("mlflow", extra="mlflow").MlflowClient(tracking_uri=destination)
    entities = import_module("mlflow.entities")
    experiment = client.get_experiment_by_name(_PROJECT)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(_PROJECT)
    facts, state = list_run_facts(record), record.state
    tags = {f"rlbox.{name}": value for name, value in facts.items() if not name.startswith(_PARAM)}
    began, ended = (int((zoned_iso_to_unix(at) or time.time()) * 1000) for at in (state.started_at, state.ended_at))
    created = client.create_run(experiment_id, began, tags, run_name=state.run_id)
    run_id: str = created.info.run_id
    metrics = [
        entities.Metric(_make_mlflow_key(one), value, int(unix_s * 1000), step)
        for one in series
        for step, unix_s, value in one.points
    ]
    for start in range(0, len(metrics), _MLFLOW_METRICS):
        client.log_batch(run_id, metrics=metrics[start : start + _MLFLOW_METRICS])
    params = [entities.Param(n[len(_PARAM) :], v[:_MLFLOW_TEXT]) for n, v in facts.items() if n.startswith(_PARAM)]
    client.log_batch(run_id, params=params[:_MLFLOW_PARAMS])
    if state.state in _MLFLOW_STATUS:
        client.set_terminated(run_id, _MLFLOW_STATUS[state.state], ended)
    return f"{destination} {run_id}"


def export_to_wandb(record: RunRecord, series: Sequence[ExportSeries], destination: str) -> str:
    """Log to W&B, or only into a folder with WANDB_MODE=offline; each group of metrics has a step of its own."""
    wandb = _import_extra("wandb", extra="wandb")
    os.makedirs(destination, exist_ok=True)
    run_id, project = record.state.run_id, os.environ.get("WANDB_PROJECT", _PROJECT)
    logged = wandb.init(project=project, name=run_id, id=run_id, dir=destination, config=list_run_facts(record))
    rows_by_group = defaultdict[str, dict[int, dict[str, float]]](lambda: defaultdict(dict))
    for one in series:
        for step, _unix_s, value in one.points:
            rows_by_group[one.group][step][one.path] = value
    for group, rows in rows_by_group.items():
        logged.define_metric(f"{group}/*", step_metric=f"{group}/step")
        for step, values in sorted(rows.items()):
            logged.log({**values, f"{group}/step": step})
    place: str = logged.url or logged.dir
    logged.finish(exit_code=0 if record.state.state == "passed" else 1)
    return place


def export_to_prometheus(record: RunRecord, series: Sequence[ExportSeries], destination: str) -> str:
    """Write the last values as a file for node-exporter's textfile collector, which reads names ending with `.prom`."""
    state, run_id = record.state, record.state.run_id
    info = {"run": run_id, "job": state.job, "target": state.target, "state": state.state}
    rows = {"run_info": [(info, 1.0)]}
    for kind, stage, name, points in series:
        rows.setdefault(kind, []).append(({"run": run_id, "stage": stage, "name": name}, points[-1][2]))
    escapes = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    lines = []
    for kind, family in rows.items():
        lines.append(f"# TYPE rlbox_{kind} gauge")
        for labels, value in family:
            texts = ",".join(f'{label}="{text.translate(escapes)}"' for label, text in labels.items())
            lines.append(f"rlbox_{kind}{{{texts}}} {value!r}")
    write_atomic(Path(destination), "\n".join([*lines, ""]))
    return destination


def _make_mlflow_key(series: ExportSeries) -> str:
    name = series.name.replace("/", "_") if series.kind == "gate" else series.name  # rules contain paths
    key = _NOT_IN_MLFLOW_KEYS.sub("_", f"{series.group}/{name}")
    return posixpath.normpath(key[:_MLFLOW_KEY])


def _import_extra(module: str, *, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        what = _("this export needs {name}, which is not installed").format(name=module)
        raise SpecError(what, where=str(error.name), next_step=f"pip install 'rlbox[{extra}]'") from error
