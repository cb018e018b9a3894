"""Programs a second in the sandbox, beside one bare `python -I` per program with the same resource limits, in turns.

`throughput.py [--programs N] [--rounds N]`: prints a row of a table; a ratio, so that it holds on a busy machine, too.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from campaign import Server

EMPTY = "pass\n"
SMALL = "import math\nrows = [math.sqrt(n) for n in range(20000)]\nprint(round(sum(rows)))\n"


def set_limits() -> None:
    """Set the limits that the sandbox sets."""
    for kind, value in ((resource.RLIMIT_AS, 1 << 30), (resource.RLIMIT_CPU, 65), (resource.RLIMIT_FSIZE, 64 << 20)):
        resource.setrlimit(kind, (value, value))


def bare(code: str) -> float:
    """Run a program in an interpreter of its own; return how long it took, in seconds."""
    began = time.monotonic()
    words = [sys.executable, "-I", "-"]
    done = subprocess.run(words, input=code.encode(), capture_output=True, check=False, preexec_fn=set_limits)
    assert done.returncode == 0, done.stderr
    return time.monotonic() - began


def walled(server: Server) -> Callable[[str], float]:
    """Return what runs a program in the sandbox, and says how long the answer took; a thread keeps its connection."""
    kept = threading.local()

    def run(code: str) -> float:
        began = time.monotonic()
        if not hasattr(kept, "connection"):
            kept.connection = http.client.HTTPConnection("127.0.0.1", server.port)
        body = json.dumps({"code": code, "language": "python", "stdin": ""})
        kept.connection.request("POST", "/run_code", body)
        answer = json.load(kept.connection.getresponse())
        assert answer["status"] == "Success", answer
        return time.monotonic() - began

    return run


def rate(run: Callable[[str], float], code: str, count: int, at_once: int) -> float:
    """Return programs a second, so many at once."""
    began = time.monotonic()
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(run, [code] * count))
    return count / (time.monotonic() - began)


def p99(seconds: list[float]) -> float:
    """Return what 99 of 100 are below."""
    return sorted(seconds)[math.ceil(0.99 * len(seconds)) - 1]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=100, help="in a round")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as scratch:
        server = Server(Path(scratch), [])
        ways = {"bare": bare, "sandbox": walled(server)}
        for name, code in (("empty", EMPTY), ("small", SMALL)):
            rates: dict[str, list[float]] = {way: [] for way in ways}
            spans: dict[str, list[float]] = {way: [] for way in ways}
            for run in ways.values():
                run(code)
            for _ in range(asked.rounds):
                for way, run in ways.items():
                    rates[way].append(rate(run, code, asked.programs, 2 * cores))
                for _ in range(max(1, asked.programs // 2)):  # one at a time, in turns
                    for way, run in ways.items():
                        spans[way].append(run(code))
            ratios = [one / other for one, other in zip(rates["sandbox"], rates["bare"], strict=True)]
            ends = {way: 1000 * p99(row) for way, row in spans.items()}
            told = ", ".join(
                f"{way} {statistics.median(row):.0f} a second, p99 {ends[way]:.0f} ms" for way, row in rates.items()
            )
            print(
                f"{name}: {told}; ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}), "
                f"p99 {ends['sandbox'] / ends['bare']:.2f} times",
                flush=True,
            )
        print(f"strength {server.strength['strength']}, {cores} cores, {asked.rounds} rounds of {asked.programs}")
        server.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
