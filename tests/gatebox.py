"""Judge a case of the gate table: the job's own gate TOML, planned as a run plans it, fed with logs, files and facts.

A case is a table of `tests/cases/gate.toml`:

    source   where it comes from: numbers of the inventory, a log of the corpus
    expect   "pass" or "fail"; `rule` is the kind of the rule that decides a failure, `shows` part of what it says
    gate     as below `[stages.gate]` of a job
    logs     text of the stage's log (`stage`) and of services by name
    timed    lines with times: `at_s` (seconds since the command was started), `log`, `text`
    stopped  text of logs that comes when everything is being stopped
    exit     exit code of the command (0); `ray` the job's `status` and `code`
    files    below the run directory: `text` or `hex`, `old` (before the stage), `folder`, `grows` (while looked at)
    answers  to requests of `probes`, in order: `status`, `text`
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakes import CHECKOUT

from rlbox.config.project import Project
from rlbox.config.schema import validate_spec
from rlbox.config.toml_files import load_toml
from rlbox.fixes.catalogue import load_fix_catalogue
from rlbox.fixes.render import list_rules_of_benign_prefixed_fixes
from rlbox.gate.files import FilesSnapshot, check_file_rule
from rlbox.gate.gate import GateChecker
from rlbox.gate.http_probe import find_response_problem
from rlbox.gate.line_rules import RuleState
from rlbox.job.gate import MetricRule
from rlbox.job.job import Job
from rlbox.job.names import STAGE_LOG
from rlbox.job.params import resolve_params
from rlbox.job.plan import ProcessPaths, StagePlan, plan_run

CASES: dict[str, dict[str, Any]] = load_toml(CHECKOUT / "tests/cases/gate.toml")
KNOWN = list_rules_of_benign_prefixed_fixes(load_fix_catalogue(Project(folder=CHECKOUT)))
Cut = Callable[[bytes], Iterable[bytes]]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a gate passed, the rule that decided when it did not, and the states of all rules."""

    passed: bool
    kind: str
    text: str
    states: tuple[RuleState, ...]


def whole(data: bytes) -> Iterable[bytes]:
    """Feed a log at once."""
    return (data,)


def plan_case(case: dict[str, Any], run: Path) -> StagePlan:
    """Return the stage of a case, checked and planned like one of a job."""
    services = sorted({*case.get("logs", {}), *(row["log"] for row in case.get("timed", []))} - {STAGE_LOG})
    stage: dict[str, Any] = {"name": "case", "title": "t", "command": ["true"], "services": services}
    stage["gate"] = case["gate"]
    if "ray" in case:
        stage |= {"ray": {"dashboard": "http://127.0.0.1", "service": "ray", "temp_dir": "/tmp/ray"}}
        stage["services"] = [*services, "ray"]
    ready = {"url": "http://127.0.0.1"}
    parts = [{"name": name, "title": name, "command": ["x"], "ready": ready} for name in stage["services"]]
    job = {"name": "j", "title": "t", "target": "local", "services": parts, "stages": [stage]}
    spec = validate_spec(Job, job, "case")
    paths = ProcessPaths(run=str(run), job=str(run / "job"), data=str(run), python="python")
    return plan_run(spec, resolve_params(spec, "", {}), paths, run_id="r", place="here", target="local").stages[0]


def judge(case: dict[str, Any], run: Path, *, cut: Cut = whole, stage: StagePlan | None = None) -> Verdict:
    """Return the verdict on a case, its rules taken in the order in which a stage decides them."""
    stage = stage or plan_case(case, run)
    gate = GateChecker(stage, KNOWN)
    for rule in gate.outcomes.list_rules_decided_before_start():
        gate.set_held_unless_broken(rule)
    _write_files(case, run, old=True)
    before = FilesSnapshot([file.path for file in stage.files if file.newer])
    _write_files(case, run, old=False)
    _feed(case, run, gate, cut)
    if not (gate.events.forbidden or gate.events.violations):
        _tell_facts(case, stage, gate)
        gate.ignore_failures_while_stopping()
        for log, text in case.get("stopped", {}).items():
            gate.feed(log, text.encode())
        gate.close_logs_and_decide_undecided_lines()
        gate.decide_waiting_rules_except_caller_decided()
        _look_at_files(case, run, stage, gate, before)
    return _verdict(gate)


def _feed(case: dict[str, Any], run: Path, gate: GateChecker, cut: Cut) -> None:
    for row in case.get("timed", []):
        gate.fail_late_rules(row["at_s"])
        gate.feed(row["log"], row["text"].encode())
    for log, text in case.get("logs", {}).items():
        for part in cut(text.encode("utf-8", "surrogateescape")):
            gate.feed(log, part)
    for path in gate.metric_file_paths:
        file = case.get("files", {}).get(os.path.relpath(path, run))
        if file and not file.get("old"):
            for part in cut(file["text"].encode()):
                gate.feed(path, part)
    gate.close_logs_and_decide_undecided_lines()
    gate.fail_late_rules(case.get("took_s", 0.0))


def _tell_facts(case: dict[str, Any], stage: StagePlan, gate: GateChecker) -> None:
    code = case.get("exit", 0)
    if stage.ray:
        ray = case["ray"]
        code = ray["code"]
        assert gate.outcomes.ray
        gate.set_broken_if_problem_else_held(
            gate.outcomes.ray, "" if ray["status"] == "SUCCEEDED" else ray["status"], "SUCCEEDED"
        )
    gate.set_broken_if_problem_else_held(
        gate.outcomes.exit, "" if code in stage.exit_codes else f"exit code {code}", "exit code 0"
    )
    for probe, rule, answer in zip(stage.probes, gate.outcomes.probes, case.get("answers", []), strict=False):
        problem = find_response_problem(probe, answer["status"], answer["text"])
        gate.set_broken_if_problem_else_held(rule, problem, "")


def _write_files(case: dict[str, Any], run: Path, *, old: bool) -> None:
    """Write the files that were there before the stage, or those that it writes."""
    for name, file in case.get("files", {}).items():
        if file.get("old", False) != old:
            continue
        path = run / name
        if file.get("folder"):
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes.fromhex(file["hex"]) if "hex" in file else file["text"].encode())


def _look_at_files(case: dict[str, Any], run: Path, stage: StagePlan, gate: GateChecker, before: FilesSnapshot) -> None:
    names = [name for name, file in case.get("files", {}).items() if file.get("grows")]
    for file, rule in zip(stage.files, gate.outcomes.files, strict=True):
        with _Writer([run / name for name in names]):
            fact = check_file_rule(file, lambda: None, earlier=before if file.newer else None)
        gate.set_broken_if_problem_else_held(rule, fact.problem, "complete")


class _Writer:
    """Appends to files for as long as they are looked at, a second at most."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def _write(self) -> None:
        for _ in range(100):
            for path in self._paths:
                with open(path, "a") as file:
                    file.write("{}\n")
            if self._enough.wait(0.01):
                return

    def __enter__(self) -> None:
        if self._paths:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        if self._paths:
            self._thread.join()


def _verdict(gate: GateChecker) -> Verdict:
    states = gate.copy_rule_states()
    for broken in gate.events.forbidden[:1]:
        return Verdict(passed=False, kind="forbid", text=f"{broken.rule.pattern}: {broken.line.text}", states=states)
    for violation in gate.events.violations[:1]:
        kind = "metric" if isinstance(violation.rule, MetricRule) else "within" if violation.timed_out else "require"
        text = f"{violation.rule.describe()}: {violation.problem}"
        return Verdict(passed=False, kind=kind, text=text, states=states)
    order = ("ray", "exit", "probe", "require", "metric", "file")
    for kind in order:
        for state in states:
            if state.kind == kind and state.state == "broken":
                return Verdict(passed=False, kind=kind, text=f"{state.rule}: {state.seen}", states=states)
    waiting = [state.rule for state in states if state.state != "held"]
    assert not waiting, f"rules that nobody decided: {waiting}"
    return Verdict(passed=True, kind="", text="", states=states)


def fed(case: dict[str, Any], stage: StagePlan, run: Path, cut: Cut) -> tuple[object, ...]:
    """Return all that a gate tells after the logs of a case, cut in some way."""
    gate = GateChecker(stage, KNOWN)
    _feed(case, run, gate, cut)
    gate.ignore_failures_while_stopping()
    gate.decide_waiting_rules_except_caller_decided()
    last_lines = {log: gate.last_nonblank_line(log) for log in case.get("logs", {})}
    return (gate.copy_rule_states(), gate.events.forbidden, gate.events.violations, last_lines)
