"""`make nightly ARGS=cluster-campaign/chaos`: many rounds of trouble on a cluster; it goes on where it ended.

`clusterrounds.py` has what is done and what must hold; the table is `docs/internal/cluster-chaos.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "engine")]

import lanes  # noqa: E402
from clusterbox import ENGINES  # noqa: E402
from clusterrounds import Played, Rounds  # noqa: E402
from clusterstand import built  # noqa: E402

TABLE = Path(__file__).resolve().parents[2] / "docs/internal/cluster-chaos.md"
STATE = Path.home() / ".cache/rlbox/lanes/cluster-chaos.jsonl"


def main() -> int:
    """Play the rounds that are not written down yet, and write the table."""
    parser = argparse.ArgumentParser(prog="clustercampaign", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=18)
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)  # also where a shell had it started aside
    done = read_rounds(options.seed)
    left = [number for number in range(1, options.rounds + 1) if number not in done]
    print(f"{options.rounds} rounds of seed {options.seed}, {len(left)} of them to play; {STATE}", flush=True)
    is_clean = play_rounds(options.seed, left) if left else True
    rows = [row for number, row in sorted(read_rounds(options.seed).items()) if number <= options.rounds]
    TABLE.write_text(format_page(rows, options.rounds, options.seed), "utf-8")
    return 0 if is_clean and len(rows) == options.rounds and all(row["held"] for row in rows) else 1


def play_rounds(seed: int, numbers: Sequence[int]) -> bool:
    """Play rounds on two clusters of their own, which are gone afterwards; return whether nothing of them is left."""
    os.environ.setdefault("RLBOX_PROJECT_NAME", "chaos")
    with tempfile.TemporaryDirectory(prefix="rlc-") as folder:
        project, temporary = Path(folder, "project"), Path(folder, "t")
        project.mkdir()
        temporary.mkdir()
        with built(project, ("pair",), TMPDIR=str(temporary)) as hosts:
            rounds = Rounds(hosts=hosts)
            rounds.begin()
            try:
                for number in numbers:
                    write_round(seed, rounds.play(seed, number))
            finally:
                left = rounds.end()
    print(f"left on the hosts: {left if any(left.values()) else 'nothing'}", flush=True)
    return not any(left.values())


def write_round(seed: int, played: Played) -> None:
    origin = lanes.provenance(TABLE).split(", Python")[0]
    row = {**asdict(played), "held": played.held, "seed": seed, "tree": origin}
    STATE.parent.mkdir(parents=True, exist_ok=True)
    with STATE.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    said = "held" if played.held else f"WRONG: {'; '.join((*played.wrong, *played.leaks))}"
    print(f"{played.number} {played.deed} {played.node}: {played.seconds} s, {played.theirs}: {said}", flush=True)


def read_rounds(seed: int) -> dict[int, dict[str, Any]]:
    """Return the rounds that are written down, by number, as they were played last."""
    lines = STATE.read_text("utf-8").splitlines() if STATE.is_file() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return {row["number"]: row for row in rows if row["seed"] == seed}


def format_page(rows: Sequence[dict[str, Any]], rounds: int, seed: int) -> str:
    held = sum(row["held"] for row in rows)
    lines = [
        "# Trouble on a cluster of two hosts",
        "",
        f"`make nightly ARGS=cluster-campaign/chaos` wrote this: {len(rows)} of {rounds} rounds of seed {seed},"
        f" {held} held; engines: {' and '.join(ENGINES) or 'here'}, where `here` is this machine's.",
        "Each begins and ends with a healthy cluster, whose job is followed meanwhile; a second user's cluster is on",
        "the same hosts. Seconds are from the deed to the report on the screen of who follows the job; of a killed",
        "command line until its programs on the nodes ended.",
        "",
        "| round | what | where | what was said | seconds | second user's job | left | wrong | tree |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = (row["number"], row["deed"], row["node"], row["report"], row["seconds"], row["theirs"])
        ends = ("; ".join(row["leaks"]) or "nothing", "; ".join(row["wrong"]) or "-", row["tree"])
        lines.append("| " + " | ".join(str(cell).replace("|", "/") for cell in (*cells, *ends)) + " |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
