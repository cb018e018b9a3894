"""The HTML report of a run: whole by itself, readable, and made from any run, however broken."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from reportbox import FATAL, Page, iso, write_run, write_wide_run

from rlbox.errors import SpecError
from rlbox.record.state import RunState, write_run_state
from rlbox.report.html import MOST_BYTES, make_timeline_rows, render_report_html, time_range_of_bars_and_run
from rlbox.report.read import load_run_record
from rlbox.secrets.masks import SecretMasker

NOW = iso(30000)
NO_MASKS = SecretMasker({})


def report(run_dir: Path, masks: SecretMasker = NO_MASKS) -> str:
    return render_report_html(load_run_record(run_dir, masks, max_points_per_series=400), made_at=NOW)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "holdem-20261120-080000-95ac"
    write_run(folder)
    return folder


@pytest.fixture(scope="module")
def page(run_dir: Path) -> Page:
    return Page(report(run_dir))


def test_it_tells_what_happened(page: Page) -> None:
    for text in (
        "holdem-20261120-080000-95ac FAILED",
        "Cause: stage smoke was stopped: its log held the forbidden line",
        f"Line: {FATAL}",
        "Where: stages/3-smoke/stage.log:421",
        "Known as: free-memory-below-utilization",
        "Next step: lower rollout_batch_size",
        "Target a800-cn",
        "Profile full",
        "Machine gpu-07",
        "Took 5 h 33 min",
        "train-only PASSED 2026-11-20 08:00:00 UTC 1 h 00 min 5/5 0 supervised fine-tuning",
        "Stage smoke was silent for 600 s in phase weight sync.",
        "rollouts 120 rollouts --set",
        "resumed without optimizer state",
        "serve vllm # vllm",
        "HF_ENDPOINT HF_HOME OMP_NUM_THREADS WANDB_API_KEY",
        "package-39==39.0",
    ):
        assert text in page.text


def test_it_loads_nothing(page: Page) -> None:
    for tag, attributes in page.tags:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            assert attributes.get(name, "#").startswith(("#", "data:,")), (tag, attributes)
        assert tag not in ("iframe", "img", "object", "embed", "base", "form")
    [policy] = [a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")


def test_nothing_that_a_log_holds_becomes_markup(run_dir: Path, page: Page) -> None:
    assert len(page.all("script")) == 1
    assert FATAL in page.text
    assert "&amp; more" in page.text
    assert "<script>alert" not in report(run_dir)


def test_it_can_be_read_without_seeing_it(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert page.all("html")[0]["lang"] == "en"
    for plot in page.all("svg"):
        assert plot.get("role") != "img" or plot["aria-label"]
    for section in page.all("section"):
        assert section["aria-labelledby"] in ids
    links = [attributes["href"][1:] for attributes in page.all("a")]
    assert set(links) <= set(ids)
    tables = len(page.all("table"))
    assert tables >= sum(1 for svg in page.all("svg") if svg.get("class") == "plot") + 4
    assert all("scope" in attributes for attributes in page.all("th"))


def test_the_plots_have_points(page: Page) -> None:
    plots = [svg for svg in page.all("svg") if svg.get("class") == "plot"]
    titles = " ".join(svg["aria-label"] for svg in plots)
    for title in (
        "loss",
        "mean_reward",
        "critic/rewards/mean",
        "tokens/s out",
        "tokens/s per GPU",
        "GPU power",
        "vllm",
    ):
        assert title in titles
    lines = [line for line in page.all("polyline") if "data-name" in line]
    assert len(lines) >= len(plots) >= 12
    for line in lines:
        places = [tuple(map(float, place.split(","))) for place in line["points"].split()]
        assert len(places) <= 600
        assert all(0 <= x <= 640 and 0 <= y <= 220 for x, y in places)
        assert [x for x, _ in places] == sorted(x for x, _ in places)


def test_the_fatal_line_is_marked(page: Page) -> None:
    assert [a for a in page.all("span") if a.get("class") == "fatal"]


def test_secrets_are_masked(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    state = write_run(folder, samples=5, steps=5)
    secret = "wandb-0123456789abcdef"
    cause = dataclasses.replace(state.stages[2].cause, line=f"bad key {secret}")  # type: ignore[type-var]
    stages = (*state.stages[:2], dataclasses.replace(state.stages[2], cause=cause))
    write_run_state(folder, dataclasses.replace(state, stages=stages), NO_MASKS)
    for name in ("first_fatal.txt", "HANG.md"):
        path = folder / "stages/3-smoke/evidence" / name
        path.write_text(path.read_text() + f"\n{secret}\n")
    plan = json.loads((folder / "plan.json").read_text()) | {"params": {"key": secret}}
    (folder / "plan.json").write_text(json.dumps(plan))
    assert secret in report(folder)
    assert secret not in report(folder, masks=SecretMasker({"RLBOX_SECRETS": "WANDB_API_KEY", "WANDB_API_KEY": secret}))


OTHER = b"""{"stages": 3, "params": [], "origins": 1, "units": "x", "env": [1], "secrets": 7, "notes": {"a": 1},
 "packages": 3, "environment": 9, "host": [], "groups": 4}"""
FILES = (
    "plan.json",
    "events.jsonl",
    "resources.jsonl",
    "metrics.jsonl",
    "stages/3-smoke/evidence/facts.json",
    "stages",
)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", ["missing", "torn", "other"])
def test_a_broken_run_is_told_as_far_as_it_goes(tmp_path: Path, name: str, harm: str) -> None:
    folder = tmp_path / "run"
    write_run(folder, samples=10, steps=10)
    path = folder / name
    if path.is_dir():
        shutil.rmtree(path)
    elif harm == "missing":
        path.unlink()
    elif harm == "torn":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        path.write_bytes(
            OTHER if name.endswith(".json") else b'[]\n{"t": 3}\n\xff\x00{"stage": {"a": []}, "t": null}\n'
        )
    page = Page(report(folder))
    assert "holdem" in page.text
    if name == "plan.json" and harm == "missing":
        assert "plan.json: missing" in page.text


def test_a_torn_state_is_made_from_the_events(tmp_path: Path) -> None:
    from rlbox.job.plan import ProcessPaths, RunPlan

    folder = tmp_path / "run"
    write_run(folder, samples=2, steps=2)
    plan = RunPlan(
        run_id="run", job="j", target="t", place="here", profile="", params={}, env={}, stages=(),
        paths=ProcessPaths(run="r", job="j", data="d", python="p"),
    )  # fmt: skip
    (folder / "plan.json").write_text(json.dumps(plan.as_json()))
    (folder / "run.json").write_bytes(b'{"schema": 1, "run_id"')
    assert "run.json: run.json cannot be read" in Page(report(folder)).text
    (folder / "plan.json").unlink()
    with pytest.raises(SpecError, match="cannot be read"):
        report(folder)


def test_an_empty_folder_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="holds no run"):
        report(tmp_path)


def test_a_run_that_goes_on_is_a_snapshot(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    state = write_run(folder, samples=5, steps=5)
    going = dataclasses.replace(state.stages[2], state="running", ended_at="", exit_code=None, cause=None)
    state = dataclasses.replace(state, state="running", ended_at="", exit_code=None, stages=(*state.stages[:2], going))
    write_run_state(folder, state, NO_MASKS)
    text = Page(report(folder)).text
    assert "The run is still in progress" in text
    assert "smoke RUNNING 2026-11-20 09:30:00 UTC 6 h 50 min" in text


@pytest.mark.parametrize("stages", [1, 60, 120])
def test_many_stages_are_still_usable(tmp_path: Path, stages: int) -> None:
    folder = tmp_path / "wide"
    write_wide_run(folder, stages)
    html = report(folder)
    assert len(html.encode()) < MOST_BYTES
    page = Page(html)
    assert f"evaluate-{stages - 1:04d}" in page.text
    assert any(a.get("type") == "search" for a in page.all("input")) == (stages > 12)


def events(*rows: tuple[float, str, str]) -> list[dict[str, str]]:
    kinds = {"stage": "state", "phase": "phase"}
    return [{"t": iso(at), "stage": "smoke", "event": kind, kinds[kind]: value} for at, kind, value in rows]


def smoke_alone(tmp_path: Path) -> RunState:
    state = write_run(tmp_path / "run", samples=1, steps=1)
    return dataclasses.replace(state, stages=state.stages[2:])


def test_attempts_and_phases_have_bars(tmp_path: Path) -> None:
    state = smoke_alone(tmp_path)
    rows = make_timeline_rows(
        state,
        events(
            (0, "stage", "starting"), (10, "phase", "load"), (30, "phase", "train"), (50, "stage", "failed"),
            (100, "stage", "starting"), (110, "stage", "running"), (120, "phase", "train"), (130, "phase", "train"),
            (150, "phase", ""), (200, "stage", "failed"),
        ),
        1e10,
    )  # fmt: skip
    began = make_timeline_rows(state, events((0, "stage", "starting")), 0)[0].bars[0].begin_unix_s
    assert [
        (bar.begin_unix_s - began, bar.end_unix_s - began, bar.state_or_phase, bar.attempt) for bar in rows[0].bars
    ] == [
        (0, 50, "failed", 1),
        (100, 200, "failed", 2),
    ]
    assert [(bar.label, bar.begin_unix_s - began, bar.end_unix_s - began) for bar in rows[0].phases] == [
        ("load", 10, 30),
        ("train", 30, 50),
        ("train", 120, 150),
    ]
    assert [row.name for row in rows if row.service] == ["reward", "vllm", "ray"]
    assert time_range_of_bars_and_run(rows, None, None) == (began, rows[1].bars[0].end_unix_s)


def test_a_run_without_events_has_the_times_of_its_state(tmp_path: Path) -> None:
    [stage, *services] = make_timeline_rows(smoke_alone(tmp_path), [], 1e10)
    assert stage.total_bar_seconds == 20000 - 5400
    assert all(service.bars for service in services)
    assert time_range_of_bars_and_run([], None, None) == (0.0, 1.0)
