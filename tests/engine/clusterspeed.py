"""`make nightly ARGS=cluster-campaign/speed`: a cluster's start and a look at many hosts, beside what is typed.

It writes `docs/internal/cluster-speed.md`; nothing else may use the machine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "engine")]

import lanes  # noqa: E402
from clusterbox import LAB, Hosts  # noqa: E402
from clusterstand import built  # noqa: E402
from manynodes import COUNT, NODES, bare, dropped, many_up, through_the_gate  # noqa: E402

TABLE = Path(__file__).resolve().parents[2] / "docs/internal/cluster-speed.md"
RUN = "docker run -d --name by-hand --network=host --shm-size=512m --entrypoint=sleep {image} infinity >/dev/null"
RAY = "docker exec by-hand /opt/venv/bin/ray start {words} --disable-usage-stats"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Times of one thing by rlbox and by hand, in seconds and in turn, and the ratio that is aimed at."""

    what: str
    by_hand: str
    aim: float
    ours: tuple[float, ...]
    hand: tuple[float, ...]
    load: float

    @property
    def ratio(self) -> float:
        """The middle of the ratios of neighbours."""
        return statistics.median(one / other for one, other in zip(self.ours, self.hand, strict=True))

    def row(self) -> str:
        ours, hand = statistics.median(self.ours), statistics.median(self.hand)
        cells = (self.what, self.by_hand, f"{ours:.1f}", f"{hand:.1f}", f"{self.ratio:.2f}", f"{self.aim:.2f}")
        return "| " + " | ".join((*cells, str(len(self.ours)), f"{self.load:.1f}")) + " |"


def in_turn(
    what: str, by_hand: str, aim: float, rounds: int, ways: tuple[Callable[[], object], Callable[[], object]]
) -> Pair:
    """Time both ways in turn; which is first changes each time."""
    load, times = os.getloadavg()[0], {0: list[float](), 1: list[float]()}
    for number in range(rounds):
        for way in (0, 1) if number % 2 else (1, 0):
            began = time.monotonic()
            ways[way]()
            took = time.monotonic() - began
            times[way].append(took)
            print(f"{what}: {'by hand' if way else 'rlbox'} {took:.1f} s", flush=True)
    return Pair(what=what, by_hand=by_hand, aim=aim, ours=tuple(times[0]), hand=tuple(times[1]), load=load)


def starts(folder: Path, rounds: int) -> Iterator[Pair]:
    """Time the start of a cluster of two hosts that have the image."""
    with built(folder, ("pair",)) as hosts:
        _taken(hosts, "up", "--json")
        _taken(hosts, "down")
        image = f"rlbox/pair:{os.environ['RLBOX_PROJECT_NAME']}"
        net = os.environ.get("CLUSTER_HOSTS_NET", "10.234.9")
        head = RAY.format(words=f"--head --node-ip-address={net}.11 --port=6399")
        worker = RAY.format(words=f"--node-ip-address={net}.12 --address={net}.11:6399")

        def by_hand() -> None:
            for host, ray in (("node0", head), ("node1", worker)):
                _ssh(host, f"{RUN.format(image=image)} && {ray}")

        def ours() -> None:
            _taken(hosts, "up", "--json")

        def clean(do: Callable[[], None], undo: Callable[[], object]) -> float:
            began = time.monotonic()
            do()
            took = time.monotonic() - began
            undo()
            return took

        def remove() -> None:
            for host in ("node0", "node1"):
                _ssh(host, "docker rm -f by-hand >/dev/null")

        load, mine, hand = os.getloadavg()[0], list[float](), list[float]()
        for number in range(rounds):
            ways = [(mine, ours, lambda: _taken(hosts, "down")), (hand, by_hand, remove)]
            for times, do, undo in ways if number % 2 else ways[::-1]:
                times.append(clean(do, undo))
            print(f"start: rlbox {mine[-1]:.1f} s, by hand {hand[-1]:.1f} s", flush=True)
        yield Pair(
            what="`cluster up`, two hosts that have the image",
            by_hand="`docker run` and `ray start` over ssh, the head and then the worker",
            aim=0.85,
            ours=tuple(mine),
            hand=tuple(hand),
            load=load,
        )


def looks(folder: Path, rounds: int) -> Iterator[Pair]:
    """Time what is asked of many hosts, directly and through one."""
    with many_up(folder) as hosts:
        for what, config in (("directly", ""), ("through one jump host", through_the_gate(folder))):
            way = {"CLUSTER_HOSTS_SSH": config} if config else {}

            def doctor(way: dict[str, str] = way) -> None:
                done = hosts("cluster", "doctor", "many", "--json", **way)
                assert done.code == 0, done.out + done.err
                assert json.loads(done.out)["nodes"] == COUNT

            def log_in(config: str = config) -> None:
                bare(NODES, config)

            yield in_turn(
                f"`cluster doctor` of {COUNT} hosts, {what}",
                f"{COUNT} `ssh NODE true`, eight at once",
                2.0,
                rounds,
                (doctor, log_in),
            )
        assert dropped() == []


def _taken(hosts: Hosts, *words: str) -> None:
    done = hosts("cluster", words[0], "pair", *words[1:])
    assert done.code == 0, done.err


def _ssh(host: str, command: str) -> None:
    subprocess.run([LAB / "bin/ssh", host, command], check=True, capture_output=True)


def table(pairs: Sequence[Pair]) -> str:
    """Return the page."""
    lines = [
        "# A cluster's start and a look at many hosts, beside what is typed by hand",
        "",
        f"`make nightly ARGS=cluster-campaign/speed` wrote this: {lanes.provenance(TABLE)}.",
        "Seconds are medians, both ways in turn; `load` is that of the machine as it began.",
        "",
        "| what | by hand | rlbox, s | by hand, s | ratio | aimed at | rounds | load |",
        "|---|---|---|---|---|---|---|---|",
        *(pair.row() for pair in pairs),
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    """Measure, write the table; 1 where something is slower than aimed at."""
    parser = argparse.ArgumentParser(prog="clusterspeed", description=__doc__)
    parser.add_argument("what", nargs="*", choices=["starts", "looks", []], help="these alone")
    parser.add_argument("--rounds", type=int, default=5)
    told = parser.parse_args()
    os.environ.setdefault("RLBOX_PROJECT_NAME", "speed")
    found: list[Pair] = []
    for name, measure in (("starts", starts), ("looks", looks)):
        if not told.what or name in told.what:
            with tempfile.TemporaryDirectory(prefix="rls-") as folder:
                found += measure(Path(folder), told.rounds)
    TABLE.write_text(table(found), "utf-8")
    print(TABLE.read_text("utf-8"))
    return int(any(pair.ratio > pair.aim for pair in found))


if __name__ == "__main__":
    sys.exit(main())
