"""Bring a cluster up, from nothing or what died of one, and take it away; a healthy one is left as it is."""

from __future__ import annotations

import secrets
import shlex
import socket
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from rlbox.amounts import exact_duration_text, utc_now
from rlbox.app import App
from rlbox.cluster.checks import BurnInResult, check_nodes, print_findings_raise_if_errors, run_all_reduce_checks
from rlbox.cluster.image import send_or_pull_image_to_nodes
from rlbox.cluster.jobs import call_ray_jobs_api
from rlbox.cluster.node.facts import NodeFacts, RayInstance
from rlbox.cluster.nodes import (
    ClusterContext,
    ClusterProbe,
    ExistingCluster,
    Node,
    choose_ports_and_probe_connections,
    hold_node_locks_raise_if_any_held,
    open_context,
    probe_instances,
)
from rlbox.cluster.plan import (
    ID_LABEL,
    LOCAL,
    NODE_LABEL,
    STRIDE,
    ClusterMember,
    ClusterOptions,
    ClusterPlan,
    PortPlan,
    cluster_directory_relative_to_disk,
    own_plan,
)
from rlbox.cluster.runtime import (
    RAY_DIRECTORY,
    TOKEN_FILE,
    RayState,
    find_member_faults,
    has_tokens,
    query_ray_nodes_or_error,
    read_log_tail,
    start_ray,
    stop_and_remove_ray,
)
from rlbox.cluster.status import ClusterStatus, query_ray_for_cluster_status
from rlbox.engine.connection import require_image
from rlbox.engine.container import ACTIVE_STATES, RUN_LABEL
from rlbox.engine.reference import parse_reference
from rlbox.errors import LockHeld, MachineError, RlboxError, SpecError, TimedOut
from rlbox.findings import join_and_count_rest
from rlbox.i18n import _, translate
from rlbox.system.identity import get_user_name_or_uid

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


def bring_up_or_repair(app: App, options: UpOptions) -> UpResult:
    """Bring a cluster up; where an error is raised, nothing of this call is left."""
    with open_context(app, options) as context, hold_node_locks_raise_if_any_held(context.pool):
        probe = context.probe(options.required_paths)
        cluster = context.find_most_running_own_cluster(probe) if not context.pool.unreached else None
        images: Mapping[str, str] = {}
        if cluster:
            plan, state, names = _plan_repair(cluster)
            if names:
                app.print_status(_("starting again on {nodes}").format(nodes=", ".join(names)))
                __, images = send_or_pull_image_to_nodes(context, plan, options.image)
        else:
            probe = _complete_probe(context, probe, options)
            _require_tokens(context)
            plan, state, names = _plan_cluster(context, probe), RayState(), list(probe.facts)
            identity, images = send_or_pull_image_to_nodes(context, plan, options.image)
            plan = replace(plan, image_digest=identity)
        with _undone_on_error(context, plan, names, is_new=cluster is None):
            if names:
                _write_files(context, plan)
                for name in names:
                    if cluster and (instance := cluster.instances.get(name)):
                        stop_and_remove_ray(context.pool.nodes[name], instance)
                ended = {node.id for node in state.nodes if node.name in names}
                _start_members(context, options, plan, names, images, ended)
            proof = run_all_reduce_checks(context, plan, probe) if options.prove else None
            if proof:
                error_text = _("cluster {plan} does not stand the proof").format(plan=plan.name)
                print_findings_raise_if_errors(app, proof.findings, error_text)
        return UpResult(query_ray_for_cluster_status(context.require_own_cluster()), names, proof)


def dry_run_up(app: App, options: UpOptions) -> int:
    with open_context(app, options) as context:
        probe = context.probe(options.required_paths)
        if cluster := context.find_most_running_own_cluster(probe):
            dead = ", ".join(one.name for one in cluster.plan.members if not cluster.was_found_running_on(one.name))
            text = _("bring back {dead}") if dead else _("leave cluster {name} as it is")
            return app.print_dry_run({"cluster": cluster.plan.as_json()}, "", text.format(dead=dead, name=context.name))
        with app.collecting_refusals_if_dry_run("nodes"):
            probe = _complete_probe(context, probe, options)
        if probe.inplace_nodes != probe.facts.keys():
            with app.collecting_refusals_if_dry_run("image"):
                parse_reference(options.image) if options.image else require_image(context.image.tag, options.target)
        with app.collecting_refusals_if_dry_run("authentication"):
            _require_tokens(context)
        data = {"nodes": {name: one._asdict() for name, one in probe.addresses.items()}}
        lines = [f"{name}: {one.address}, {one.interface}" for name, one in probe.addresses.items()]
        if probe.ports:
            (low, high), base = probe.ports.worker_range, probe.ports.base
            text = _("ports {ports}, workers {workers}")
            lines.append(translate(text.format(ports=f"{base}-{base + STRIDE - 1}", workers=f"{low}-{high}")))
        would = _("start cluster {name} on {nodes}").format(name=context.name, nodes=", ".join(probe.facts))
        return app.print_dry_run(data, "\n".join(lines), would)


def _complete_probe(context: ClusterContext, probe: ClusterProbe, options: UpOptions) -> ClusterProbe:
    probe = choose_ports_and_probe_connections(context, probe, options.first_port or context.target.cluster.port)
    findings = check_nodes(context, probe, options.required_paths, context.pool.unreached)
    print_findings_raise_if_errors(context.app, findings, _("problems on nodes: {count}; nothing was started"))
    return probe


def _require_tokens(context: ClusterContext) -> None:
    if not has_tokens(context.ray_version_or_empty):
        raise SpecError(
            _("Ray {ray} accepts commands from any client: tokens came with 2.52").format(
                ray=context.ray_version_or_empty or "?"
            ),
            where=f"images/{context.options.target}/target.toml: stack",
            next_step=_("ray>=2.52 in the target"),
        )


# ---- a new cluster, and one that exists


def _plan_repair(cluster: ExistingCluster) -> tuple[ClusterPlan, RayState, list[str]]:
    """Return the plan of a cluster, what its Ray says, and what died of it; without its head, all of it."""
    context, probe, plan = cluster.context, cluster.probe, cluster.plan
    head = plan.head
    now, then = list(probe.facts), [member.name for member in plan.members]
    if set(now) != set(then):
        raise MachineError(
            _("cluster {plan} runs on {then}, not on {now}").format(
                plan=plan.name, then=", ".join(then), now=", ".join(now)
            ),
            next_step=_("--nodes {then}; or another --name; or rlbox cluster down first").format(then=",".join(then)),
        )
    until = time.monotonic() + _HEAD_S  # a killed `up` may have started it a moment ago
    while (state := query_ray_nodes_or_error(context.pool.nodes[head.name], plan)).error and time.monotonic() < until:
        if not cluster.was_found_running_on(head.name):
            break
        time.sleep(_POLL_S)
    missing = find_member_faults(plan, state)
    dead = [name for name in then if not cluster.was_found_running_on(name) or name in missing]
    if state.error:
        require_unused(cluster)  # a Ray that does not report its nodes may be one that works
    if head.name in dead or state.error:
        dead = then
    return plan, state, dead


def _plan_cluster(context: ClusterContext, probe: ClusterProbe) -> ClusterPlan:
    members = [
        ClusterMember(
            name=name,
            data=facts.disk.path,
            address=probe.addresses[name].address,
            interface=probe.addresses[name].interface,
            gpus=context.target.hardware.gpus,
            uid=facts.machine.uid,
            identity=facts.machine.identity_until_restart,
            place=facts.installation.directory if facts.installation and name in probe.inplace_nodes else "",
        )
        for name, facts in probe.facts.items()
    ]
    if inplace := [member.name for member in members if member.is_inplace]:
        text = _(
            "without an engine on {nodes}: Ray runs there as processes of yours, with the machine's own limits, "
            "/dev/shm and devices, and with what else its user may read"
        )
        context.app.print_status(text.format(nodes=", ".join(inplace)))
    return ClusterPlan(
        id=secrets.token_hex(4),
        name=context.name,
        target=context.options.target,
        image_digest="",
        ray=context.ray_version_or_empty,
        members=tuple(members),
        ports=cast("PortPlan", probe.ports),
        maker=f"{get_user_name_or_uid()}@{socket.gethostname()}",
        made=utc_now(),
    )


# ---- on the nodes


def _list_instances(node: Node, plan: ClusterPlan) -> list[RayInstance]:
    __, instances = probe_instances(node, leave_out_containers=plan.members_by_name[node.name].is_inplace)
    return [one for one in instances or () if one.labels.get(ID_LABEL) == plan.id]


@contextmanager
def _undone_on_error(
    context: ClusterContext, plan: ClusterPlan, names: Sequence[str], *, is_new: bool
) -> Iterator[None]:
    def undo(node: Node) -> None:
        for one in _list_instances(node, plan):
            stop_and_remove_ray(node, one)
        if is_new:
            paths = [plan.directory_relative_to_disk(node.name)]
            node.call("kill_clusters_list_removed", disk=node.spec.data, paths=paths)

    try:
        yield
    except BaseException:
        __, errors = context.pool.select_skipping_unconnected(names).try_map(undo)
        for name, error in errors.items():
            text = _("of this call something may be left on node {node}: {error}")
            context.app.print_status(text.format(node=name, error=error.what))
        raise


def _write_files(context: ClusterContext, plan: ClusterPlan) -> None:
    """Make the directories of a cluster, with its token: that which its head has, else a new one."""
    head = context.pool.nodes[plan.head.name]
    path = f"{plan.head.data}/{plan.directory_relative_to_disk(head.name)}/{TOKEN_FILE}"
    token = head.run_shell(f"cat {shlex.quote(path)} 2>/dev/null || true").strip() or secrets.token_hex(32)

    def write(node: Node) -> None:
        for name, text in ((f"{RAY_DIRECTORY}/.keep", ""), (TOKEN_FILE, token)):
            path = f"{plan.directory_relative_to_disk(node.name)}/{name}"
            node.call("write_private_file", disk=node.spec.data, path=path, text=text)

    context.pool.map(write)


def _start_members(
    context: ClusterContext,
    options: UpOptions,
    plan: ClusterPlan,
    names: Sequence[str],
    images: Mapping[str, str],
    ended: Collection[str],
) -> None:
    """Start Ray on nodes, the head before the others, and wait until it has every node and GPU of the plan.

    `MachineError` quotes the last lines of a Ray that ended meanwhile; `TimedOut` names the nodes still missing.
    """
    reported, until = time.monotonic(), time.monotonic() + options.limit_s
    head = context.pool.nodes[plan.head.name]
    waiting = [name for name in names if name != head.name]
    _start(context, plan, [name for name in names if name == head.name], images)
    while True:
        time.sleep(_POLL_S)
        state = query_ray_nodes_or_error(head, plan)
        # a worker gives up that asks before Ray has the head itself, which takes long on a busy machine
        if waiting and (head.name not in names or state.find_alive_node(head.name)):
            _start(context, plan, waiting, images)
            waiting = []
        missing = find_member_faults(plan, state, ended)
        if not state.error and not missing:
            return
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
            context.app.print_status(_("waiting for {nodes}").format(nodes=", ".join(missing)))


def _start(context: ClusterContext, plan: ClusterPlan, names: Sequence[str], images: Mapping[str, str]) -> None:
    pool, limits = context.pool.select_skipping_unconnected(names), context.image.container
    __, errors = pool.try_map(lambda node: start_ray(node, plan, limits, images[node.name]))
    if errors:
        raise MachineError(
            _("Ray could not be started\n{lines}").format(
                lines="\n".join(f"  {name}: {error.what}" for name, error in errors.items())
            ),
            next_step=next(iter(errors.values())).next_step,
        )


def _require_running(node: Node, plan: ClusterPlan) -> None:
    for one in _list_instances(node, plan):
        if not one.has_not_ended:
            lines = read_log_tail(node, one, _LAST_LINES).strip().splitlines()
            raise MachineError(
                _("Ray ended on node {member} with exit code {exit_code}\n{quoted}").format(
                    member=node.name, exit_code=one.exit_code, quoted="\n".join(f"  | {line}" for line in lines)
                )
            )


# ---- take it away

_GRACE_S = 5
_DOWN_S = 240.0


def remove_cluster(
    app: App, options: ClusterOptions, *, even_if_in_use: bool = False
) -> tuple[str, dict[str, list[str]]]:
    """Take a cluster away on the nodes that answer; `MachineError` where others do not, `LockHeld` where it is used."""
    with open_context(app, options) as context:
        with hold_node_locks_raise_if_any_held(context.pool):
            probe = context.probe()
            cluster = context.find_most_running_own_cluster(probe)
            if cluster and not even_if_in_use:
                require_unused(cluster)
            gone = context.pool.map(lambda node: _clear_node(context, node, probe.facts[node.name]))
        if context.pool.unreached:
            raise MachineError(
                _("cluster {context} may be left on nodes that cannot be reached{done}\n{lines}").format(
                    context=context.name,
                    done=_("; it is gone from {gone}").format(gone=", ".join(gone)) if gone else "",
                    lines="\n".join(f"  {line}" for line in context.pool.format_unreached()),
                ),
                next_step=_("rlbox cluster down {args}, once they answer").format(args=options.target_and_options_text),
            )
        return context.name, gone


def _clear_node(context: ClusterContext, node: Node, facts: NodeFacts) -> list[str]:
    uid = facts.machine.uid
    own = [one for one in facts.clusters if own_plan(one.labels, context.name, uid)]
    for one in own:
        stop_and_remove_ray(node, one, _GRACE_S)
    names = {node.name, *(one.labels[NODE_LABEL] for one in own)}
    paths = sorted(cluster_directory_relative_to_disk(uid, context.name, name) for name in names)
    removed = node.call("kill_clusters_list_removed", _DOWN_S, disk=node.spec.data, paths=paths)
    return [*(one.name for one in own), *removed]


# ---- what goes on there


def format_run_command_on_head(plan: ClusterPlan, subcommand: str, run_id: str) -> str:
    where = "" if plan.head.name == LOCAL else f"DOCKER_HOST=ssh://{plan.head.name} "
    return f"{where}rlbox {subcommand} {run_id} --target {plan.target} --data {shlex.quote(plan.head.data)}"


def require_unused(cluster: ExistingCluster) -> None:
    """Refuse to end the Ray of a cluster under a job or a run, or where nobody knows of one.

    A cluster whose head has ended has lost its jobs already, and with them what its runs do.
    """
    context, plan = cluster.context, cluster.plan
    option_text = context.options.target_and_options_text
    down = f"rlbox cluster down {option_text} --force"
    head = context.pool.nodes.get(plan.head.name)
    if head and not cluster.was_found_running_on(head.name):
        return
    work: dict[str, str] = {}  # how each of it is stopped
    unknown = "" if head else "its head is not reached"
    try:
        label = f"{ID_LABEL}={plan.id}"
        for row in (
            head.connect_docker_engine().list_all_containers_with_label(label)
            if head and not plan.head.is_inplace
            else ()
        ):
            run = row["Labels"].get(RUN_LABEL, "")
            if run and row.get("State") in ACTIVE_STATES:
                work[f"run {run}"] = format_run_command_on_head(plan, "stop", run)
        for job in call_ray_jobs_api(head, plan) if head else ():
            if not job.has_ended:
                work[f"job {job.id} ({job.entrypoint[:80]})"] = f"rlbox cluster stop {option_text} {job.id}"
    except RlboxError as error:
        unknown = error.what
    if work:
        stop = next(iter(work.values()))
        raise LockHeld(
            _("cluster {plan} is in use: {told}").format(plan=plan.name, told=join_and_count_rest(list(work))),
            where=plan.head.name,
            next_step=_("{stop}, then the same command again; or {down}").format(stop=stop, down=down),
        )
    if unknown:
        raise MachineError(
            _("what goes on on cluster {plan} is not known: {unknown}").format(plan=plan.name, unknown=unknown),
            where=plan.head.name,
            next_step=_("the same command again; or {down}, where nothing of it is needed").format(down=down),
        )
