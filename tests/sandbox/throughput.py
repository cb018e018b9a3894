"""Programs a second in the sandbox, beside one bare `python -I` per program with the same resource limits, in turns.

`throughput.py [--programs N] [--rounds N]`: prints medians and their ratio, and the ratio of processor time, which
other work on the machine changes less.
"""

from __future__ import annotations

import argparse
import http.client
import json
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

PROGRAMS = {"empty": "pass\n", "small": "import math\nprint(round(sum(math.sqrt(n) for n in range(20000))))\n"}
CONNECTIONS = threading.local()


def set_limits() -> None:
    """Set the limits that the sandbox sets."""
    for kind, value in ((resource.RLIMIT_AS, 1 << 30), (resource.RLIMIT_CPU, 65), (resource.RLIMIT_FSIZE, 64 << 20)):
        resource.setrlimit(kind, (value, value))


def run_bare(code: str) -> None:
    words = [sys.executable, "-I", "-"]
    subprocess.run(words, input=code.encode(), capture_output=True, check=True, preexec_fn=set_limits)


def run_in_sandbox(server: Server, code: str) -> None:
    if not hasattr(CONNECTIONS, "one"):
        CONNECTIONS.one = http.client.HTTPConnection("127.0.0.1", server.port)
    CONNECTIONS.one.request("POST", "/run_code", json.dumps({"code": code, "language": "python", "stdin": ""}))
    answer = json.load(CONNECTIONS.one.getresponse())
    assert answer["status"] == "Success", answer


def read_cpu_s(pid: int) -> float:
    """Return the processor time of a process, of all below it, and of those below that it waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") + sum(read_cpu_s(int(child)) for child in children)


def measure(run: Callable[[str], None], code: str, count: int) -> float:
    """Return programs a second, two at a time for each core."""
    began = time.monotonic()
    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
        list(pool.map(run, [code] * count))
    return count / (time.monotonic() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=100, help="in a round")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        server = Server(Path(scratch), [])
        for name, code in PROGRAMS.items():
            rates: list[tuple[float, float]] = []
            cpu_s = [0.0, 0.0]
            measure(lambda code: run_in_sandbox(server, code), code, 8)  # all workers are there then
            for _ in range(args.rounds):
                own, served = read_cpu_s(os.getpid()) - read_cpu_s(server.process.pid), read_cpu_s(server.process.pid)
                bare = measure(run_bare, code, args.programs)
                cpu_s[0] += read_cpu_s(os.getpid()) - read_cpu_s(server.process.pid) - own
                walled = measure(lambda code: run_in_sandbox(server, code), code, args.programs)
                cpu_s[1] += read_cpu_s(server.process.pid) - served
                rates.append((walled, bare))
            ratios = [walled / bare for walled, bare in rates]
            walled, bare = (statistics.median(rate[n] for rate in rates) for n in (0, 1))
            print(
                f"{name}: {walled:.0f} a second, bare {bare:.0f}; ratio {statistics.median(ratios):.2f} "
                f"({min(ratios):.2f} to {max(ratios):.2f}), of processor time {cpu_s[0] / cpu_s[1]:.2f}",
                flush=True,
            )
        print(
            f"strength {server.strength['strength']}, {os.cpu_count()} cores, {args.rounds} rounds of {args.programs}"
        )
        server.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
