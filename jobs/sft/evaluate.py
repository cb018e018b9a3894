"""Judge checkpoints one after the other: problems of a tier by vLLM, through the code sandbox.

The last checkpoint gets the final tier, as does the model before training; the others get the first one. One that fails
does not stop the rest. What an interrupted evaluation answered is kept and not asked again. The evaluation is rlbox's
own (`rlbox eval`), run by its interpreter: what is here is which checkpoints, which suites, which server.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlbox.evaluation.comparison import format_scores_by_checkpoint
from rlbox.evaluation.evaluate import CheckpointEvaluator, EvaluationTask, print_sanitized_line
from rlbox.evaluation.export import HfExport
from rlbox.evaluation.files import HISTORY_FILE, read_results_sorted_by_step
from rlbox.evaluation.model_server import (
    InferenceEngineOptions,
    MultiServerModelClient,
    ServeExport,
    ServerCommand,
    choose_gpus_and_build_serve_function,
    describe_own_engine_settings_and_env,
    serve_model,
)
from rlbox.evaluation.sandbox_client import SandboxClient
from rlbox.evaluation.suites import ProblemDirectories, SuiteOrProblemError, SuiteProblems, load_suites_with_problems
from rlbox.system.http import NoFullResponseError, create_loopback_client
from sft import eval_config
from sft.checkpoints import find_checkpoints, one_checkpoint, what_is_missing

SILENT_S = 1800.0
Sets = dict[str, SuiteProblems]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """An export that is to be judged on a tier; `missing` says what it lacks, or nothing."""

    export: HfExport
    tier: int
    missing: str


def options(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="sft.evaluate", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--checkpoints", type=Path, help="folder of global_step_*: all of them")
    which.add_argument("--checkpoint", type=Path, help="one global_step_N")
    parser.add_argument("--base", default="", help="folder of the model before training: judged, too, as the baseline")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--raw", type=Path, required=True, help="folder of the raw problem sets")
    parser.add_argument("--manifests", type=Path, required=True, help="folder of the manifests")
    parser.add_argument("--sandbox-url", required=True, help="for example http://127.0.0.1:28080")
    parser.add_argument("--tier", type=int, choices=eval_config.TIERS, default=1)
    parser.add_argument("--final-tier", type=int, choices=eval_config.TIERS, default=3, help="of the last checkpoint")
    parser.add_argument("--vllm-url", default="", help="a server that is up already; nothing is started")
    parser.add_argument("--only", default="", help="steps to judge, 100,378; empty: all")
    parser.add_argument("--engine", choices=("vllm", "hf"), default="vllm")
    parser.add_argument("--python", default="python3", help="interpreter of the engine")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--gpu-memory", type=float, default=0.85)
    parser.add_argument("--max-model-len", type=int, default=6144)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--remote-code", type=_yes, default=False, help="carry out Python code of the export")
    parser.add_argument("--start-s", type=float, default=1800.0, help="limit for the server to come up")
    parser.add_argument("--concurrency", type=int, default=32, help="answers asked of each server at a time")
    parser.add_argument("--servers", type=int, default=1, help="vLLMs that share the work; 0: as GPUs are free")
    parser.add_argument("--any-size", type=_yes, default=False, help="take sets of another size than the suite names")
    return parser.parse_args(words)


def _yes(text: str) -> bool:
    return text.lower() in ("true", "yes", "1")


def main() -> None:
    """Judge every checkpoint and print the comparison."""
    args = options()
    try:
        found = wanted(args)
        sets = load(args, max(one.tier for one in found))
        sandbox = SandboxClient(args.sandbox_url, create_loopback_client(3600.0))
        sandbox.probe_strength_and_versions()
    except NoFullResponseError as error:
        sys.exit(f"sft.evaluate: error: {error}; training does not need the code sandbox, the evaluation does")
    except ValueError as error:
        sys.exit(f"sft.evaluate: error: {error}")
    settings = engine_settings(args)
    evaluator = CheckpointEvaluator(
        sandbox=sandbox,
        serve_export=serve(args, settings),
        engine_for_lock=describe_own_engine_settings_and_env(args.vllm_url, settings),
        out_dir=args.out,
        concurrency_per_server=args.concurrency,
    )
    failed = _judge(evaluator, found, sets, args)
    print(format_scores_by_checkpoint(read_results_sorted_by_step(args.out)), flush=True)
    if failed:
        sys.exit("\n".join(f"sft.evaluate: error: {line}" for line in failed))
    print(f"[evaluate] passed: {len(found)} checkpoints in {args.out / HISTORY_FILE}", flush=True)


def wanted(args: argparse.Namespace) -> list[Wanted]:
    """Return what is to be judged, the model before training first; `ValueError` where there is none."""
    found = [one_checkpoint(args.checkpoint)] if args.checkpoint else find_checkpoints(args.checkpoints)
    if not found:
        raise ValueError(f"no global_step_* in {args.checkpoints}")
    tiers = {checkpoint.step: args.tier for checkpoint in found}
    if args.checkpoints:
        tiers[found[-1].step] = args.final_tier
    only = [int(step) for step in args.only.split(",") if step]
    if missing := [step for step in only if step not in tiers]:
        raise ValueError(f"no global_step_{missing[0]} in {args.checkpoints}")
    rows = [
        Wanted(
            export=HfExport(path=one.export, name=f"step_{one.step}", step=one.step),
            tier=tiers[one.step],
            missing=one.missing,
        )
        for one in found
        if not only or one.step in only
    ]
    if args.vllm_url and len(rows) + bool(args.base) > 1:
        raise ValueError(f"{args.vllm_url} serves one model: say with --only which checkpoint it is")
    if not args.base:
        return rows
    base = HfExport(path=Path(args.base), name=eval_config.BASE, step=-1)
    return [Wanted(export=base, tier=args.final_tier, missing=what_is_missing(base.path)), *rows]


def load(args: argparse.Namespace, tier: int) -> Sets:
    """Return the suites of a tier with their problems; `ValueError` where one is missing, or has no room to answer."""
    names = eval_config.TIERS[tier]
    sources = ProblemDirectories(args.raw, problem_id_list_directory=args.manifests, allow_any_count=args.any_size)
    found = load_suites_with_problems(names, sources)
    longest = max(suite.decoding.max_tokens for suite, _ in found)
    if args.max_model_len < longest:
        raise SuiteOrProblemError(f"--max-model-len {args.max_model_len} has no room for {longest} new tokens")
    return {row.suite.name: row for row in found}


def engine_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return what the server is started with, as it stands in the lock."""
    if args.engine == "hf":
        return {"engine": "transformers"}
    return {
        "tensor_parallel_size": args.tensor_parallel,
        "gpu_memory_utilization": args.gpu_memory,
        "max_model_len": args.max_model_len,
        "dtype": args.dtype,
        "trust_remote_code": args.remote_code,
    }


def serve(args: argparse.Namespace, settings: dict[str, Any]) -> ServeExport:
    """Return what serves exports: vLLM, the server that is named, or the job's own small one over transformers."""
    http = create_loopback_client(SILENT_S)
    if args.engine == "vllm" or args.vllm_url:
        where = {"url": args.vllm_url, "python": args.python, "port": args.port, "servers": args.servers}
        engine = InferenceEngineOptions(settings=settings, start_timeout_s=args.start_s, **where)
        return choose_gpus_and_build_serve_function(engine, http, print_sanitized_line)

    def small(export: Path, folder: Path) -> contextlib.AbstractContextManager[MultiServerModelClient]:
        argv = (args.python, "-m", "sft.hf_server", "--model", str(export), "--port", str(args.port))
        engine = ServerCommand(argv=argv, url=f"http://127.0.0.1:{args.port}", start_timeout_s=args.start_s)
        return serve_model([engine], folder, http)

    return small


def _judge(evaluator: CheckpointEvaluator, found: list[Wanted], sets: Sets, args: argparse.Namespace) -> list[str]:
    """Judge all that is whole; return what went wrong."""
    failed = [f"{one.export.name}: incomplete checkpoint: {one.missing}" for one in found if one.missing]
    outcome = evaluator.evaluate_and_write_all([_make_task(one, sets, args) for one in found if not one.missing])
    return [*failed, *(f"{name}: {error}" for name, error in outcome.error_by_export.items())]


def _make_task(one: Wanted, sets: Sets, args: argparse.Namespace) -> EvaluationTask:
    facts = {"tier": one.tier, "expected_at_most_s": 2 * 60 * eval_config.MINUTES[one.tier]}
    facts |= {"engine": args.vllm_url or args.engine, "sandbox": args.sandbox_url}
    return EvaluationTask(
        export=one.export, suites=[sets[name] for name in eval_config.TIERS[one.tier]], extra_run_info=facts
    )


if __name__ == "__main__":
    main()
