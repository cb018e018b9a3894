"""Why a stage failed that broke a rule of its gate, in one sentence."""

from __future__ import annotations

from rlbox.causes.cause import Cause, CauseKind, ended, log_path, stage_log
from rlbox.gate.rules import Breach, probe_text
from rlbox.job.gate_plan import ProbePlan
from rlbox.job.plan import StagePlan


def broken_rule(stage: StagePlan, breach: Breach) -> Cause:
    """A rule on lines or numbers can no longer hold."""
    why = f" ({breach.why})" if breach.why else ""
    kind: CauseKind = "within" if breach.late else "metric" if breach.kind == "metric" else "require"
    where = log_path(stage, breach.log)
    what = f"the rule /{breach.rule}/{why} is broken: {breach.problem}"
    if breach.kind == "metric":
        what = f"metric {breach.problem}{why}; the rule is {breach.rule}"
    return Cause(
        kind=kind,
        what=f"stage {stage.name}: {what}",
        where=f"{where}:{breach.line.number}" if breach.line else where,
        line=breach.line.text if breach.line else "",
    )


def failed_probe(stage: StagePlan, probe: ProbePlan, answer: str) -> Cause:
    """A request at the end of a stage was not answered as told."""
    why = f" ({probe.why})" if probe.why else ""
    return Cause(
        kind="probe",
        what=f"stage {stage.name} ended well, but {probe_text(probe)}{why} was not answered as told: {answer}",
        next_step="send the same request by hand while the service runs, and read its log",
    )


def wrong_exit(stage: StagePlan, code: int) -> Cause:
    """The command ended with a code that is not among the good ones, none of which is the usual 0 alone."""
    good = " or ".join(str(number) for number in stage.exit_codes)
    return Cause(
        kind="exit",
        what=f"stage {stage.name} ended with {ended(code)}, not with exit code {good}",
        where=stage_log(stage),
    )
