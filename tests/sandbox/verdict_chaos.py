"""Check RLBOX_CHAOS_PROGRAMS programs (2,000) as a trainer does while the sandbox breaks.

Workers and at times the server are killed, and a file fills the small disk of the programs' folders (needs root). Right
programs must get 1 or no reward, all others 0 or no reward, and nothing may be left. Exit status 1: that was not so.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from campaign import Server

from rlbox.evaluation.rewards import check_answer_and_append_receipt
from rlbox.system.libc import set_child_subreaper
from rlbox.system.process_table import list_child_pids

WRITES = "def f(x):\n    open('a', 'w').write('x' * 200000)\n    return len(open('a').read()) // 100000 * x"
PROGRAMS = {
    "right": ("def f(x):\n    return x * 2", WRITES),
    "wrong": ("def f(x):\n    return x * 3", "def f(x):\n    raise KeyError(x)", "def f("),
    "slow": ("def f(x):\n    while True: pass",),
    "large": ("def f(x):\n    return len(bytes(1 << 30))", "def f(x):\n    return len([0] * (1 << 28))"),
}
SHARES = (50, 30, 8, 12)
PROBLEM = {"tests": "assert f(21) == 42", "run_timeout": 0.5, "memory_limit_MB": 256}
OPTIONS = ["--cpu-s", "2", "--memory-mb", "256"]
SEED, COUNT = 1, int(os.environ.get("RLBOX_CHAOS_PROGRAMS", "2000"))


class Chaos:
    def __init__(self, folder: Path) -> None:
        self.folder, self.chance, self.faults = folder, random.Random(SEED), Counter[str]()
        self.server, self.lock, self.stop = Server(folder, OPTIONS), threading.Lock(), threading.Event()
        self.port = self.server.port

    def kill_worker(self) -> None:
        with self.lock, contextlib.suppress(ProcessLookupError, IndexError):
            os.kill(self.chance.choice(list(list_child_pids(self.server.process.pid))), signal.SIGKILL)
            self.faults["workers killed"] += 1

    def kill_server(self) -> None:
        with self.lock:
            self.server.process.kill()
            self.server.process.wait()
            self.faults["servers killed"] += 1
            while True:
                with contextlib.suppress(ValueError):  # it does not start while the disk is full
                    self.server = Server(self.folder, [*OPTIONS, "--port", str(self.port)])
                    return
                time.sleep(0.5)

    def fill_disk(self) -> None:
        path = self.folder / "filler"
        with contextlib.suppress(OSError), path.open("wb", buffering=0) as stream:
            while stream.write(bytes(1 << 20)) == 1 << 20:
                pass
        time.sleep(self.chance.uniform(0.2, 2))
        path.unlink()
        self.faults["disk filled"] += 1

    def repeat(self, act: str, mean_s: float) -> None:
        while not self.stop.wait(self.chance.expovariate(1 / mean_s)):
            getattr(self, act)()


def list_what_stays_alive() -> list[int]:
    for _ in range(200):
        if not (pids := list(list_child_pids(os.getpid()))):
            break
        for pid in pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.1)
    return pids


def main() -> int:
    set_child_subreaper()  # what a killed server leaves comes to this process
    kinds = random.Random(SEED).choices(list(PROGRAMS), SHARES, k=COUNT)
    with tempfile.TemporaryDirectory() as name:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", name], check=True)
        try:
            chaos = Chaos(Path(name))
            os.environ["RLBOX_SANDBOX_URL"] = f"http://127.0.0.1:{chaos.port}"
            acts = (("kill_worker", 1.0), ("kill_server", 30.0), ("fill_disk", 8.0))
            answers = [f"```python\n{chaos.chance.choice(PROGRAMS[kind])}\n```" for kind in kinds]
            with ThreadPoolExecutor(len(acts)) as faults, ThreadPoolExecutor(24) as pool:
                broken = [faults.submit(chaos.repeat, *act) for act in acts]
                try:
                    receipts = list(pool.map(check_answer_and_append_receipt, answers, [PROBLEM] * COUNT))
                finally:
                    chaos.stop.set()
                assert not any(fault.result() for fault in broken)
            chaos.server.stop()
            left = list_what_stays_alive()
        finally:
            subprocess.run(["umount", "--lazy", name], check=True)
    pairs = list(zip(kinds, (receipt["reward"] for receipt in receipts), strict=True))
    wrong = [pair for pair in pairs if pair[1] not in (None, float(pair[0] == "right"))]
    rewards = Counter(f"{kind} {reward}" for kind, reward in pairs)
    print(json.dumps({"rewards": rewards, "faults": chaos.faults, "wrong": wrong, "left": left}, indent=1))
    return int(bool(wrong or left) or sum(reward is None for _, reward in pairs) > 0.2 * COUNT)


if __name__ == "__main__":
    raise SystemExit(main())
