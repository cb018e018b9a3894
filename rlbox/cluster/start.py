"""Start the containers of a cluster at once, wait until Ray has every node and GPU, or leave nothing of this call."""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rlbox.amounts import limit_text
from rlbox.cluster.carry import RayCarrier, Started, carrier_of, lives_of
from rlbox.cluster.labels import rules_name
from rlbox.cluster.plan import ClusterPlan
from rlbox.cluster.ray import RECORD_FILE, container_name
from rlbox.cluster.reach.fleet import Fleet
from rlbox.cluster.reach.link import NodeLink
from rlbox.cluster.state import RayState, lacking, read_state
from rlbox.errors import NodeError, RlboxError, TimedOut
from rlbox.i18n import _
from rlbox.values import Secret

_STATE = Path(__file__).with_name("inside") / "ray_state.py"
_POLL_S, _SHOWN_S = 0.5, 10.0
_LAST_LINES = 12
_UNDO_S = 330.0


@contextmanager
def undone(
    fleet: Fleet, plan: ClusterPlan, names: Iterable[str], say: Callable[[str], None], *, mount: str, new: bool
) -> Iterator[str]:
    """Yield the name of a call whose work on `names` goes unless the block comes to its end.

    Each node remembers it by itself: it goes also when this process is killed, or the connection breaks. A node that
    cannot undo it is named.
    """
    call, known = secrets.token_hex(8), set(names)
    rules = rules_name(plan.id) if new and plan.closed == "tls" else ""

    def guard(link: NodeLink) -> None:
        if link.name in known:
            path, member = plan.folder(link.name) if new else "", plan.member(link.name)
            here = bool(member and member.here)
            link.ask("guard", call=call, disk=link.wish.data, path=path, rules=rules, mount=mount, here=here)

    fleet.each(guard)
    try:
        yield call
    except BaseException:
        __, failed = fleet.tried(lambda link: link.ask("undo", _UNDO_S, call=call) if link.name in known else {})
        for name, error in failed.items():
            say(f"of this call something may be left on node {name}: {error.what}")
        raise
    fleet.each(lambda link: link.ask("commit", call=call) if link.name in known else {})


def close_nodes(fleet: Fleet, plan: ClusterPlan, names: Iterable[str]) -> None:
    """Let only the cluster's nodes connect to its ports."""
    known = set(names)
    ports = [[plan.ports.base, plan.ports.base + 19], list(plan.ports.worker_range)]
    sources = [member.address for member in plan.members]

    def close(link: NodeLink) -> None:
        if link.name in known:
            link.ask("close-ports", rules=rules_name(plan.id), ports=ports, sources=sources)

    fleet.each(close)


def write_files(fleet: Fleet, plan: ClusterPlan, keys: Mapping[str, Secret], callers: Mapping[str, str]) -> None:
    """Write a cluster's keys and its record on every node, for its owner alone."""

    def write(link: NodeLink) -> None:
        owner = _owner(callers[link.name])
        folder = plan.folder(link.name)
        texts = {**{name: key.reveal() for name, key in keys.items()}, RECORD_FILE: plan.text()}
        for name, text in texts.items():
            link.ask("write", disk=link.wish.data, path=f"{folder}/{name}", text=text, mode=0o600, owner=owner)

    fleet.each(write)


def start_members(fleet: Fleet, started: Started, names: Iterable[str], call: str) -> None:
    """Start the Ray of the nodes `names`, all at once; every failure is told."""
    known = set(names)

    def start(link: NodeLink) -> None:
        member = started.plan.member(link.name)
        if member and link.name in known:
            carrier_of(link, started.plan, member).start(started, call)

    __, failed = fleet.tried(start)
    if failed:
        lines = "\n".join(f"  {name}: {error.what}" for name, error in failed.items())
        first = next(iter(failed.values()))
        raise NodeError(_("Ray could not be started\n{lines}").format(lines=lines), next_step=first.next_step)


def retire(fleet: Fleet, started: Started, containers: Mapping[str, str]) -> None:
    """End lives of Ray on nodes, by id, that are to be started anew; what they wrote stays."""

    def end(link: NodeLink) -> None:
        if link.name in containers:
            link.ask(
                "retire",
                containers=[containers[link.name]],
                grace=0,
                mount=started.limits.mount,
                disk=link.wish.data,
                path=started.plan.folder(link.name),
                owner=_owner(started.callers[link.name]),
            )

    fleet.each(end)


def _owner(caller: str) -> list[int]:
    return [int(one) for one in caller.split(":")]


class StateWatch:
    """What Ray says of its nodes, heard from a program in the head's container until it has all of them."""

    def __init__(self, head: NodeLink, plan: ClusterPlan, limit_s: float, old: frozenset[str]) -> None:
        self._states: queue.Queue[RayState] = queue.Queue()
        self.state = RayState(said="Ray was not asked yet")
        wanted = (f"{member.name}={member.gpus}" for member in plan.members)
        words = (*_asks(plan, limit_s), *wanted, *(f"-{life}" for life in sorted(old)))
        threading.Thread(target=self._listen, args=(carrier_of(head, plan, plan.head), words), daemon=True).start()

    def _listen(self, head: RayCarrier, words: tuple[str, ...]) -> None:
        try:
            for line in head.execute(words):
                self._states.put(read_state(line))
        except RlboxError as error:
            self._states.put(RayState(said=error.what))

    def wait(self, timeout_s: float) -> RayState:
        """Return the newest state, after waiting for news for a while."""
        try:
            self.state = self._states.get(timeout=timeout_s)
        except queue.Empty:
            return self.state
        return self.state


def _asks(plan: ClusterPlan, limit_s: float) -> tuple[str, ...]:
    gcs = f"{plan.head.address}:{plan.ports.of('gcs')}"
    return ("-I", "-c", _STATE.read_text("utf-8"), gcs, f"{limit_s:g}")


def ask_state(head: NodeLink, plan: ClusterPlan) -> RayState:
    """Return what Ray says now, or why it cannot be asked."""
    try:
        lines = list(carrier_of(head, plan, plan.head).execute(_asks(plan, 0)))
    except RlboxError as error:
        return RayState(said=error.what)
    return read_state(lines[-1]) if lines else RayState(said="Ray's head does not run, or does not answer")


def wait_alive(
    fleet: Fleet, plan: ClusterPlan, limit_s: float, say: Callable[[str], None], old: frozenset[str] = frozenset()
) -> RayState:
    """Wait until Ray has every node and GPU of the plan, and none of the lives `old`, which were ended before.

    Raises
    ------
    NodeError
        A container ended meanwhile; its last lines are quoted.
    TimedOut
        Nodes are missing still; they are named, with what is known of them.
    """
    watch = StateWatch(fleet.links[plan.head.name], plan, limit_s, old)
    began = shown = time.monotonic()
    while True:
        state = watch.wait(_POLL_S)
        missing = lacking(plan, state)
        if not state.said and not missing:
            return state
        _require_running(fleet, plan)
        now = time.monotonic()
        if now - began > limit_s:
            lines = "\n".join(f"  {name}: {why}" for name, why in missing.items())
            said = f" ({state.said})" if state.said else ""
            raise TimedOut(
                _("Ray has not got every node after {limit_s}{said}\n{lines}").format(
                    limit_s=limit_text(limit_s), said=said, lines=lines
                )
            )
        if now - shown > _SHOWN_S:
            shown = now
            say(f"waiting for {', '.join(missing)}")


def _require_running(fleet: Fleet, plan: ClusterPlan) -> None:
    """Raise `NodeError` when the Ray of a node has ended, with what it said last."""
    found = fleet.each(lambda link: lives_of(link, plan))
    for member in plan.members:
        rows = [row for row in found.get(member.name, ()) if row["name"] == container_name(plan)]
        if rows and rows[0]["status"] in ("exited", "dead"):
            carrier = carrier_of(fleet.links[member.name], plan, member)
            lines = carrier.output(rows[0]["id"], _LAST_LINES).strip().splitlines()
            quoted = "\n".join(f"  | {line}" for line in lines)
            raise NodeError(
                _("Ray ended on node {member} with exit code {exit_code}\n{quoted}").format(
                    member=member.name, exit_code=rows[0]["exit_code"], quoted=quoted
                )
            )
