"""Gates of real runs: what stops a stage at once, what only its end shows, and that both say why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from supervised import SERVER, Bench, file_rule, free_port, python, service

from rlbox.job.gate import FinalProbe, MetricRule, RequireRule

WAIT = "import time; time.sleep(60)"
ANSWER = b'{"ok": "fine"}'


def rules(bench: Bench, kind: str) -> list[tuple[str, str]]:
    return [(rule.state, rule.seen) for rule in bench.last("train").gate if rule.kind == kind]


def test_a_line_that_does_not_come_in_time_stops_the_stage(bench: Bench) -> None:
    rule = RequireRule(pattern="ready", log="stage", count=1, why="the model is loaded", within_s=0.5)
    bench.stage("train", python(f"print('loading', flush=True); {WAIT}"), require=(rule,))
    assert bench.run() == 7
    cause = bench.cause()
    assert cause.kind == "within"
    assert "no such line within 0.5 s" in cause.what
    assert "the model is loaded" in cause.what
    assert rules(bench, "require") == [("broken", "no such line within 0.5 s")]


def test_nan_in_a_log_stops_the_stage(bench: Bench) -> None:
    metric = MetricRule(name="loss", pattern=r"loss (?P<value>\S+)")
    bench.stage("train", python(f"print('loss 2.5\\nloss nan', flush=True); {WAIT}"), metrics=(metric,))
    assert bench.run() == 1
    assert bench.cause().what == "stage train: metric loss is nan at step 2; the rule is loss: finite"
    assert bench.cause().where == "stages/1-train/stage.log:2"


def test_metrics_of_earlier_stages_do_not_count(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "loss": 3.0}\n{"step": 2, "loss": 2.0}\n')
    metric = MetricRule(name="loss", key="loss", file=str(file), trend="falls", within_steps=10)
    rows = "".join(json.dumps({"step": step, "loss": 2.0}) + "\n" for step in (3, 4, 5))
    bench.stage("train", python(f"open({str(file)!r}, 'a').write({rows!r})"), metrics=(metric,))
    assert bench.run() == 1
    assert "loss did not fall in the first 10 steps: 2 at first, 2 at last" in bench.cause().what
    assert [rule.count for rule in bench.last("train").gate if rule.kind == "metric"] == [3]


def test_files_of_a_stage_that_is_attempted_again_must_be_new(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("x")
    bench.stage("wait", python("import time; time.sleep(0.2)"))
    bench.stage("train", python("pass"), files=(file_rule(tmp_path / "old"),), attempt=2)
    assert bench.run() == 1
    assert "is as it was before the stage" in bench.cause().what


@pytest.mark.parametrize(
    ("answer", "fields", "problem"),
    [
        (ANSWER, {"json_path": "ok", "equals": "fine"}, ""),
        (ANSWER, {"contains": "generations"}, "HTTP 200 without 'generations'"),
        (b'{"error": "no model"}', {}, 'HTTP 200 with an error: "no model"'),
    ],
)
def test_probes_while_the_services_run(bench: Bench, answer: bytes, fields: dict[str, str], problem: str) -> None:
    port = free_port()
    server = python(SERVER.replace(repr(ANSWER), repr(answer)), str(port))
    probe = FinalProbe(url=f"http://127.0.0.1:{port}/generate", within_s=3.0 if problem else 30.0, **fields)  # type: ignore[arg-type]
    work = service("server", port, server, contains="")
    if b"error" in answer:  # such a service is not ready at all
        bench.stage("train", python("pass"), services=(service("server", port, server, contains="", start_s=6.0),))
        assert bench.run() == 7
        assert problem in bench.cause().what
        return
    bench.stage("train", python("pass"), services=(work,), probes=(probe,))
    assert bench.run() == (1 if problem else 0)
    assert [state for state, _ in rules(bench, "probe")] == ["broken" if problem else "held"]
    assert not problem or problem in bench.cause().what
