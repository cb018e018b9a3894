"""All checkpoints of a run by `rlbox eval`, beside vLLM's own benchmark over the same prompts and lengths and a start.

`overhead.py --python FILE`: FILE is an interpreter that has vLLM, torch and transformers; this one has what rlbox needs
(FILE's own will do). The checkpoints are small models that are trained there and then. In each round, in turns:

- vLLM is started with one checkpoint, until it answers, and asked by `vllm bench serve` what `rlbox eval` asked of each
  checkpoint: as many tokens of each answer, as many answers at a time;
- `rlbox eval judge` judges all checkpoints, from its start to its end, with a sandbox of its own.

Before the rounds `rlbox eval` is run once: it proves that weights can be exchanged, which costs a second start once for
an engine and is told apart. The last line is the median of the ratios; exit status 1 where it is above `--most`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
sys.path.insert(0, str(CHECKOUT))

from rlbox.evaluation.policy import Policy, PolicyError  # noqa: E402
from rlbox.evaluation.server import EngineSettings, served, setting, vllm_argv  # noqa: E402
from rlbox.system.http import create_loopback_client  # noqa: E402

SUITE = 'title = "sums"\nfile = "sums.jsonl"\nask_program = "{statement}"\n[decoding]\nmax_tokens = 320\n'
DEVELOPER = {"VLLM_SERVER_DEV_MODE": "1"}


class Bench:
    """The folder of one measurement: checkpoints, problems, and what rlbox keeps."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.folder: Path = asked.folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.steps = [asked.steps + 10 * at for at in range(asked.exports)]
        self.models = [self.folder / "checkpoints" / f"global_step_{step}" for step in self.steps]
        self.runs = 0

    def make(self) -> None:
        """Train the checkpoints that are not there, and write the problems."""
        if not all((model / "config.json").is_file() for model in self.models):
            steps = ",".join(map(str, self.steps))
            words = [
                str(HERE / "programs/small_model.py"),
                str(self.folder / "checkpoints"),
                steps,
                "0",
                str(self.asked.lines),
            ]
            subprocess.run([self.asked.python, *words], check=True, stdout=sys.stderr)
        for name in ("problems", "suites"):
            (self.folder / name).mkdir(exist_ok=True)
        (self.folder / "suites/sums.toml").write_text(SUITE)
        rows = []
        for number in range(self.asked.problems):
            one, other = number % 24, number // 24
            tests = {"input": [""], "output": [f"{one + other}\n"]}
            text = f"Write a program that prints {one} plus {other}."
            rows.append(json.dumps({"name": f"sum-{one}-{other}", "description": text, "public_tests": tests}))
        (self.folder / "problems/sums.jsonl").write_text("\n".join(rows) + "\n")

    def judge(self) -> tuple[float, Path]:
        """Judge all by rlbox; return the seconds, and where the results are."""
        self.runs += 1
        out = self.folder / f"eval-{self.runs}"
        words = [
            "eval",
            "judge",
            *map(str, self.models),
            "--suite",
            "sums",
            "--problems",
            str(self.folder / "problems"),
        ]
        words += ["--project", str(self.folder), "--engine", self.asked.python, "--port", str(self.asked.port)]
        words += ["--at-once", str(self.asked.at_once), "--out", str(out)]
        words += [word for text in self.asked.set for word in ("--set", text)]
        began = time.monotonic()
        with (self.folder / f"eval-{self.runs}.log").open("w") as log:
            done = subprocess.run([sys.executable, "-m", "rlbox", *words], stdout=log, stderr=log, env=self._env())
        took = time.monotonic() - began
        if done.returncode:
            text = (self.folder / f"eval-{self.runs}.log").read_text()
            servers = [path.read_text()[-4000:] for path in out.glob("*/server.log")]
            sys.exit("\n".join([text[-4000:], *servers, "rlbox eval failed"]))
        return took, out

    def told(self) -> list[str]:
        """Return what rlbox said of its engine the last time."""
        lines = (self.folder / f"eval-{self.runs}.log").read_text().splitlines()
        return [line for line in lines if "engine" in line or "proven" in line]

    def lengths(self, out: Path) -> list[Path]:
        """Write what the engine's own benchmark asks of each checkpoint: the same prompts, the same lengths."""
        files = []
        for model in self.models:
            name = f"step_{model.name.rpartition('_')[2]}"
            rows = [json.loads(path.read_text()) for path in sorted((out / name).glob("per_problem/*/*.json"))]
            file = self.folder / f"{name}.jsonl"
            told = ({"prompt": row["ask"], "output_tokens": max(1, row["tokens"])} for row in rows)
            file.write_text("".join(json.dumps(row) + "\n" for row in told))
            files.append(file)
        return files

    def bench(self, files: list[Path]) -> tuple[float, list[float]]:
        """Return how long vLLM took to start, and its own benchmark over each file."""
        began = time.monotonic()
        with self.vllm():
            start = time.monotonic() - began
            words = [str(self.asked.port), str(self.models[0]), str(self.asked.at_once), *map(str, files)]
            with (self.folder / "bench.log").open("a") as log:
                done = subprocess.run(
                    [self.asked.python, str(HERE / "programs/bench_served.py"), *words],
                    stdout=subprocess.PIPE, stderr=log, text=True, env=self._env(),
                )  # fmt: skip
        if done.returncode:
            sys.exit(
                f"{done.stdout[-3000:]}\n{(self.folder / 'bench.log').read_text()[-4000:]}\nvLLM's benchmark failed"
            )
        return start, json.loads(done.stdout.splitlines()[-1])

    @contextlib.contextmanager
    def vllm(self) -> Iterator[Policy]:
        """Start it as rlbox does, with the first checkpoint."""
        settings: dict[str, Any] = dict(map(setting, self.asked.set))
        argv = vllm_argv(self.asked.python, self.models[0], self.asked.port, settings)
        engine = EngineSettings(argv=argv, url=f"http://127.0.0.1:{self.asked.port}", start_s=900.0, env=DEVELOPER)
        with served(engine, self.folder / "bench-server.log", create_loopback_client(900.0)) as policy:
            yield policy

    def _env(self) -> dict[str, str]:
        """Return the environment: this checkout's rlbox, its caches here."""
        return {**os.environ, "PYTHONPATH": str(CHECKOUT), "XDG_CACHE_HOME": str(self.folder / "cache")}


def measure(bench: Bench, asked: argparse.Namespace) -> list[float]:
    """Carry out the rounds and return their ratios."""
    began = time.monotonic()
    bench.make()
    print(f"{asked.exports} checkpoints of {asked.problems} problems each, {asked.at_once} at a time", flush=True)
    first, out = bench.judge()
    files = bench.lengths(out)
    tokens = [sum(json.loads(line)["output_tokens"] for line in file.read_text().splitlines()) for file in files]
    print(f"first time, with the proof: {first:.1f} s; tokens of each checkpoint: {tokens}", flush=True)
    for line in bench.told():
        print(f"  {line}", flush=True)
    print("round | start | vLLM's benchmark of each | rlbox eval | ratio", flush=True)
    ratios: list[float] = []
    longest = 0.0
    while len(ratios) < asked.rounds and time.monotonic() - began + longest < asked.within_s:
        at = time.monotonic()
        if len(ratios) % 2:
            ours, _ = bench.judge()
            start, each = bench.bench(files)
        else:
            start, each = bench.bench(files)
            ours, _ = bench.judge()
        ratios.append(ours / (start + sum(each)))
        parts = " ".join(f"{one:.2f}" for one in each)
        print(f"{len(ratios)} | {start:.1f} s | {parts} s | {ours:.1f} s | {ratios[-1]:.3f}", flush=True)
        longest = max(longest, time.monotonic() - at)
    for line in bench.told():
        print(f"  {line}", flush=True)
    return ratios


def main() -> int:
    """Measure, and say whether it held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="interpreter that has vLLM")
    parser.add_argument("--folder", type=Path, default=None, help="where all is made; kept [a temporary one]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--exports", type=int, default=3)
    parser.add_argument("--problems", type=int, default=288)
    parser.add_argument("--steps", type=int, default=120, help="of the training of the first checkpoint")
    parser.add_argument(
        "--lines", type=int, default=24, help="of a program, so that an answer has the length of a real one"
    )
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="option of vLLM's")
    parser.add_argument("--within-s", type=float, default=1e9, help="no round is begun that would end later")
    parser.add_argument("--most", type=float, default=1.10)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rlbox-overhead-") as folder:
        asked.folder = asked.folder or Path(folder)
        try:
            ratios = measure(Bench(asked), asked)
        except PolicyError as error:
            sys.exit(f"vLLM: {error}")
    if not ratios:
        sys.exit("no round had time")
    median = statistics.median(ratios)
    print(f"ratio {median:.3f} ({min(ratios):.3f} to {max(ratios):.3f}), {len(ratios)} rounds; aim {asked.most:.2f}")
    return int(median > asked.most)


if __name__ == "__main__":
    raise SystemExit(main())
