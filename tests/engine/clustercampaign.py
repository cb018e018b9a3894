"""`make nightly ARGS=cluster-campaign/chaos`: many rounds of trouble on a cluster; it goes on where it ended.

`clusterrounds.py` has what is done and what must hold; the table is `docs/internal/cluster-chaos.md`.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "engine")]

import lanes  # noqa: E402
from clusterbox import ENGINES  # noqa: E402
from clusterrounds import WEIGHTS, Played, Rounds, drawn  # noqa: E402
from clusterstand import built  # noqa: E402

TABLE = Path(__file__).resolve().parents[2] / "docs/internal/cluster-chaos.md"
STATE = Path.home() / ".cache/rlbox/lanes/cluster-chaos.jsonl"
LIMITS = {"container": 2.0, "power": 15.0, "cable": 15.0}
Kept = dict[str, Any]


def main() -> int:
    """Play the rounds that are not written down yet, and write the table."""
    parser = argparse.ArgumentParser(prog="clustercampaign", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=18)
    parser.add_argument("--only", nargs="+", default=[*WEIGHTS], choices=[*WEIGHTS], help="rounds of these kinds alone")
    parser.add_argument("--again", action="store_true", help="play those again that did not hold")
    parser.add_argument("--lock", default="", help="a file that is locked for each round, for others on this machine")
    told = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)  # also where a shell had it started aside
    known = kept(told.seed)
    done = {number for number, row in known.items() if row["held"] or not told.again}
    chosen = [number for number in range(1, told.rounds + 1) if drawn(told.seed, number)[0] in told.only]
    left = [number for number in chosen if number not in done]
    print(f"{told.rounds} rounds of seed {told.seed}, {len(left)} of them to play; {STATE}", flush=True)
    clean = True
    if left:
        with tempfile.TemporaryDirectory(prefix="rlc-") as folder:
            clean = campaign(Path(folder), told.seed, left, told.lock)
    rows = [row for number, row in sorted(kept(told.seed).items()) if number <= told.rounds]
    TABLE.write_text(table(rows, told.rounds, told.seed), "utf-8")
    return 0 if clean and len(rows) == told.rounds and all(row["held"] for row in rows) else 1


def campaign(folder: Path, seed: int, left: Sequence[int], lock: str) -> bool:
    """Play rounds on two clusters of their own, which are gone afterwards; return whether nothing of them is left."""
    for name in ("project", "t"):
        (folder / name).mkdir()
    os.environ.setdefault("RLBOX_PROJECT_NAME", "chaos")
    with contextlib.ExitStack() as whole:
        with locked(lock):
            hosts = whole.enter_context(built(folder / "project", ("pair",), TMPDIR=str(folder / "t")))
            rounds = Rounds(hosts=hosts)
            rounds.begin()
        try:
            for number in left:
                with locked(lock):
                    write_down(seed, rounds.play(seed, number))
        finally:
            with locked(lock):
                kept_back = rounds.end()
        print(f"left on the hosts: {kept_back if any(kept_back.values()) else 'nothing'}", flush=True)
    return not any(kept_back.values())


@contextlib.contextmanager
def locked(file: str) -> Iterator[None]:
    """Hold a file's lock; without one it is nobody else's machine."""
    if not file:
        yield
        return
    with open(file, "a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def write_down(seed: int, played: Played) -> None:
    """Append a round to what is kept."""
    origin = lanes.provenance(TABLE).split(", Python")[0]
    row = {**asdict(played), "held": played.held, "seed": seed, "tree": origin, "load": round(os.getloadavg()[0], 1)}
    STATE.parent.mkdir(parents=True, exist_ok=True)
    with STATE.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    said = "held" if played.held else f"WRONG: {'; '.join((*played.wrong, *played.leaks))}"
    print(f"{played.number} {played.deed} {played.node}: {played.seconds} s, {played.theirs}: {said}", flush=True)


def kept(seed: int) -> dict[int, Kept]:
    """Return the rounds that are written down, by number, as they were played last."""
    lines = STATE.read_text("utf-8").splitlines() if STATE.is_file() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return {row["number"]: row for row in rows if row["seed"] == seed}


def table(rows: Sequence[Kept], rounds: int, seed: int) -> str:
    """Return the page."""
    held = sum(row["held"] for row in rows)
    lines = [
        "# Trouble on a cluster of two hosts",
        "",
        f"`make nightly ARGS=cluster-campaign/chaos` wrote this: {len(rows)} of {rounds} rounds of seed {seed},"
        f" {held} held;"
        f" engines: {' and '.join(ENGINES) or 'here'}, where `here` is this machine's.",
        "Each begins and ends with a healthy cluster, whose job is followed meanwhile; a second user's cluster is on",
        "the same hosts. Seconds are from the deed to the report on the screen of who follows the job; of a killed",
        "command line until its programs on the nodes ended. `load` is that of the machine, which others used too.",
        "",
        *(medians(rows)),
        "",
        "| round | what | where | what was said | seconds | second user's job | left | wrong | load | tree |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(line(row) for row in rows),
        "",
    ]
    return "\n".join(lines)


def medians(rows: Sequence[Kept]) -> Iterator[str]:
    """Yield the middle of the times to the report, with what is aimed at."""
    for kind, limit in LIMITS.items():
        found = [row["seconds"] for row in rows if row["deed"].partition(",")[0] == kind and row["report"]]
        if found:
            middle, most = statistics.median(found), max(found)
            yield f"- {kind}: {middle:.1f} s in the middle of {len(found)}, {most:.1f} s at most; aimed at {limit:g} s"


def line(row: Kept) -> str:
    """Return a row of the table."""
    cells = (row["number"], row["deed"], row["node"], row["report"], row["seconds"], row["theirs"])
    ends = ("; ".join(row["leaks"]) or "nothing", "; ".join(row["wrong"]) or "-", row["load"], row["tree"])
    return "| " + " | ".join(str(cell).replace("|", "/") for cell in (*cells, *ends)) + " |"


if __name__ == "__main__":
    sys.exit(main())
