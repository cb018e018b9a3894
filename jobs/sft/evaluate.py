"""Judge checkpoints: vLLM up, problems of a tier through the code sandbox, vLLM down, one after the other (P182, P183).

The last checkpoint gets the final tier, those before it the first one. A checkpoint that fails does not stop the rest.
What an interrupted evaluation finished is kept and not asked for again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sft import eval_config, results
from sft.checkpoints import Checkpoint, find_checkpoints, one_checkpoint
from sft.judge import Sandbox, judge
from sft.policy import Policy, PolicyError
from sft.problems import Problem, ProblemError, load_set
from sft.server import Engine, ServerError, serve, served_model

QA_LOGS = 20  # answers of each set that are kept to be read
BAR_S = 10.0  # how often it is told how far a set is


def options(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="sft.evaluate", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--checkpoints", type=Path, help="folder of global_step_*: all of them")
    which.add_argument("--checkpoint", type=Path, help="one global_step_N")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--raw", type=Path, required=True, help="folder of the raw problem sets")
    parser.add_argument("--manifests", type=Path, required=True, help="folder of the manifests")
    parser.add_argument("--sandbox-url", required=True, help="for example http://127.0.0.1:28080")
    parser.add_argument("--tier", type=int, choices=eval_config.TIERS, default=1)
    parser.add_argument("--final-tier", type=int, choices=eval_config.TIERS, default=3, help="of the last checkpoint")
    parser.add_argument("--vllm-url", default="", help="a server that is up already; nothing is started (P184)")
    parser.add_argument("--only", default="", help="steps to judge, 100,378; empty: all")
    parser.add_argument("--engine", choices=("vllm", "hf"), default="vllm")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--gpu-memory", type=float, default=0.85)
    parser.add_argument("--max-model-len", type=int, default=6144)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--start-s", type=float, default=1800.0, help="limit for the server to come up")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--any-size", type=_yes, default=False, help="take sets of another size than the seed's")
    return parser.parse_args(words)


def _yes(text: str) -> bool:
    return text.lower() in ("true", "yes", "1")


def main() -> None:
    """Judge every checkpoint and print the comparison."""
    args = options()
    sandbox = Sandbox(args.sandbox_url)
    if problem := sandbox.check():
        sys.exit(f"sft.evaluate: error: {problem}; training does not need it, the evaluation does (P163)")
    found = [one_checkpoint(args.checkpoint)] if args.checkpoint else find_checkpoints(args.checkpoints)
    if not found:
        sys.exit(f"sft.evaluate: error: no global_step_* in {args.checkpoints}")
    tiers = {checkpoint.step: args.tier for checkpoint in found}
    if args.checkpoints:
        tiers[found[-1].step] = args.final_tier
    only = [int(step) for step in args.only.split(",") if step]
    if missing := [step for step in only if step not in tiers]:
        sys.exit(f"sft.evaluate: error: no global_step_{missing[0]} in {args.checkpoints}")
    found = [checkpoint for checkpoint in found if not only or checkpoint.step in only]
    sets = _load(args, max(tiers[checkpoint.step] for checkpoint in found))
    failed = [
        f"step {checkpoint.step}: {problem}"
        for checkpoint in found
        if (problem := _judge_checkpoint(checkpoint, tiers[checkpoint.step], sets, sandbox, args))
    ]
    print(results.table(results.read_history(args.out)), flush=True)
    if failed:
        sys.exit("\n".join(f"sft.evaluate: error: {line}" for line in failed))
    print(f"[evaluate] passed: {len(found)} checkpoints in {args.out / results.HISTORY}", flush=True)


def _load(args: argparse.Namespace, tier: int) -> dict[str, list[Problem]]:
    try:
        names = eval_config.TIERS[tier]
        return {name: load_set(name, args.raw, args.manifests, any_size=args.any_size) for name in names}
    except ProblemError as error:
        sys.exit(f"sft.evaluate: error: {error}")


def _judge_checkpoint(
    checkpoint: Checkpoint, tier: int, sets: dict[str, list[Problem]], sandbox: Sandbox, args: argparse.Namespace
) -> str:
    """Judge one checkpoint; return what went wrong, or nothing."""
    if checkpoint.missing:
        return f"incomplete checkpoint: {checkpoint.missing}"
    folder = args.out / f"step_{checkpoint.step}"
    began, stamp = time.monotonic(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    names = eval_config.TIERS[tier]
    print(
        f"[evaluate] step {checkpoint.step}: tier {tier}, {sum(len(sets[name]) for name in names)} problems", flush=True
    )
    try:
        with _server(checkpoint, args, folder) as url:
            policy = Policy(url, served_model(url))
            scores = {name: _judge_set(name, sets[name], policy, sandbox, folder, checkpoint, args) for name in names}
    except (ServerError, PolicyError) as error:
        return str(error)
    if broken := [name for name in names if scores[name]["outcomes"].get("sandbox")]:
        return f"the code sandbox failed while {', '.join(broken)} ran: these problems have no score; run it again"
    facts = {"step": checkpoint.step, "tier": tier, "config": eval_config.digest(), "scores": scores}
    _write(folder, facts, args, checkpoint, stamp, time.monotonic() - began)
    results.append_history(args.out, facts | {"began": stamp})
    return ""


@contextlib.contextmanager
def _server(checkpoint: Checkpoint, args: argparse.Namespace, folder: Path) -> Iterator[str]:
    if args.vllm_url:
        yield args.vllm_url
        return
    engine = Engine(
        kind=args.engine,
        port=args.port,
        tensor_parallel=args.tensor_parallel,
        gpu_memory=args.gpu_memory,
        max_model_len=args.max_model_len,
        start_s=args.start_s,
        dtype=args.dtype,
    )
    with serve(engine, checkpoint.export, folder / "server.log") as url:
        yield url


def _judge_set(
    name: str,
    problems: list[Problem],
    policy: Policy,
    sandbox: Sandbox,
    folder: Path,
    checkpoint: Checkpoint,
    args: argparse.Namespace,
) -> dict[str, Any]:
    """Return the scores of one set; each problem is asked and judged once, `concurrency` of them at a time."""
    weights = checkpoint.export / "config.json"
    key = f"{eval_config.digest()}:{weights.resolve()}:{weights.stat().st_mtime_ns}"

    def one(problem: Problem) -> dict[str, Any]:
        path = results.problem_file(folder, name, problem.id)
        if kept := results.read_problem(path, key):
            return kept
        answer = policy.answer(problem.ask)
        verdict = judge(problem, answer.text, sandbox)
        row = {"id": problem.id, "key": key, **asdict(verdict), "executed": verdict.executed, **asdict(answer)}
        results.write_json(path, row)
        return row

    with ThreadPoolExecutor(args.concurrency) as pool:
        rows = list(counted(pool.map(one, problems), f"Evaluating step {checkpoint.step} {name}", len(problems)))
    found = results.scores(rows)
    by_id = dict(zip((problem.id for problem in problems), problems, strict=True))
    lines = (json.dumps({"ask": by_id[row["id"]].ask, **row}, ensure_ascii=False) for row in rows[:QA_LOGS])
    (folder / "qa_logs").mkdir(parents=True, exist_ok=True)
    (folder / "qa_logs" / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines))
    print(
        f"[evaluate] step {checkpoint.step} {name}: accepted@1 {found['accepted_at_1']:.2%}, "
        f"exec {found['exec_success_rate']:.2%} of {found['problems']}",
        flush=True,
    )
    return found


def counted(
    rows: Iterable[dict[str, Any]], label: str, total: int, clock: Callable[[], float] = time.monotonic
) -> Iterator[dict[str, Any]]:
    """Yield rows as they come, and print now and then how far they are, as a bar of tqdm's."""
    began = told = clock()
    for done, row in enumerate(rows, 1):
        yield row
        now = clock()
        if now - told >= BAR_S and done < total:
            told, took = now, now - began
            left = _clock(took / done * (total - done))
            print(f"{label}: {100 * done // total}%| | {done}/{total} [{_clock(took)}<{left}]", flush=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _write(
    folder: Path, facts: dict[str, Any], args: argparse.Namespace, checkpoint: Checkpoint, stamp: str, took_s: float
) -> None:
    """Write the four files of a checkpoint."""
    flat = {
        f"{name}/{key}": value
        for name, row in facts["scores"].items()
        for key, value in row.items()
        if key != "outcomes"
    }
    results.write_json(folder / "metrics.json", flat)
    results.write_json(folder / "summary.json", facts)
    results.write_json(folder / "eval_info.json", {"parameters": eval_config.parameters(), "config": facts["config"]})
    limit_s = 2 * 60 * eval_config.MINUTES[facts["tier"]]
    run = {
        "checkpoint": str(checkpoint.path),
        "began": stamp,
        "took_s": round(took_s, 1),
        "expected_at_most_s": limit_s,
    }
    run |= {"engine": args.engine if not args.vllm_url else args.vllm_url, "sandbox": args.sandbox_url}
    results.write_json(folder / "run_info.json", run)


if __name__ == "__main__":
    main()
