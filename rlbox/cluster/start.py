"""Start the Ray of all nodes at once, wait until it has every node and GPU, or leave nothing of this call."""

from __future__ import annotations

import queue
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlbox.amounts import limit_text
from rlbox.cluster.connection import NodeConnection
from rlbox.cluster.context import ClusterContext
from rlbox.cluster.facts import NodeFacts
from rlbox.cluster.fleet import Fleet
from rlbox.cluster.image_sync import (
    GzipSource,
    RegistryImage,
    Sending,
    SentImage,
    image_here,
    keep_as,
    pull_image,
    send_image,
    unpacks_zstd,
)
from rlbox.cluster.plan import ClusterPlan, folder_of, rules_name
from rlbox.cluster.ray_runtime import (
    CERTIFICATE_FILES,
    RECORD_FILE,
    TOKEN_FILE,
    RayRuntime,
    Started,
    container_name,
    create_runtime,
    list_ray_processes,
)
from rlbox.cluster.ray_state import RayState, lacking, read_state
from rlbox.cluster.survey import Survey
from rlbox.engine.connection import require_image
from rlbox.errors import EngineError, NodeError, RlboxError, SpecError, TimedOut
from rlbox.i18n import _
from rlbox.system.command import check_command
from rlbox.system.progress import show_progress
from rlbox.values import Command, Secret

_STEPS = (
    "req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=rlbox-cluster -keyout ca.key -out ca.crt",
    "req -newkey rsa:2048 -nodes -subj /CN=rlbox-node -keyout node.key -out node.csr",
    "x509 -req -in node.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -extfile names -out node.crt",
)


def make_token() -> dict[str, Secret]:
    """Return a new token, by the name of its file."""
    return {TOKEN_FILE: Secret(secrets.token_hex(32))}


def make_certificates(addresses: Iterable[str]) -> dict[str, Secret]:
    """Return an authority's certificate, and a certificate with key for all nodes; the authority's key is gone then.

    Raises
    ------
    NodeError
        This machine has no openssl.
    """
    if shutil.which("openssl") is None:
        raise NodeError(
            _("there is no openssl on PATH, which makes the cluster's certificates"), next_step=_("install openssl")
        )
    names = ",".join(f"IP:{address}" for address in dict.fromkeys(("127.0.0.1", *addresses)))
    with tempfile.TemporaryDirectory(prefix="rlbox-keys-") as text:
        folder = Path(text)
        (folder / "names").write_text(f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n", "utf-8")
        for words in _STEPS:
            step = Command(argv=("openssl", *words.split()), cwd=text, timeout_s=60.0)
            check_command(step, "openssl cannot make certificates")
        return {name: Secret((folder / name).read_text("utf-8")) for name in CERTIFICATE_FILES}


def callers_of(survey: Survey) -> dict[str, str]:
    """Return `uid:gid` of the user on each node."""
    return {name: f"{facts.uid}:{facts.gid}" for name, facts in survey.facts.items()}


def bring_image(
    context: ClusterContext,
    survey: Survey,
    port: int,
    plan: ClusterPlan | None = None,
    image: RegistryImage | None = None,
) -> tuple[str, dict[str, str]]:
    """Return the image's identity, and what each node's engine calls it, once all have the very same.

    Nodes without an engine have a place at the image's lock, as was asked before; its checksum stands for the image.

    Parameters
    ----------
    image
        Where nodes that lack it pull it themselves; None: it is sent from here.
    """
    here = {name for name in survey.facts if _is_here(survey, plan, name)}
    locks = dict.fromkeys(here, context.image.lock_checksum)
    if here == set(survey.facts):
        _require_made_with(context, plan, context.image.lock_checksum)
        return context.image.lock_checksum, locks
    engines = {name: facts for name, facts in survey.facts.items() if name not in here}
    if image:
        identity = _pulled(context, engines, plan, image)
    else:
        identity = _sent(context, survey, engines, plan, port)
    links = Fleet({name: context.fleet.links[name] for name in engines}, ())
    rows = links.ask("image", image=context.image.tag)
    return identity, {**locks, **{name: str(row["image"]["id"]) for name, row in rows.items()}}


def _pulled(
    context: ClusterContext, engines: Mapping[str, NodeFacts], plan: ClusterPlan | None, image: RegistryImage
) -> str:
    _require_made_with(context, plan, image.identity)
    if lacking := _lack(engines, image):
        old = [name for name in lacking if image.zstd and not unpacks_zstd(engines[name].engine.version)]
        if old:
            raise EngineError(
                _("the engine of {old} cannot unpack zstd, by which layers of {pinned} are packed").format(
                    old=", ".join(old), pinned=image.pinned
                ),
                where=f"Docker {engines[old[0]].engine.version}",
                next_step=_("without --from it is sent from here, packed by gzip"),
            )
        with show_progress(context.app) as tell:
            pull_image(context.fleet, lacking, image, keep_as(context.image.tag), tell)
    return image.identity


def _sent(
    context: ClusterContext, survey: Survey, engines: Mapping[str, NodeFacts], plan: ClusterPlan | None, port: int
) -> str:
    image = require_image(context.image.tag, context.options.target)
    seats = {name: seat.address for name, seat in survey.seats.items()}
    seats |= {member.name: member.address for member in plan.members} if plan else {}
    with image_here(context.image.tag, image) as (source, sent):
        _require_made_with(context, plan, sent.identity)
        packed = GzipSource(source, sent) if _have_old(engines) else None
        if _lack(engines, sent, packed.known() if packed else None):
            with show_progress(context.app) as tell:
                sending = Sending(
                    image=packed.image(tell) if packed else sent,
                    source=packed or source,
                    keep=keep_as(context.image.tag),
                    folder=lambda node: folder_of(survey.facts[node].uid, context.name, node),
                    tell=tell,
                )
                if lacking := _lack(engines, sent, sending.image):
                    send_image(context.fleet, lacking, sending, seats, port)
        return sent.identity


def _have_old(engines: Mapping[str, NodeFacts]) -> bool:
    """Whether one cannot unpack zstd: then all are given gzip, so that layers leave this machine once."""
    return not all(unpacks_zstd(facts.engine.version) for facts in engines.values())


def _lack(engines: Mapping[str, NodeFacts], *forms: SentImage | RegistryImage | None) -> list[str]:
    """Return the nodes that have the image in none of its forms."""
    names = {name for form in forms if form for name in form.names}
    return [name for name, facts in engines.items() if _id_of(facts.image) not in names]


def _is_here(survey: Survey, plan: ClusterPlan | None, name: str) -> bool:
    member = plan.member(name) if plan else None
    return member.here if member else survey.here(name)


def _require_made_with(context: ClusterContext, plan: ClusterPlan | None, identity: str) -> None:
    if plan and plan.image != identity:
        raise SpecError(
            _("cluster {plan} was started with another image of {target} than this machine has now").format(
                plan=plan.name, target=plan.target
            ),
            next_step=_("rlbox cluster down {words}, then the same command again").format(
                words=context.options.option_text
            ),
        )


def _id_of(image: Mapping[str, Any] | None) -> str:
    return str((image or {}).get("id", ""))


_STATE = Path(__file__).with_name("inside") / "ray_state.py"
_POLL_S, _SHOWN_S = 0.5, 10.0
_LAST_LINES = 12
_UNDO_S = 330.0


@contextmanager
def rollback_on_error(
    fleet: Fleet, plan: ClusterPlan, names: Iterable[str], say: Callable[[str], None], *, mount: str, new: bool
) -> Iterator[str]:
    """Yield the name of a call whose work on `names` goes unless the block comes to its end.

    Each node remembers it by itself: it goes also when this process is killed, or the connection breaks. A node that
    cannot undo it is named.
    """
    call, known = secrets.token_hex(8), set(names)
    rules = rules_name(plan.id) if new and plan.closed == "tls" else ""

    def guard(link: NodeConnection) -> None:
        if link.name in known:
            path, member = plan.folder(link.name) if new else "", plan.member(link.name)
            here = bool(member and member.here)
            link.ask("guard", call=call, disk=link.options.data, path=path, rules=rules, mount=mount, here=here)

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

    def close(link: NodeConnection) -> None:
        if link.name in known:
            link.ask("close-ports", rules=rules_name(plan.id), ports=ports, sources=sources)

    fleet.each(close)


def write_files(fleet: Fleet, plan: ClusterPlan, keys: Mapping[str, Secret], callers: Mapping[str, str]) -> None:
    """Write a cluster's keys and its record on every node, for its owner alone."""

    def write(link: NodeConnection) -> None:
        owner = _owner(callers[link.name])
        folder = plan.folder(link.name)
        texts = {**{name: key.reveal() for name, key in keys.items()}, RECORD_FILE: plan.text()}
        for name, text in texts.items():
            link.ask("write", disk=link.options.data, path=f"{folder}/{name}", text=text, mode=0o600, owner=owner)

    fleet.each(write)


def start_members(fleet: Fleet, started: Started, names: Iterable[str], call: str) -> None:
    """Start the Ray of the nodes `names`, all at once; every failure is told."""
    known = set(names)

    def start(link: NodeConnection) -> None:
        member = started.plan.member(link.name)
        if member and link.name in known:
            create_runtime(link, started.plan, member).start(started, call)

    __, failed = fleet.tried(start)
    if failed:
        lines = "\n".join(f"  {name}: {error.what}" for name, error in failed.items())
        first = next(iter(failed.values()))
        raise NodeError(_("Ray could not be started\n{lines}").format(lines=lines), next_step=first.next_step)


def mark_replaced(fleet: Fleet, started: Started, containers: Mapping[str, str]) -> None:
    """End lives of Ray on nodes, by id, that are to be started anew; what they wrote stays."""

    def end(link: NodeConnection) -> None:
        if link.name in containers:
            link.ask(
                "retire",
                containers=[containers[link.name]],
                grace=0,
                mount=started.limits.mount,
                disk=link.options.data,
                path=started.plan.folder(link.name),
                owner=_owner(started.callers[link.name]),
            )

    fleet.each(end)


def _owner(caller: str) -> list[int]:
    return [int(one) for one in caller.split(":")]


class RayStateWatcher:
    """What Ray says of its nodes, heard from a program in the head's container until it has all of them."""

    def __init__(self, head: NodeConnection, plan: ClusterPlan, limit_s: float, old: frozenset[str]) -> None:
        self._states: queue.Queue[RayState] = queue.Queue()
        self.state = RayState(said="Ray was not asked yet")
        wanted = (f"{member.name}={member.gpus}" for member in plan.members)
        words = (*_asks(plan, limit_s), *wanted, *(f"-{life}" for life in sorted(old)))
        threading.Thread(target=self._listen, args=(create_runtime(head, plan, plan.head), words), daemon=True).start()

    def _listen(self, head: RayRuntime, words: tuple[str, ...]) -> None:
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


def ask_state(head: NodeConnection, plan: ClusterPlan) -> RayState:
    """Return what Ray says now, or why it cannot be asked."""
    try:
        lines = list(create_runtime(head, plan, plan.head).execute(_asks(plan, 0)))
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
    watch = RayStateWatcher(fleet.links[plan.head.name], plan, limit_s, old)
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
    found = fleet.each(lambda link: list_ray_processes(link, plan))
    for member in plan.members:
        rows = [row for row in found.get(member.name, ()) if row["name"] == container_name(plan)]
        if rows and rows[0]["status"] in ("exited", "dead"):
            carrier = create_runtime(fleet.links[member.name], plan, member)
            lines = carrier.output(rows[0]["id"], _LAST_LINES).strip().splitlines()
            quoted = "\n".join(f"  | {line}" for line in lines)
            raise NodeError(
                _("Ray ended on node {member} with exit code {exit_code}\n{quoted}").format(
                    member=member.name, exit_code=rows[0]["exit_code"], quoted=quoted
                )
            )
