"""Bring a cluster up: from nothing, or what died of one that exists; a healthy one is left as it is."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from rlbox.amounts import exact_duration_text, utc_now
from rlbox.app import App
from rlbox.cluster.burn_in import BurnInResult, run_burn_in_or_raise
from rlbox.cluster.checks import check_nodes, print_findings_raise_if_errors
from rlbox.cluster.connection import Node, lock_nodes
from rlbox.cluster.context import (
    ClusterContext,
    ClusterProbe,
    ExistingCluster,
    open_context,
    plan_ports,
    probe_instances,
    probe_ports_and_connections,
)
from rlbox.cluster.down import require_unused
from rlbox.cluster.image import bring_image_to_nodes
from rlbox.cluster.node.facts import RayInstance
from rlbox.cluster.plan import BASE, ID_LABEL, STRIDE, ClusterMember, ClusterOptions, ClusterPlan, PortPlan
from rlbox.cluster.runtime import (
    RAY_DIRECTORY,
    TOKEN_FILE,
    RayState,
    find_member_faults,
    has_tokens,
    query_ray_nodes,
    read_log_tail,
    start_ray,
    stop_ray,
)
from rlbox.cluster.status import ClusterStatus, create_status
from rlbox.engine.connection import require_image
from rlbox.engine.reference import parse_reference
from rlbox.errors import NodeError, SpecError, TimedOut
from rlbox.foreign import parse_digits
from rlbox.i18n import _
from rlbox.system.identity import get_user_name_or_uid
from rlbox.values import Secret

_POLL_S, _REPORT_S, _HEAD_S = 1.0, 10.0, 60.0
_LAST_LINES = 12


@dataclass(frozen=True, kw_only=True)
class UpOptions(ClusterOptions):
    first_port: int = 0
    prove: bool = False
    limit_s: float = 300.0
    required_paths: tuple[str, ...] = ()
    image: str = ""


class UpResult(NamedTuple):
    """The cluster, healthy; on which nodes Ray was started, and what they did for proof, None without it."""

    status: ClusterStatus
    started: Sequence[str]
    proof: BurnInResult | None

    def as_json(self) -> dict[str, Any]:
        proof = self.proof.as_json() if self.proof else None
        return {**self.status.as_json(), "started": list(self.started), "proof": proof}

    def text(self) -> str:
        return "\n".join(filter(None, (self.status.text(), self.proof.all_reduce_table() if self.proof else "")))


def bring_up(app: App, options: UpOptions) -> UpResult:
    """Bring a cluster up; where an error is raised, nothing of this call is left."""
    with open_context(app, options) as context, lock_nodes(context.pool):
        probe = context.probe(options.required_paths)
        cluster = context.find_largest_own_cluster(probe) if not context.pool.unreached else None
        if cluster:
            return _repair(context, options, probe, cluster)
        return _create(context, options, _complete_probe(context, probe, options))


def dry_run_up(app: App, options: UpOptions) -> int:
    with open_context(app, options) as context:
        probe = context.probe(options.required_paths)
        if cluster := context.find_largest_own_cluster(probe):
            dead = [member.name for member in cluster.plan.members if not cluster.was_found_running_on(member.name)]
            would = f"bring back {', '.join(dead)}" if dead else f"leave cluster {context.name} as it is"
            return app.print_dry_run({"cluster": cluster.plan.as_json()}, "", would)
        with app.collecting_refusals_if_dry_run("nodes"):
            probe = _complete_probe(context, probe, options)
        if not all(map(probe.is_node_inplace, probe.facts)):
            with app.collecting_refusals_if_dry_run("image"):
                parse_reference(options.image) if options.image else require_image(context.image.tag, options.target)
        with app.collecting_refusals_if_dry_run("authentication"):
            _require_tokens(context)
        data = {"nodes": {name: one._asdict() for name, one in probe.addresses.items()}}
        lines = [f"{name}: {one.address}, {one.interface}" for name, one in probe.addresses.items()]
        if probe.ports:
            first, last = probe.ports.worker_range
            lines.append(f"ports {probe.ports.base}-{probe.ports.base + STRIDE - 1}, workers {first}-{last}")
        return app.print_dry_run(data, "\n".join(lines), f"start cluster {context.name} on {', '.join(probe.facts)}")


def _complete_probe(context: ClusterContext, probe: ClusterProbe, options: UpOptions) -> ClusterProbe:
    base = options.first_port or context.target.cluster.port
    first = parse_digits(context.target.env.get("RLBOX_RAY_PORT", "")) or BASE
    probe = probe_ports_and_connections(context.pool, probe, plan_ports(probe, context.name, base, first))
    findings = check_nodes(context, probe, options.required_paths, context.pool.unreached)
    print_findings_raise_if_errors(context.app, findings)
    return probe


def _require_tokens(context: ClusterContext) -> None:
    if not has_tokens(context.ray_version):
        raise SpecError(
            _("Ray {ray} accepts commands from any client: tokens came with 2.52").format(
                ray=context.ray_version or _("of an unknown version")
            ),
            where=f"images/{context.options.target}/target.toml: stack",
            next_step=_("ray>=2.52 in the target"),
        )


# ---- a new cluster, and one that exists


def _create(context: ClusterContext, options: UpOptions, probe: ClusterProbe) -> UpResult:
    _require_tokens(context)
    identity, images = bring_image_to_nodes(context, probe, None, options.image)
    plan = _plan_cluster(context, probe, identity)
    inplace = [member.name for member in plan.members if member.is_inplace]
    if inplace:
        context.app.print_status(
            f"without an engine on {', '.join(inplace)}: Ray runs there as processes of yours, with the machine's "
            "own limits, /dev/shm and devices, and with what else its user may read"
        )
    names = [member.name for member in plan.members]
    with _undone_on_error(context, plan, names, is_new=True):
        _write_files(context, plan, Secret(secrets.token_hex(32)))
        state = _start_members(context, options, plan, names, images, set())
        return _prove(context, options, probe, plan, state, names)


def _repair(context: ClusterContext, options: UpOptions, probe: ClusterProbe, cluster: ExistingCluster) -> UpResult:
    """Bring back what died of a cluster; without its head, all of it."""
    plan, head = cluster.plan, cluster.plan.head
    now, then = [spec.name for spec in context.specs], [member.name for member in plan.members]
    if set(now) != set(then):
        raise NodeError(
            _("cluster {plan} runs on {then}, not on {now}").format(
                plan=plan.name, then=", ".join(then), now=", ".join(now)
            ),
            next_step=_("--nodes {then}; or another --name; or rlbox cluster down first").format(then=",".join(then)),
        )
    until = time.monotonic() + _HEAD_S  # a killed `up` may have started it a moment ago
    while (state := query_ray_nodes(context.pool.nodes[head.name], plan)).error and time.monotonic() < until:
        if not cluster.was_found_running_on(head.name):
            break
        time.sleep(_POLL_S)
    missing = find_member_faults(plan, state)
    dead = [one.name for one in plan.members if not cluster.was_found_running_on(one.name) or one.name in missing]
    if dead:
        if state.error:
            require_unused(context, cluster)  # a Ray that does not report its nodes may be one that works
        if head.name in dead or state.error:
            dead = [member.name for member in plan.members]
        plan = plan.with_identities({name: probe.facts[name].machine.identity_until_restart for name in dead})
        context.app.print_status(f"starting again on {', '.join(dead)}")
        __, images = bring_image_to_nodes(context, probe, plan, options.image)
        ended = {node.id for node in state.nodes if node.name in dead}
        with _undone_on_error(context, plan, dead, is_new=False):
            _write_files(context, plan, _read_token(context, plan))
            for name in dead:
                if instance := cluster.instances.get(name):
                    stop_ray(context.pool.nodes[name], instance)
            state = _start_members(context, options, plan, dead, images, ended)
    return _prove(context, options, probe, plan, state, dead)


def _prove(
    context: ClusterContext,
    options: UpOptions,
    probe: ClusterProbe,
    plan: ClusterPlan,
    state: RayState,
    started: Sequence[str],
) -> UpResult:
    proof = run_burn_in_or_raise(context, plan, probe.facts) if options.prove else None
    disks = {name: facts.disk.free for name, facts in probe.facts.items()}
    status = create_status(plan, state, dict.fromkeys(probe.facts, "running"), disks)
    return UpResult(status, started, proof)


def _plan_cluster(context: ClusterContext, probe: ClusterProbe, identity: str) -> ClusterPlan:
    members = [
        ClusterMember(
            name=name,
            data=probe.spec(name).data,
            address=probe.addresses[name].address,
            interface=probe.addresses[name].interface,
            gpus=context.target.hardware.gpus,
            uid=facts.machine.uid,
            identity=facts.machine.identity_until_restart,
            place=facts.installation.directory if facts.installation and probe.is_node_inplace(name) else "",
        )
        for name, facts in probe.facts.items()
    ]
    return ClusterPlan(
        id=secrets.token_hex(4),
        name=context.name,
        target=context.options.target,
        image_digest=identity,
        ray=context.ray_version,
        members=tuple(members),
        ports=cast("PortPlan", probe.ports),
        maker=f"{get_user_name_or_uid()}@{socket.gethostname()}",
        made=utc_now(),
    )


# ---- on the nodes


def _list_instances(node: Node, plan: ClusterPlan) -> list[RayInstance]:
    member = next(member for member in plan.members if member.name == node.name)
    report = probe_instances(node, leave_out_containers=member.is_inplace)
    return [one for one in report.instances or () if one.labels.get(ID_LABEL) == plan.id]


@contextmanager
def _undone_on_error(
    context: ClusterContext, plan: ClusterPlan, names: Sequence[str], *, is_new: bool
) -> Iterator[None]:
    def undo(node: Node) -> None:
        own = _list_instances(node, plan)
        for one in own:
            stop_ray(node, one)
        if is_new:
            paths = [plan.directory_relative_to_disk(node.name)]
            arguments = {"disk": node.spec.data, "paths": paths, "remove_empty_cache_dirs": bool(own)}
            node.call("kill_and_remove_clusters", **arguments)

    try:
        yield
    except BaseException:
        __, errors = context.pool.select_skipping_unconnected(names).try_map(undo)
        for name, error in errors.items():
            context.app.print_status(f"of this call something may be left on node {name}: {error.what}")
        raise


def _write_files(context: ClusterContext, plan: ClusterPlan, token: Secret) -> None:
    texts = {f"{RAY_DIRECTORY}/.keep": "", TOKEN_FILE: token.reveal()}

    def write(node: Node) -> None:
        for name, text in texts.items():
            path = f"{plan.directory_relative_to_disk(node.name)}/{name}"
            node.call("write_private_file", disk=node.spec.data, path=path, text=text)

    context.pool.map(write)


def _read_token(context: ClusterContext, plan: ClusterPlan) -> Secret:
    """Return the token of a cluster from the first node that has it; a new one where none does."""
    for member in plan.members:
        path = f"{plan.directory_relative_to_disk(member.name)}/{TOKEN_FILE}"
        if text := context.pool.nodes[member.name].call("read_disk_text_or_empty", disk=member.data, path=path):
            return Secret(str(text))
    return Secret(secrets.token_hex(32))


def _start_members(
    context: ClusterContext,
    options: UpOptions,
    plan: ClusterPlan,
    names: Sequence[str],
    images: Mapping[str, str],
    ended: Collection[str],
) -> RayState:
    """Start Ray on nodes, the head before the others, and wait until it has every node and GPU of the plan.

    `NodeError` quotes the last lines of a Ray that ended meanwhile; `TimedOut` names the nodes that are missing still.
    """
    reported = time.monotonic()
    until = reported + options.limit_s
    head = context.pool.nodes[plan.head.name]
    waiting = [name for name in names if name != head.name]
    _start(context, plan, [name for name in names if name == head.name], images)
    while True:
        time.sleep(_POLL_S)
        state = query_ray_nodes(head, plan)
        # a worker gives up that asks before Ray has the head itself, which takes long on a busy machine
        if waiting and (head.name not in names or state.find_alive_node(head.name)):
            _start(context, plan, waiting, images)
            waiting = []
        missing = find_member_faults(plan, state, ended)
        if not state.error and not missing:
            return RayState(nodes=tuple(node for node in state.nodes if node.id not in ended))
        context.pool.map(lambda node: _require_running(node, plan))
        if time.monotonic() > until:
            raise TimedOut(
                _("Ray has not got every node after {limit_s}{said}\n{lines}").format(
                    limit_s=exact_duration_text(options.limit_s),
                    said=f" ({state.error})" if state.error else "",
                    lines="\n".join(f"  {name}: {why}" for name, why in missing.items()),
                )
            )
        if time.monotonic() - reported > _REPORT_S:
            reported = time.monotonic()
            context.app.print_status(f"waiting for {', '.join(missing)}")


def _start(context: ClusterContext, plan: ClusterPlan, names: Sequence[str], images: Mapping[str, str]) -> None:
    members, limits = {member.name: member for member in plan.members}, context.image.container
    pool = context.pool.select_skipping_unconnected(names)
    __, errors = pool.try_map(lambda node: start_ray(node, plan, members[node.name], limits, images[node.name]))
    if errors:
        raise NodeError(
            _("Ray could not be started\n{lines}").format(
                lines="\n".join(f"  {name}: {error.what}" for name, error in errors.items())
            ),
            next_step=next(iter(errors.values())).next_step,
        )


def _require_running(node: Node, plan: ClusterPlan) -> None:
    for one in _list_instances(node, plan):
        if not one.has_not_ended:
            lines = read_log_tail(node, one, _LAST_LINES).strip().splitlines()
            raise NodeError(
                _("Ray ended on node {member} with exit code {exit_code}\n{quoted}").format(
                    member=node.name, exit_code=one.exit_code, quoted="\n".join(f"  | {line}" for line in lines)
                )
            )
