"""`make gpu-hangs`: ranks that wait for each other on real GPUs, found or not, by limits that nobody set.

For a machine with two GPUs or more and a Python with torch. Each case is a run by `rlbox run --place here`: which must
be stopped within 30 s of its fault, naming the rank and the call or operation; and one that works silently for
`--seconds` in each of six ways, which must end well. NCCL's settings are left as they are.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent), str(HERE.parent / "supervisor")]

from launched import Site  # noqa: E402

WITHIN_S = 30.0
TORCHRUN = "-m torch.distributed.run --standalone --nproc-per-node={ranks}"
LOOSE = (
    "for r in {numbers}; do [ $r = {late} ] && sleep 300; RANK=$r LOCAL_RANK=$r WORLD_SIZE={world}"
    " MASTER_ADDR=127.0.0.1 MASTER_PORT=29533 {python} -u {ranks_py} {case} {seconds} & done; wait"
)
# what the cause must name; LAST: the last rank, FIRST: all before it, OTHERS: all but rank 0, NEXT: one more than all
CASES = {
    "sleep": (r"not called by rank LAST", r"sleep_for_ever"),
    "pipe": (r"not called by rank LAST", r"read_batch_from_pipe"),
    "lock": (r"not called by rank LAST", r"wait_for_file_lock"),
    "loader": (r"not called by rank LAST", r"next_batch_of_workers"),
    "busy": (r"not called by rank LAST", r"sleep_for_ever"),
    "mismatch": (r"rank 0 AllReduce \d+", r"OTHERS Broadcast \d+"),
    "gloo": (r"not called by rank LAST", r"barrier"),
    "groups": (r"FIRST AllReduce \d+", r"rank LAST AllReduce \d+"),
    "new-groups": (r"rank 0 in all_reduce", r"rank LAST in all_reduce"),
    "lazy-groups": (r"rank 0 in all_reduce", r"rank LAST in all_reduce"),
    "p2p": (r"not called by rank LAST", r"recv"),
    "killed": (r"rank LAST ended, or does not answer NCCL", r""),
    "missing": (r"rank NEXT of \d+ never started", r""),
    "late": (r"rank LAST of \d+ never started", r""),
}
JOB = """
title = "ranks"
target = "mine"
[[stages]]
name = "train"
title = "ranks"
command = ["sh", "-c", '''COMMAND''']
env = { RANKS_FOLDER = "{run}" }
listens = ["ephemeral", "29533"]  # torch's stores and NCCL
[stages.gate]
require = [{ pattern = 'all met' }]
"""


def command_of(case: str, python: str, ranks: int, seconds: float) -> str:
    """Return the shell command that starts the ranks of a case."""
    program = HERE / "ranks.py"
    if case not in ("missing", "late", "killed"):
        return f"exec {python} {TORCHRUN.format(ranks=ranks)} {program} {case} {seconds}"
    world = ranks + (case == "missing")
    return LOOSE.format(
        numbers=" ".join(map(str, range(ranks))), late=ranks - 1 if case == "late" else -1, world=world,
        python=python, ranks_py=program, case=case, seconds=seconds,
    )  # fmt: skip


def carry_out(case: str, python: str, ranks: int, seconds: float, beside: str) -> tuple[bool, str]:
    """Run one case; return whether it went as it must, and what was said."""
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder))
        site.folder.job("two", JOB.replace("COMMAND", command_of(case, python, ranks, seconds)))
        gpu = beside or (str(ranks - 1) if case == "busy" else "")
        busy = subprocess.Popen([python, str(HERE / "busy.py"), gpu]) if gpu else None
        try:
            with site.start("run", "two", "--place", "here") as process:
                _, said = process.communicate()
        finally:
            if busy:
                busy.kill()
                busy.wait()
        if not site.runs():
            return False, said
        ras = next((file.read_text() for file in site.run_dir().glob("stages/*/evidence/nccl/ras.txt")), "")
        log = next(site.run_dir().glob("stages/*/stage.log")).read_text(errors="replace")
        events = [json.loads(line) for line in (site.run_dir() / "events.jsonl").read_text().splitlines()]
    if case == "healthy":
        hangs = [row for row in events if row["event"] == "hang"]
        return (
            process.returncode == 0 and not hangs,
            f"rc {process.returncode}, alarms {len(hangs)}: {said[-600:] if process.returncode else ''}",
        )
    fault = re.search(r"fault at ([0-9.]+)", log)
    hang = next((row for row in events if row["event"] == "hang"), None)
    begun = float(fault[1]) if fault else moment(next(row for row in events if row["event"] == "stage")["t"])
    after_s = moment(hang["t"]) - begun if hang else float("inf")
    several = "rank" if ranks == 2 else "ranks"
    first, others = (", ".join(map(str, numbers)) for numbers in (range(ranks - 1), range(1, ranks)))
    names = {
        "LAST": str(ranks - 1), "FIRST": f"{several} {first}", "OTHERS": f"{several} {others}", "NEXT": str(ranks),
    }  # fmt: skip
    wanted = [re.sub("LAST|FIRST|OTHERS|NEXT", lambda found: names[found[0]], text) for text in CASES[case]]
    right = process.returncode == 7 and after_s <= WITHIN_S and all(re.search(text, said) for text in wanted)
    return right, f"{after_s:.1f} s, rc {process.returncode}: " + " ".join(said.split())[-900:] + ("" if right else ras)


def moment(text: str) -> float:
    """Return an event's time in seconds since 1970."""
    return datetime.fromisoformat(text).timestamp()


def main() -> int:
    """Carry out the cases that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=[*CASES, "healthy"])
    parser.add_argument("--python", default=sys.executable, help="interpreter with torch")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument(
        "--beside", default="", metavar="GPU", help="a process of its own computes on this GPU meanwhile"
    )
    asked = parser.parse_args()
    wrong = 0
    for case in asked.cases:
        began = time.monotonic()
        right, said = carry_out(case, asked.python, asked.ranks, asked.seconds, asked.beside)
        wrong += not right
        print(f"{'ok   ' if right else 'WRONG'} {case} ({time.monotonic() - began:.0f} s): {said}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
