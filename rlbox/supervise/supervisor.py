"""Carry out a whole run: its stages in order up to the first that fails."""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from rlbox.amounts import utc_now
from rlbox.diagnose.cause import Cause, get_run_exit_code
from rlbox.doctor.fix_checks import ENGINE_PERCENT_VARIABLE, INSTALL_DIR_VARIABLE, run_fix_checks_retrying_failed
from rlbox.errors import MachineError
from rlbox.job.plan import RunPlan, StagePlan
from rlbox.record.journal import Event, Journal
from rlbox.record.run_dir import PLAN_FILE, write_run_plan
from rlbox.record.state import RunStatus, StageStatus, archive_rerun_stages_and_build_state
from rlbox.secrets.handover import SecretGrants
from rlbox.secrets.masks import SecretMasker
from rlbox.supervise.causes import explain_failed_fix, explain_supervisor_bug
from rlbox.supervise.evidence import StageFailure
from rlbox.supervise.sampler import ResourceSampler
from rlbox.supervise.stage import run_stage, stop_retained_services
from rlbox.supervise.stage_context import NodeConnectionMonitor, StageContext
from rlbox.system.libc import set_child_subreaper
from rlbox.system.run_processes import RunProcesses, StopSignal
from rlbox.system.safe_files import replace_file

BUG_FILE = "supervisor-error.log"
_GPU_SHARE = re.compile(
    r"(?:gpu[-_]memory(?:[-_]utilization)?|mem[-_]fraction[-_]static)[= ](1(?:\.0+)?|0?\.\d+)(?![\w.])"
)
_ENGINE = re.compile(r"(?<![\w])(?:vllm|sglang)(?![\w/-])")
_DEFAULT_GPU_PERCENT = 90
"""Percent that vLLM and SGLang take of a GPU where nothing is said. Source: their `--help`."""


def supervise_run(
    plan: RunPlan,
    run_dir: Path,
    *,
    interrupt: StopSignal,
    masks: SecretMasker,
    grants: SecretGrants,
    on_event: Callable[[Event], None],
) -> int:
    """Carry out `plan` in `run_dir` and return the exit code: 0, 1, 3, 5, 7 or 130.

    `on_event` is called with every event after it was written.
    """
    set_child_subreaper()
    journal = Journal(run_dir, archive_rerun_stages_and_build_state(run_dir, plan, os.getpid()), masks, on_event)
    processes = RunProcesses(run_dir, interrupt)
    sampler = ResourceSampler(run_dir, processes.reap_orphans_and_list_pids_by_part, lambda: journal.state)
    context = StageContext(
        plan=plan,
        run_dir=run_dir,
        journal=journal,
        processes=processes,
        interrupt=interrupt,
        grants=grants,
        nodes=NodeConnectionMonitor(plan.run_id, plan.cluster),
        sampler=sampler,
    )
    journal.update_and_log_run("run", state="running", attempt=plan.attempt)
    cause = _carry_out_stages_and_end_all(context)
    context.nodes.close()
    sampler.append_sample()
    _write_end(context, cause)
    return get_run_exit_code(cause) if journal.saved else MachineError.exit_code


def _write_end(context: StageContext, cause: Cause | None) -> None:
    """Write down how the run ended; the cause is the run's own where no stage has it."""
    journal, run_dir = context.journal, context.run_dir
    with contextlib.suppress(OSError):  # somebody removed the directory meanwhile: the end is written in any case
        if not (run_dir / PLAN_FILE).exists():
            run_dir.mkdir(parents=True, exist_ok=True)
            write_run_plan(run_dir, context.plan)
    journal.free_reserved_space_and_save_state()
    own = {} if cause is None or any(stage.cause for stage in journal.state.stages) else {"cause": cause}
    state: RunStatus = "passed"
    if cause:
        state = "interrupted" if cause.kind == "interrupted" else "failed"
    journal.update_and_log_run("run", state=state, ended_at=utc_now(), exit_code=get_run_exit_code(cause), **own)


def _carry_out_stages_and_end_all(context: StageContext) -> Cause | None:
    try:
        return _carry_out_stages(context)
    except Exception as error:
        traceback_file = ""
        with contextlib.suppress(OSError):
            text = context.journal.masks.mask_text(traceback.format_exc())
            replace_file(context.run_dir / BUG_FILE, text.encode("utf-8", "replace"))
            traceback_file = BUG_FILE
        cause = explain_supervisor_bug(error, traceback_file)
        _end_stages(context, cause)
        return cause
    finally:
        context.processes.stop_all_and_list_survivors()
        stop_retained_services(context)


def _carry_out_stages(context: StageContext) -> Cause | None:
    waiting = [stage.name for stage in context.journal.state.stages if stage.state == "waiting"]
    if absent := _check_fixes(context) if waiting else None:
        context.journal.update_stage_and_log_state_change(waiting[0], state="failed", ended_at=utc_now(), cause=absent)
        _end_stages(context, absent)
        return absent
    for stage in [stage for stage in context.plan.stages if stage.name in waiting]:
        cause = context.create_stop_cause() if context.interrupt.name else _carry_out_stage(context, stage)
        if cause:
            _end_stages(context, cause)
            return cause
    return None


def _check_fixes(context: StageContext) -> Cause | None:
    if context.plan.runs_without_container and INSTALL_DIR_VARIABLE not in os.environ:
        return None
    environ = {**os.environ, ENGINE_PERCENT_VARIABLE: str(estimate_inference_gpu_memory_percent_or_0(context.plan))}
    errors = [finding for finding in run_fix_checks_retrying_failed("run", environ=environ) if finding.level == "error"]
    if not errors:
        return None
    first = errors[0]
    doctor = f"doctor {context.plan.target}" + (" --place here" if context.plan.runs_without_container else "")
    return explain_failed_fix(first.id, first.seen or first.title, first.remedy, len(errors) - 1, doctor)


def estimate_inference_gpu_memory_percent_or_0(plan: RunPlan) -> int:
    """Return the largest share in percent, 0 for a run without an inference engine."""
    commands = [argv for stage in plan.stages for argv in (stage.argv, *(one.argv for one in stage.services))]
    text = "\n".join(" ".join(argv) for argv in commands)
    shares = [float(found) for found in _GPU_SHARE.findall(text)]
    if shares:
        return math.ceil(max(shares) * 100)
    return _DEFAULT_GPU_PERCENT if _ENGINE.search(text) else 0


def _carry_out_stage(context: StageContext, stage: StagePlan) -> Cause | None:
    begun = time.monotonic()
    failure = run_stage(context, stage)
    took = round(time.monotonic() - begun, 3)
    if failure is None:
        context.journal.update_stage_and_log_state_change(stage.name, state="passed", ended_at=utc_now(), seconds=took)
        return None
    state: StageStatus = "interrupted" if failure.cause.kind == "interrupted" else "failed"
    cause = failure.cause if state == "interrupted" else _write_evidence_and_find_cause(context, failure)
    context.journal.update_stage_and_log_state_change(
        stage.name, state=state, ended_at=failure.ended_at, cause=cause, seconds=took
    )
    return cause


def _write_evidence_and_find_cause(context: StageContext, failure: StageFailure) -> Cause:
    from rlbox.supervise.failure_report import analyze_failure_logs, write_evidence_report_and_manifest

    cause = failure.cause
    try:
        explained = analyze_failure_logs(failure)
        cause = explained.cause
        write_evidence_report_and_manifest(failure, explained)
    except Exception as error:  # evidence is worth having, but never worth losing the cause
        why = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        context.journal.record_event(failure.stage.name, "evidence-failed", why=why)
    return cause


def _end_stages(context: StageContext, cause: Cause) -> None:
    for state in context.journal.state.stages:
        if state.state == "waiting":
            context.journal.update_stage_and_log_state_change(state.name, state="not started")
        elif state.state in ("starting", "running"):
            context.journal.update_stage_and_log_state_change(
                state.name, state="failed", ended_at=utc_now(), cause=cause
            )
