"""Why a stage failed that broke a rule of its gate, in one sentence."""

from __future__ import annotations

from rlbox.diagnose.cause import Cause, CauseKind, describe_exit, get_stage_log_path, resolve_log_path
from rlbox.gate.rules import Violation, format_probe
from rlbox.job.gate_plan import FilePlan, LinePlan, ProbePlan
from rlbox.job.names import FileCheck
from rlbox.job.plan import StagePlan


def explain_broken_rule(stage: StagePlan, breach: Violation) -> Cause:
    why = f" ({breach.why})" if breach.why else ""
    kind: CauseKind = "within" if breach.late else "metric" if breach.kind == "metric" else "require"
    where = resolve_log_path(stage, breach.log)
    what = f"the rule /{breach.rule}/{why} is broken: {breach.problem}"
    if breach.kind == "metric":
        what = f"metric {breach.problem}{why}; the rule is {breach.rule}"
    return Cause(
        kind=kind,
        what=f"stage {stage.name}: {what}",
        where=f"{where}:{breach.line.number}" if breach.line else where,
        line=breach.line.text if breach.line else "",
    )


def explain_failed_probe(stage: StagePlan, probe: ProbePlan, answer: str) -> Cause:
    why = f" ({probe.why})" if probe.why else ""
    return Cause(
        kind="probe",
        what=f"stage {stage.name} ended well, but {format_probe(probe)}{why} was not answered as told: {answer}",
        next_step="send the same request by hand while the service runs, and read its log",
    )


def explain_failed_exit(stage: StagePlan, code: int) -> Cause:
    return Cause(
        kind="exit", what=f"stage {stage.name} ended with {describe_exit(code)}", where=get_stage_log_path(stage)
    )


def explain_wrong_exit(stage: StagePlan, code: int) -> Cause:
    """The command ended with a code that is not among the good ones, none of which is the usual 0 alone."""
    good = " or ".join(str(number) for number in stage.exit_codes)
    return Cause(
        kind="exit",
        what=f"stage {stage.name} ended with {describe_exit(code)}, not with exit code {good}",
        where=get_stage_log_path(stage),
    )


def explain_needed_file(stage: StagePlan, need: FilePlan, fact: FileCheck) -> Cause:
    """A file that an earlier stage should have left whole is not."""
    why = f" ({need.why})" if need.why else ""
    return Cause(
        kind="need",
        what=f"stage {stage.name} needs {need.path}{why}: {fact.problem}",
        where=need.path,
        next_step="run again from the stage that writes it",
    )


def explain_forbidden_line(stage: StagePlan, rule: LinePlan, number: int, line: str) -> Cause:
    why = f" ({rule.why})" if rule.why else ""
    return Cause(
        kind="forbid",
        what=f"stage {stage.name} was stopped: its log held the forbidden line /{rule.pattern}/{why}",
        where=f"{resolve_log_path(stage, rule.log)}:{number}",
        line=line,
    )


def explain_missing_line(stage: StagePlan, rule: LinePlan, count: int, last: str) -> Cause:
    """The stage exited 0, but a line that proves its work never came."""
    often = "never" if count == 0 else f"only {count} times, not {rule.count},"
    seen = f"; its last line was: {last}" if last else "; it is empty"
    why = f" ({rule.why})" if rule.why else ""
    return Cause(
        kind="require",
        what=f"stage {stage.name} exited 0, but {resolve_log_path(stage, rule.log)} {often} held a line like "
        f"/{rule.pattern}/{why}{seen}",
        where=resolve_log_path(stage, rule.log),
        next_step="read its end: the log says how far the work came before it ended as if all were well",
    )


def explain_missing_file(stage: StagePlan, file: FilePlan, fact: FileCheck) -> Cause:
    why = f" ({file.why})" if file.why else ""
    return Cause(
        kind="file", what=f"stage {stage.name} exited 0, but {file.path}{why}: {fact.problem}", where=file.path
    )
