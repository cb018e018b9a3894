"""Give the nodes of a cluster work whose result is known: each device, each node by itself, and nodes two by two."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlbox.cluster.carry import RayCarrier, carrier_of
from rlbox.cluster.facts import NodeFacts
from rlbox.cluster.judge.proof import DeviceProof, Proof, WayProof, judge_proof
from rlbox.cluster.plan import ClusterPlan
from rlbox.cluster.preflight import problems_text
from rlbox.cluster.story import Story
from rlbox.cluster.survey import askers
from rlbox.errors import NodeError, RlboxError
from rlbox.findings import Finding
from rlbox.i18n import _
from rlbox.system.json_files import parse_json_lines

_PROGRAM = Path(__file__).with_name("inside") / "prove.py"
_LIMIT_S = 180.0
_CPU_RANKS = 2


@dataclass(frozen=True, kw_only=True)
class _Seat:
    """A device of a node that takes part in an all-reduce."""

    node: str
    device: str


class _Prover:
    """The nodes of a cluster that answer, ready for work."""

    def __init__(self, story: Story, plan: ClusterPlan, facts: Mapping[str, NodeFacts]) -> None:
        known = [member for member in plan.members if member.name in story.fleet.links]
        self._plan, self._facts = plan, facts
        self._carriers = {member.name: carrier_of(story.fleet.links[member.name], plan, member) for member in known}

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self._carriers)

    def products(self) -> tuple[tuple[DeviceProof, ...], tuple[str, ...]]:
        """Return what every device did, and the nodes that have no torch."""
        with ThreadPoolExecutor(max(1, len(self._carriers))) as pool:
            found = dict(zip(self._carriers, pool.map(self._product, self._carriers), strict=True))
        missing = tuple(name for name, rows in found.items() if any("missing" in row for row in rows))
        rows = [(name, row) for name, known in found.items() if name not in missing for row in known]
        return tuple(_device(name, row) for name, row in rows), missing

    def _product(self, node: str) -> list[dict[str, Any]]:
        try:
            rows = list(_rows(self._carriers[node], ("product",)))
        except RlboxError as error:
            return [{"said": error.what}]
        return rows or [{"said": "it said nothing"}]

    def reduce(self, seats: Sequence[_Seat]) -> WayProof:
        """Return how an all-reduce went; the first of `seats` is where all others meet."""
        nodes = tuple(dict.fromkeys(seat.node for seat in seats))
        first = self._plan.member(seats[0].node)
        host, told = first.address if first else "", queue.Queue[dict[str, Any] | None]()
        self._start(seats, 0, host, 0, told)
        rows, left = [], 1
        while left:
            row = told.get()
            if row is None:
                left -= 1
            elif "port" in row:
                left += len(seats) - 1
                for rank in range(1, len(seats)):
                    self._start(seats, rank, host, int(row["port"]), told)
            else:
                rows.append(row)
        said = next((str(row["said"]) for row in rows if row.get("said")), "")
        done = [row for row in rows if "bytes_s" in row]
        if not said and len(done) < len(seats):
            said = f"{len(done)} of {len(seats)} ranks came to the end"
        return WayProof(
            nodes=nodes,
            ranks=len(seats),
            bytes_s=min((float(row["bytes_s"]) for row in done), default=0.0),
            wrong=sum(int(row["wrong"]) for row in done),
            said=said,
            speed=self._speed(nodes) if len(nodes) > 1 else 0,
        )

    def _start(self, seats: Sequence[_Seat], rank: int, host: str, port: int, told: queue.Queue[Any]) -> None:
        seat = seats[rank]
        words = ("rank", str(rank), str(len(seats)), seat.device, host, str(port))

        def run() -> None:
            try:
                for row in _rows(self._carriers[seat.node], words):
                    told.put(row)
            except RlboxError as error:
                told.put({"said": f"{seat.node}: {error.what}"})
            told.put(None)

        threading.Thread(target=run, name=f"rank {rank} on {seat.node}", daemon=True).start()

    def _speed(self, nodes: Sequence[str]) -> int:
        """Return the speed of the slower end of a link, 0 where one does not tell."""
        members = [member for member in self._plan.members if member.name in nodes and member.name in self._facts]
        ends = [self._facts[member.name].interface_of(member.address) for member in members]
        return min((end.speed if end else 0 for end in ends), default=0)


def _rows(carrier: RayCarrier, words: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield what the program tells; lines that are none of its own are passed over."""
    return parse_json_lines(carrier.execute(("-I", "-c", _PROGRAM.read_text("utf-8"), f"{_LIMIT_S:g}", *words)))


def _device(node: str, row: Mapping[str, Any]) -> DeviceProof:
    return DeviceProof(
        node=node,
        device=str(row.get("device", "")) or "its stack",
        name=str(row.get("name", "")),
        tflops=float(row.get("tflops", 0.0)),
        wrong=bool(row.get("wrong")),
        said=str(row.get("said", "")),
        free=int(row.get("free", 0)),
        total=int(row.get("total", 0)),
    )


def prove(story: Story, plan: ClusterPlan, facts: Mapping[str, NodeFacts]) -> tuple[Proof, tuple[Finding, ...]]:
    """Return what the nodes of a cluster that answer did, and what of it is not as it should be.

    First every device, all nodes at once; then an all-reduce within each node, one after the other where they share
    nothing but the eye; then over pairs, one at a time, so that no figure is of two: all of a few nodes, of many the
    head with everybody and each with its neighbours.
    """
    prover = _Prover(story, plan, facts)
    story.app.say(f"proving {', '.join(prover.nodes)}: matrix products, then all-reduce")
    devices, missing = prover.products()
    able = [name for name in prover.nodes if name not in missing and _sound(devices, name)]
    seats = {name: [_Seat(node=name, device=one.device) for one in devices if one.node == name] for name in able}
    with ThreadPoolExecutor(max(1, len(able))) as pool:
        within = list(pool.map(prover.reduce, filter(None, (_alone(seats[name]) for name in able))))
    ways = [prover.reduce([*seats[one], *seats[other]]) for one, other in _pairs(able)]
    proof = Proof(devices=devices, ways=(*within, *ways), missing=missing)
    return proof, judge_proof(proof, facts)


def _sound(devices: Sequence[DeviceProof], node: str) -> bool:
    return all(not one.said for one in devices if one.node == node)


def _alone(seats: Sequence[_Seat]) -> list[_Seat]:
    """Return who takes part within a node: all its GPUs, or two on the processor; nobody where there is one GPU."""
    if seats and seats[0].device == "cpu":
        return [seats[0]] * _CPU_RANKS
    return list(seats) if len(seats) > 1 else []


def _pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    found = [(one, other) for other in names for one in askers(names, other)]
    return list(
        dict.fromkeys((one, other) if names.index(one) < names.index(other) else (other, one) for one, other in found)
    )


def require_proof(story: Story, plan: ClusterPlan, facts: Mapping[str, NodeFacts]) -> Proof:
    """Return what the nodes did; `NodeError` names those that did not stand it, with the figure."""
    proof, found = prove(story, plan, facts)
    errors = [one for one in found if one.level == "error"]
    if errors:
        raise NodeError(
            _("cluster {plan} does not stand the proof\n{problems_text}").format(
                plan=plan.name, problems_text=problems_text(found)
            ),
            where=", ".join(one.where for one in errors),
            next_step=errors[0].remedy,
        )
    return proof
