"""`make nightly`: what takes too long for `make test`, part by part.

    make nightly                       all parts but those that `--list` marks with *
    make nightly ARGS=--list           name them
    make nightly ARGS="engine/push fuzz"   these alone; a name also stands for all that begins with it and a slash
    make nightly PART=3/10             the third of ten shares of like length; PART=day/10 takes that of the day
    make nightly ARGS="--minutes 12"   leave out, by name, parts that would end later by the table MINUTES

A part that fails does not stop the others; a table at the end says how each ended, and the exit code is 1 when one
failed. What passed on the same commit is not run again (`--again` runs it); NIGHTLY_DIR holds state and logs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
FOLDER = Path(os.environ.get("NIGHTLY_DIR", "~/.cache/rlbox/nightly")).expanduser()
PYTEST = (PYTHON, "-m", "pytest", "-q", "-m", "not elsewhere", "--timeout=7200")
CLUSTER = "test_cluster_"
SLOW = ("cli", "contract", "jobs", "supervisor", "unit")
APART = ("test_eval_real", "test_faults")
"""Files of tests/engine that have parts of their own."""
BESIDE = ("tests/unit/diagnose/test_corpus.py", "tests/cli/test_cli_seeds.py")
"""Tests of what lies beside the checkout: a corpus of logs (RLBOX_CORPUS) and the notes."""
MINUTES = {
    "cluster/life": 10, "evaluation/tests": 9, "attack": 7, "cluster/proof": 7, "engine/doctor": 6, "cluster/jobs": 6,
    "cluster/failures": 5, "engine/smoke": 5, "faults": 5, "bench/rows": 4, "evaluation/real": 4, "cluster/runs": 4,
    "cluster/engines": 4, "cluster/here": 4, "engine/egress_proof": 3, "engine/layer_churn": 3, "engine/onstart": 3,
    "engine/parts": 3, "engine/run": 3, "slow/cli": 3, "fuzz/diagnose": 3, "compile": 2, "sandbox/containers": 2,
    "cluster/many": 2, "cluster/work": 2, "engine/helpers": 2, "engine/verify": 2, "engine/push": 2,
    "engine/vast_plain_image": 2, "sandbox/verdicts": 6, "engine/onstart_platforms": 8,
    "engine/export_fleet": 6,
}  # fmt: skip
"""About how long parts take on two cores; all others take a minute or less."""
# SC1090, SC1091: a script reads files that only exist where it runs
SHELLCHECK = """
check=$(command -v shellcheck || echo .venv/tools/usr/bin/shellcheck)
scripts=$(git ls-files .ci/run 'scripts/*.sh' 'rlbox/**/*.sh' 'templates/scripts/*.sh')
$check --shell=bash --exclude=SC1090,SC1091 $(grep -l '^#!.*bash' $scripts)
$check --shell=sh --exclude=SC1090,SC1091 $(grep -L '^#!.*bash' $scripts)
"""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One command. `hours`: it takes that long, or needs what few machines have, and only runs when it is named."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    hours: bool = False


def tests(name: str, *words: str, **env: str) -> Part:
    """Return a part of pytest."""
    return Part(name=name, argv=(*PYTEST, *words), env=env)


def script(name: str, *words: str, hours: bool = False, **env: str) -> Part:
    """Return a part that is a Python script of the repository."""
    return Part(name=name, argv=(PYTHON, *words), env=env, hours=hours)


def parts() -> list[Part]:
    """Return every part, in the order in which they run."""
    files = sorted((CHECKOUT / "tests/engine").glob("test_*.py"))
    engine = [path for path in files if not path.stem.startswith((CLUSTER, *APART))]
    cluster = [path for path in files if path.stem.startswith(CLUSTER)]
    return [
        *(tests(f"engine/{path.stem.removeprefix('test_')}", f"tests/engine/{path.name}") for path in engine),
        *(tests(f"cluster/{path.stem.removeprefix(CLUSTER)}", f"tests/engine/{path.name}") for path in cluster),
        *(tests(f"slow/{name}", f"tests/{name}", "-m", "slow") for name in SLOW),
        Part(name="shellcheck", argv=("bash", "-ec", SHELLCHECK)),
        tests("bench/rows", "tests/bench"),
        tests("compile", "tests/compile"),
        tests(
            "evaluation/tests", "tests/evaluation", "tests/unit/evaluation",
            RLBOX_EVAL_TRAININGS="5000", RLBOX_EVAL_KILLS="10",
        ),
        tests("evaluation/real", "tests/engine/test_eval_real.py"),
        tests("sandbox/tests", "tests/sandbox"),
        script("sandbox/attacks", "tests/sandbox/campaign.py"),
        script("sandbox/humaneval", "tests/sandbox/humaneval.py"),
        script("sandbox/speed", "tests/sandbox/throughput.py"),
        script("sandbox/verdicts", "tests/sandbox/verdict_chaos.py"),
        tests("sandbox/containers", "tests/engine/test_sandbox_walls.py", RLBOX_SANDBOX_SAMPLE="0"),
        tests("attack", "tests/attack", RLBOX_ATTACK_ALL="1"),
        tests("fuzz/tests", "tests/fuzz"),
        script("fuzz/command-lines", "tests/fuzz/command_lines.py", "--lines", "2000", "--seed", "1"),
        script("fuzz/readers", "tests/fuzz/campaign.py", "--cases", "20000", "--seed", "1"),
        script("fuzz/diagnose", "tests/fuzz/diagnosing.py", "--cases", "200000", "--seed", "1", "--seconds", "150"),
        tests("chaos", "tests/chaos", "-x", "-s", RLBOX_CHAOS_ROUNDS="10", RLBOX_CHAOS_PLACES="here,docker"),
        script("faultlab/score", "tests/faultlab/score.py", "--wrong"),
        script("faultlab/orders", "tests/faultlab/interleavings.py", "--count", "20"),
        tests("faults", "tests/engine/test_faults.py"),
        Part(
            name="elsewhere/engines",
            argv=(PYTHON, "-m", "pytest", "-q", "-m", "elsewhere", "tests/engine"),
            hours=True,
        ),
        Part(name="elsewhere/corpus", argv=(*PYTEST, *BESIDE), hours=True),
        script("bench/goals", "-m", "benchmarks", "--table", "benchmarks/RESULTS.md", hours=True),
        script("cluster-campaign/chaos", "tests/engine/clustercampaign.py", hours=True),
        script("faultlab/record", "tests/faultlab/record.py", hours=True),
        Part(name="journeys", argv=("tests/journeys/lane.sh", "debian"), hours=True),
        Part(name="gpu-images", argv=(*PYTEST, "tests/gpu_images", "-s"), hours=True),
    ]  # fmt: skip


def choose(all_parts: Sequence[Part], names: Sequence[str], tenth: str, today: datetime.date) -> list[Part]:
    """Return the parts that are asked for: by name, or those of one share of all that do not take hours.

    Raises
    ------
    ValueError
        A name is of no part, or the share is not of the form N/M with 1 <= N <= M, or day/M.
    """
    if names:
        found = [
            part for part in all_parts if any(part.name == name or part.name.startswith(f"{name}/") for name in names)
        ]
        missing = [
            name for name in names if not any(part.name == name or part.name.startswith(f"{name}/") for part in found)
        ]
        if missing:
            raise ValueError(f"no part {', '.join(missing)}; --list names them")
        return found
    short = [part for part in all_parts if not part.hours]
    if not tenth:
        return short
    first, _, count = tenth.partition("/")
    shares = int(count)
    number = today.timetuple().tm_yday % shares if first == "day" else int(first) - 1
    if not 0 <= number < shares:
        raise ValueError(f"PART={tenth}: N/M with N from 1 to M, or day/M")
    return _split_evenly(short, shares)[number]


def _split_evenly(all_parts: Sequence[Part], shares: int) -> list[list[Part]]:
    """Give each part, the longest first, to the share that takes least so far."""
    found: list[list[Part]] = [[] for _ in range(shares)]
    minutes = [0] * shares
    for part in sorted(all_parts, key=lambda part: -MINUTES.get(part.name, 1)):
        least = minutes.index(min(minutes))
        found[least].append(part)
        minutes[least] += MINUTES.get(part.name, 1)
    return found


def run(part: Part, log: Path) -> tuple[int, float]:
    """Run a part with its output in a file; return its exit code and how many seconds it took."""
    began = time.monotonic()
    with log.open("wb") as output:
        done = subprocess.run(
            part.argv,
            cwd=CHECKOUT,
            env={**part.env, **os.environ},
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return done.returncode, time.monotonic() - began


def commit() -> str:
    """Return the commit of the checkout, marked where a tracked file was changed."""
    argv = ("git", "-C", str(CHECKOUT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    """Run the parts and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="PART")
    parser.add_argument("--part", default="", metavar="N/M", help="one share of all; day/M: that of the day")
    parser.add_argument("--list", action="store_true", dest="listed")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="leave out parts that would end later")
    parser.add_argument("--again", action="store_true", help="also what passed on this commit")
    args = parser.parse_args()
    try:
        chosen = choose(parts(), args.names, args.part, datetime.date.today())
    except ValueError as error:
        parser.error(str(error))
    if args.listed:
        for part in chosen if args.names or args.part else parts():
            print(f"{part.name:28}{'* ' if part.hours else '  '}{shlex.join(part.argv)}")
        return 0
    folder = FOLDER / commit()
    folder.mkdir(parents=True, exist_ok=True)
    state = folder / "state.json"
    ended: dict[str, list[float]] = json.loads(state.read_text("utf-8")) if state.exists() else {}
    began, left_out = time.monotonic(), set[str]()
    for part in chosen:
        if part.name in ended and ended[part.name][0] == 0 and not args.again:
            continue
        if (time.monotonic() - began) / 60 + MINUTES.get(part.name, 1) > args.minutes:
            left_out.add(part.name)
            print(f"{part.name}: left out, {args.minutes:g} minutes are too few", flush=True)
            continue
        log = folder / f"{part.name.replace('/', '-')}.log"
        print(f"{part.name}: {log}", flush=True)
        code, seconds = run(part, log)
        ended[part.name] = [code, round(seconds)]
        state.write_text(json.dumps(ended, indent=1), encoding="utf-8")
    chosen = [part for part in chosen if part.name not in left_out]
    failed = [part for part in chosen if ended[part.name][0]]
    for part in chosen:
        code, seconds = ended[part.name]
        print(f"{part.name:28}{'passed' if not code else f'FAILED {code:.0f}':12}{seconds:6.0f} s")
    for part in failed:
        text = (folder / f"{part.name.replace('/', '-')}.log").read_text("utf-8", "replace")
        print(f"\n== {part.name}", *text.splitlines()[-25:], sep="\n")
    print(f"\n{len(chosen) - len(failed)} of {len(chosen)} parts passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
