"""Bring a cluster up: from nothing, or what died of one that exists; a healthy one is left as it is."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from rlbox.amounts import columns, limit_text, utc_now
from rlbox.app import App
from rlbox.cluster.burn_in import BurnInResult, require_burn_in
from rlbox.cluster.checks import check_installation, check_nodes, raise_findings
from rlbox.cluster.connection import Node
from rlbox.cluster.context import ClusterContext, RunningCluster, open_context
from rlbox.cluster.down import remove_instances, require_unused
from rlbox.cluster.facts import read_instances
from rlbox.cluster.image import RegistryImage, bring_image, find_in_registry
from rlbox.cluster.options import UpOptions
from rlbox.cluster.plan import BASE, ID_LABEL, STRIDE, ClusterMember, ClusterPlan
from rlbox.cluster.pool import get_maker, lock_nodes
from rlbox.cluster.probe import ClusterProbe, plan_ports, probe_ports
from rlbox.cluster.ray_state import RayState, ask_state, find_missing
from rlbox.cluster.runtime import RAY_DIRECTORY, TOKEN_FILE, container_name, create_runtime, has_tokens
from rlbox.cluster.status import ClusterStatus, create_status
from rlbox.engine.connection import require_image
from rlbox.errors import NodeError, SpecError, TimedOut
from rlbox.foreign import whole_number
from rlbox.i18n import _
from rlbox.values import Secret

_POLL_S, _REPORT_S = 1.0, 10.0
_LAST_LINES = 12


@dataclass(frozen=True, kw_only=True)
class UpResult:
    """The cluster, healthy; on which nodes Ray was started, and what they did for proof, None without it."""

    status: ClusterStatus
    started: tuple[str, ...] = ()
    proof: BurnInResult | None = None


def bring_up(app: App, options: UpOptions) -> UpResult:
    """Bring a cluster up.

    Raises
    ------
    NodeError
        Something is wrong with nodes, all of it shown, or Ray failed on one; nothing of this call is left.
    LockHeld
        Another call changes clusters on one of the nodes.
    TimedOut
        Ray has not got every node in time.
    """
    with open_context(app, options) as context, lock_nodes(context.pool):
        probe = context.probe(options.paths)
        cluster = context.find_cluster(probe) if not context.pool.unreached else None
        start = _Start(context=context, options=options, probe=probe)
        return start.repair(cluster) if cluster else start.create()


def dry_run_up(app: App, options: UpOptions) -> int:
    """Say what would be started, and what is refused; return the exit code of a dry run."""
    with open_context(app, options) as context:
        probe = context.probe(options.paths)
        if cluster := context.find_cluster(probe):
            dead = [member.name for member in cluster.plan.members if not cluster.is_running(member.name)]
            would = f"bring back {', '.join(dead)}" if dead else f"leave cluster {context.name} as it is"
            return app.planned({"cluster": cluster.plan.as_json()}, "", would)
        with app.checking("nodes"):
            probe = _complete_probe(context, probe, options)
        if not all(map(probe.is_inplace, probe.facts)):
            with app.checking("image"):
                _find_image(options) or require_image(context.image.tag, options.target)
        with app.checking("strangers"):
            _choose_protection(context, options)
        data = {"nodes": {name: asdict(one) for name, one in probe.addresses.items()}}
        would = f"start cluster {context.name} on {', '.join(probe.facts)}"
        return app.planned(data, _format_addresses(probe), would)


def _format_addresses(probe: ClusterProbe) -> str:
    if probe.ports is None:
        return ""
    rows = [(name, one.address, one.interface) for name, one in probe.addresses.items()]
    first, last = probe.ports.worker_range
    ports = f"ports {probe.ports.base}-{probe.ports.base + STRIDE - 1}, workers {first}-{last}"
    return "\n".join([*columns([("node", "address", "interface"), *rows]), ports])


def _complete_probe(context: ClusterContext, probe: ClusterProbe, options: UpOptions) -> ClusterProbe:
    """Return the probe with addresses and ports of all nodes; `NodeError` when something is wrong with them."""
    base = options.port or context.target.cluster.port
    first = whole_number(context.target.env.get("RLBOX_RAY_PORT", "")) or BASE
    probe = probe_ports(context.pool, probe, plan_ports(probe, context.name, base, first))
    raise_findings(context.app, check_nodes(probe, context.needs(tuple(options.paths)), context.pool.unreached))
    return probe


def _find_image(options: UpOptions) -> RegistryImage | None:
    """Return the image of a registry that is named, None where it is that of this machine."""
    return find_in_registry(options.image, options.target, plain_http=options.plain_http) if options.image else None


def _choose_protection(context: ClusterContext, options: UpOptions) -> str:
    """Return what keeps strangers out: token, or nothing where that was asked for; `SpecError` where it was not."""
    if has_tokens(context.ray):
        return "token"
    if options.open or context.target.run.open:
        context.app.say("open: whoever reaches the nodes' ports runs code there; it is recorded with the cluster")
        return "nothing"
    raise SpecError(
        _("Ray {ray} takes commands of anybody: tokens came with 2.52").format(
            ray=context.ray or _("of an unknown version")
        ),
        where=f"images/{options.target}/target.toml: stack",
        next_step=_(
            "ray>=2.52 in the target; or --allow-unauthenticated on a network that only the nodes reach; it is recorded"
        ),
    )


@dataclass(kw_only=True)
class _Start:
    """One call of `up`, whose locks are held."""

    context: ClusterContext
    options: UpOptions
    probe: ClusterProbe

    def create(self) -> UpResult:
        """Start a new cluster."""
        context, options = self.context, self.options
        self.probe = _complete_probe(context, self.probe, options)
        identity, images = bring_image(context, self.probe, None, _find_image(options))
        plan = self._plan(identity, _choose_protection(context, options))
        inplace = [member.name for member in plan.members if member.is_inplace]
        if inplace:
            context.app.say(
                f"without an engine on {', '.join(inplace)}: Ray runs there as processes of yours, with the machine's "
                "own limits, /dev/shm and devices, and with what else its user may read"
            )
        token = Secret(secrets.token_hex(32)) if plan.protection == "token" else None
        names = [member.name for member in plan.members]
        with self._undone_on_error(plan, names, is_new=True):
            self._write_files(plan, token)
            state = self._start_members(plan, names, images, set())
            proof = require_burn_in(context, plan, self.probe.facts) if options.prove else None
        return self._result(plan, state, names, proof)

    def repair(self, cluster: RunningCluster) -> UpResult:
        """Bring back what died of a cluster; without its head, all of it."""
        context, plan = self.context, cluster.plan
        self._require_same_nodes(plan)
        state = ask_state(context.pool.nodes[plan.head.name], plan)
        missing = find_missing(plan, state)
        dead = [one.name for one in plan.members if not cluster.is_running(one.name) or one.name in missing]
        if not dead:
            proof = require_burn_in(context, plan, self.probe.facts) if self.options.prove else None
            return self._result(plan, state, [], proof)
        if state.said:
            require_unused(context, cluster)  # a Ray that does not report its nodes may be one that works
        if plan.head.name in dead or state.said:
            dead = [member.name for member in plan.members]
        plan = plan.renewed({name: facts.identity for name, facts in self.probe.facts.items() if name in dead})
        self._check_installations(plan)
        context.app.say(f"starting again on {', '.join(dead)}")
        __, images = bring_image(context, self.probe, plan, _find_image(self.options))
        with self._undone_on_error(plan, dead, is_new=False):
            self._write_files(plan, self._read_token(plan))
            self.context.pool.select(dead).map(lambda node: self._end_instance(cluster, node))
            ended = {node.id for node in state.nodes if node.name in dead}
            state = self._start_members(plan, dead, images, ended)
        proof = require_burn_in(context, plan, self.probe.facts) if self.options.prove else None
        return self._result(plan, state, dead, proof)

    def _result(self, plan: ClusterPlan, state: RayState, names: list[str], proof: BurnInResult | None) -> UpResult:
        disks = {name: facts.disk.free for name, facts in self.probe.facts.items()}
        status = create_status(plan, state, dict.fromkeys(self.probe.facts, "running"), disks)
        return UpResult(status=status, started=tuple(names), proof=proof)

    # ---- the plan

    def _plan(self, identity: str, protection: str) -> ClusterPlan:
        if self.probe.ports is None:
            raise NodeError(_("the nodes were not asked for their ports"))
        return ClusterPlan(
            id=secrets.token_hex(4),
            name=self.context.name,
            target=self.options.target,
            image_digest=identity,
            ray=self.context.ray,
            members=tuple(map(self._member, self.probe.facts)),
            ports=self.probe.ports,
            protection=protection,
            maker=get_maker(),
            made=utc_now(),
        )

    def _member(self, name: str) -> ClusterMember:
        facts, address = self.probe.facts[name], self.probe.addresses[name]
        place = facts.installation.own if facts.installation and self.probe.is_inplace(name) else ""
        return ClusterMember(
            name=name,
            data=self.probe.spec(name).data,
            address=address.address,
            interface=address.interface,
            gpus=self.context.target.hardware.gpus,
            uid=facts.uid,
            identity=facts.identity,
            place=place,
        )

    def _require_same_nodes(self, plan: ClusterPlan) -> None:
        now, then = [spec.name for spec in self.context.specs], [member.name for member in plan.members]
        if set(now) != set(then):
            raise NodeError(
                _("cluster {plan} stands on {then}, not on {now}").format(
                    plan=plan.name, then=", ".join(then), now=", ".join(now)
                ),
                next_step=_("--nodes {then}; or another --name; or rlbox cluster down first").format(
                    then=",".join(then)
                ),
            )

    def _check_installations(self, plan: ClusterPlan) -> None:
        """Refuse to bring back processes where the target is no longer what the cluster was made with."""
        for member in plan.members:
            if member.is_inplace and member.name in self.probe.facts:
                found = self.probe.facts[member.name].installation
                findings = check_installation(member.name, found, member.data, self.context.needs())
                raise_findings(self.context.app, tuple(findings))

    # ---- on the nodes

    @contextmanager
    def _undone_on_error(self, plan: ClusterPlan, names: Sequence[str], *, is_new: bool) -> Iterator[None]:
        """Take away from nodes what the block started there unless it comes to its end."""

        inplace = {member.name for member in plan.members if member.is_inplace}

        def undo(node: Node) -> None:
            here = node.name in inplace
            rows = node.call("clusters", disk=node.spec.data, here=here).get("clusters", ())
            own = [one for one in read_instances(rows) if one.labels.get(ID_LABEL) == plan.id]
            remove_instances(node, own, 0)
            if is_new:
                node.call("clear", disk=node.spec.data, paths=[plan.directory(node.name)], containers=bool(own))

        try:
            yield
        except BaseException:
            __, errors = self.context.pool.select(names).try_map(undo)
            for name, error in errors.items():
                self.context.app.say(f"of this call something may be left on node {name}: {error.what}")
            raise

    def _write_files(self, plan: ClusterPlan, token: Secret | None) -> None:
        """Write the token on every node, for its owner alone, and make the directory of Ray's sessions."""
        texts = {f"{RAY_DIRECTORY}/.keep": ""}
        texts |= {TOKEN_FILE: token.reveal()} if token else {}

        def write(node: Node) -> None:
            owner, directory = [node.machine["uid"], node.machine["gid"]], plan.directory(node.name)
            for name, text in texts.items():
                node.call("write", disk=node.spec.data, path=f"{directory}/{name}", text=text, owner=owner)

        self.context.pool.map(write)

    def _read_token(self, plan: ClusterPlan) -> Secret | None:
        """Return the token of a cluster from the first node that has it; a new one where none does."""
        for member in plan.members if plan.protection == "token" else ():
            path = f"{plan.directory(member.name)}/{TOKEN_FILE}"
            text = self.context.pool.nodes[member.name].call("read", disk=member.data, path=path)["text"]
            if text:
                return Secret(str(text))
        return Secret(secrets.token_hex(32)) if plan.protection == "token" else None

    def _end_instance(self, cluster: RunningCluster, node: Node) -> None:
        """End an instance of Ray that is to be started anew; its logs stay."""
        if instance := cluster.instances.get(node.name):
            remove_instances(node, [instance], 0)

    def _start_members(
        self, plan: ClusterPlan, names: list[str], images: Mapping[str, str], ended: Collection[str]
    ) -> RayState:
        """Start Ray on nodes, the head before the others, and wait until it has every node and GPU of the plan.

        Raises
        ------
        NodeError
            A container ended meanwhile; its last lines are quoted.
        TimedOut
            Nodes are missing still; they are named, with what is known of them.
        """
        reported = time.monotonic()
        until = reported + self.options.limit_s
        head, waiting = self.context.pool.nodes[plan.head.name], [name for name in names if name != plan.head.name]
        if head.name in names:
            self._start([head.name], plan, images)
        while True:
            time.sleep(_POLL_S)
            state = ask_state(head, plan)
            # a worker gives up that asks before Ray has the head itself, which takes long on a busy machine
            if waiting and (head.name not in names or state.find_alive(head.name)):
                self._start(waiting, plan, images)
                waiting = []
            missing = find_missing(plan, state, ended)
            if not state.said and not missing:
                return RayState(nodes=tuple(node for node in state.nodes if node.id not in ended))
            self._require_running(plan)
            if time.monotonic() > until:
                lines = "\n".join(f"  {name}: {why}" for name, why in missing.items())
                said = f" ({state.said})" if state.said else ""
                raise TimedOut(
                    _("Ray has not got every node after {limit_s}{said}\n{lines}").format(
                        limit_s=limit_text(self.options.limit_s), said=said, lines=lines
                    )
                )
            if time.monotonic() - reported > _REPORT_S:
                reported = time.monotonic()
                self.context.app.say(f"waiting for {', '.join(missing)}")

    def _start(self, names: list[str], plan: ClusterPlan, images: Mapping[str, str]) -> None:
        def start(node: Node) -> None:
            member = plan.member(node.name)
            if member:
                create_runtime(node, plan, member).start(self.context.image.container, images[node.name])

        __, errors = self.context.pool.select(names).try_map(start)
        if errors:
            lines = "\n".join(f"  {name}: {error.what}" for name, error in errors.items())
            raise NodeError(
                _("Ray could not be started\n{lines}").format(lines=lines),
                next_step=next(iter(errors.values())).next_step,
            )

    def _require_running(self, plan: ClusterPlan) -> None:
        """Raise `NodeError` when the Ray of a node has ended, with what it said last."""

        def find(node: Node) -> None:
            member = plan.member(node.name)
            if member is None:
                return
            rows = node.call("clusters", disk=member.data, here=member.is_inplace).get("clusters", ())
            ended = [one for one in read_instances(rows) if one.name == container_name(plan) and not one.is_running]
            if ended:
                text = create_runtime(node, plan, member).read_log_tail(ended[0].id, _LAST_LINES)
                quoted = "\n".join(f"  | {line}" for line in text.strip().splitlines())
                raise NodeError(
                    _("Ray ended on node {member} with exit code {exit_code}\n{quoted}").format(
                        member=node.name, exit_code=ended[0].exit_code, quoted=quoted
                    )
                )

        self.context.pool.map(find)


def format_result(result: UpResult) -> tuple[dict[str, Any], str]:
    """Return the result as JSON types, and in words."""
    proof = result.proof
    data = {**result.status.as_json(), "started": list(result.started), "proof": proof.as_json() if proof else None}
    return data, "\n".join(filter(None, (result.status.text(), proof.text() if proof else "")))
