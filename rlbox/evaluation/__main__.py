"""The evaluation's own programs: `python -m rlbox.evaluation judge|prove|choose|compare`; jobs start them, see --help.

Exit status 1: something was not judged, not proven, or not comparable.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rlbox.evaluation.export import Export
from rlbox.evaluation.judge import CheckpointJudge, JudgingTask, judge_checkpoints
from rlbox.evaluation.model_client import ModelServerError
from rlbox.evaluation.model_server import EngineOptions, describe_engine, make_server_factory, parse_setting
from rlbox.evaluation.problems import Problem, ProblemError
from rlbox.evaluation.result import LocksDifferError, format_table
from rlbox.evaluation.result_files import BEST, read_export_path, read_results, read_summary, write_json
from rlbox.evaluation.sandbox_client import SandboxClient, judge_solutions
from rlbox.evaluation.selection import best_to_json, build_rule, choose_checkpoint, format_best
from rlbox.evaluation.suites import Suite, load_suite_problems
from rlbox.evaluation.view import compare_results, format_comparison, print_line
from rlbox.i18n import _
from rlbox.system.http import create_loopback_client

_SILENT_S = 1800.0


def options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m rlbox.evaluation", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    judge = verbs.add_parser("judge", help="a result for each export")
    judge.add_argument("--export", action="append", required=True, help="NAME=STEP=FOLDER; may be repeated")
    judge.add_argument("--last-suites", default="", help="suites of the last export, besides (P182)")
    judge.add_argument("--engine", default="", help="interpreter that has vLLM; else --url")
    judge.add_argument("--url", default="", help="a server that is up already; nothing is started (P184)")
    judge.add_argument("--port", type=int, default=8000)
    judge.add_argument(
        "--set", action="append", default=[], help="NAME=VALUE of the engine's settings, as in its options"
    )
    judge.add_argument("--start-s", type=float, default=1800.0)
    judge.add_argument("--servers", type=int, default=1, help="engines that share the work; 0: as GPUs are free")
    judge.add_argument("--at-once", type=int, default=32, help="answers asked of each at a time")
    proof = verbs.add_parser("prove", help="the suites by their own reference solutions")
    for verb in (judge, proof):
        verb.add_argument("--suites", required=True, help="names or TOML files, with commas")
        verb.add_argument("--problems", type=Path, required=True, help="folder of the raw problem sets")
        verb.add_argument("--manifests", type=Path, default=Path(), help="folder of the manifests")
        verb.add_argument("--packages", type=Path, default=None, help="site-packages of the stack")
        verb.add_argument("--own", type=Path, default=None, help="folder of suites of one's own")
        verb.add_argument("--any-size", action="store_true", help="take sets of another size than their suite's")
        verb.add_argument("--sandbox-url", required=True)
    pick = verbs.add_parser("choose", help="the best checkpoint, and how it stands to the baseline")
    pick.add_argument("--baseline", type=Path, default=None, help="summary.json of the baseline")
    pick.add_argument("--guard", default="humaneval", help="suite that must not drop (P189)")
    pick.add_argument("--by", action="append", default=[], help="suite that decides; else the seed's (P189)")
    pick.add_argument("--margin", type=float, default=0.0, help="loss that must be ruled out; 0: what shows")
    two = verbs.add_parser("compare", help="two results, suite by suite")
    two.add_argument("results", type=Path, nargs=2, help="summary.json")
    two.add_argument("--across", action="append", default=[], help="field of the lock that may differ")
    for verb in (judge, pick):
        verb.add_argument("--out", type=Path, required=True, help="folder of the results")
    return parser.parse_args(words)


def main(words: Sequence[str]) -> int:
    """Carry out a verb; what is wrong is one line on standard error."""
    asked = options(words)
    verbs = {"judge": _judge, "prove": _prove, "choose": _choose, "compare": _compare}
    try:
        return verbs[asked.verb](asked)
    except (ProblemError, ModelServerError, ValueError) as error:
        sys.stderr.write(f"rlbox.evaluation: error: {error}\n")
    except LocksDifferError as error:
        rows = "".join(f"  {one.field}: {one.one!r} and {one.other!r}\n" for one in error.fields)
        sys.stderr.write(f"rlbox.evaluation: error: not comparable, the evaluation locks differ in\n{rows}")
    return 1


def _judge(asked: argparse.Namespace) -> int:
    exports = [_export(text) for text in asked.export]
    if asked.url and len(exports) > 1:
        raise ValueError(
            _("--url is one server, and {count} exports were named: which of them does it serve?").format(
                count=len(exports)
            )
        )
    suites = _problems(asked, asked.suites)
    last = [*suites, *(_problems(asked, asked.last_suites) if asked.last_suites else [])]
    settings = dict(parse_setting(text) for text in asked.set)
    where = {"url": asked.url, "python": asked.engine, "port": asked.port, "servers": asked.servers}
    engine = EngineOptions(settings=settings, start_s=asked.start_s, **where)
    judging = CheckpointJudge(
        sandbox=SandboxClient(asked.sandbox_url, create_loopback_client(3600.0)),
        serve=make_server_factory(engine, create_loopback_client(_SILENT_S), print_line),
        engine=describe_engine(asked.url, settings),
        out=asked.out,
        at_once=asked.at_once,
    )
    wanted = [JudgingTask(export=one, suites=last if one is exports[-1] else suites) for one in exports]
    failed = [f"{name}: {why}" for name, why in judge_checkpoints(judging, wanted).failed.items()]
    print_line(format_table(read_results(asked.out)))
    for line in failed:
        sys.stderr.write(f"rlbox.evaluation: error: {line}\n")
    if not failed:
        print_line(f"[evaluate] passed: {len(exports)} checkpoints in {asked.out}")
    return 1 if failed else 0


def _prove(asked: argparse.Namespace) -> int:
    sandbox, wrong = SandboxClient(asked.sandbox_url, create_loopback_client(3600.0)), 0
    for suite, problems in _problems(asked, asked.suites):
        count, failed = judge_solutions(suite, problems, sandbox)
        for name, verdict in failed.items():
            print_line(f"[FAIL] {suite.name} {name}: its own solution is {verdict.outcome} here: {verdict.detail}")
        print_line(f"[suite] {suite.name}: {count - len(failed)} of {count} own solutions are accepted")
        wrong += len(failed)
    return 1 if wrong else 0


def _choose(asked: argparse.Namespace) -> int:
    """Say which checkpoint is best and how it stands to the baseline; `ValueError` where there is no result."""
    baseline = read_summary(asked.baseline) if asked.baseline else None
    rule = build_rule(asked.by)
    found = choose_checkpoint(
        read_results(asked.out), baseline=baseline, guard=asked.guard, margin=asked.margin, rule=rule
    )
    for line in format_best(found):
        print_line(line)
    write_json(asked.out / BEST, best_to_json(found) | {"model": read_export_path(asked.out / found.best.name)})
    return 0


def _compare(asked: argparse.Namespace) -> int:
    """Say how two results differ; `LocksDifferError` where their locks do."""
    one, other = map(read_summary, asked.results)
    for line in format_comparison(compare_results(one, other, asked.across)):
        print_line(line)
    return 0


def _problems(asked: argparse.Namespace, names: str) -> list[tuple[Suite, list[Problem]]]:
    return load_suite_problems(
        names.split(","),
        asked.problems,
        own=asked.own,
        packages=asked.packages,
        manifests=asked.manifests,
        any_size=asked.any_size,
    )


def _export(text: str) -> Export:
    name, step, folder = text.split("=", 2)
    return Export(name=name, step=int(step), path=Path(folder))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
