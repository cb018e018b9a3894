"""Bring a cluster up: from nothing, or what died of one that stands; a healthy one is left as it is."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rlbox.amounts import columns, utc_now
from rlbox.app import App
from rlbox.cluster.burn_in import BurnInResult, require_burn_in
from rlbox.cluster.context import ClusterContext, RunningCluster, open_context, raise_findings
from rlbox.cluster.fleet import held, maker
from rlbox.cluster.image_sync import RegistryImage, find_in_registry
from rlbox.cluster.in_use import require_unused
from rlbox.cluster.listeners import require_declared_listeners
from rlbox.cluster.node_checks import place_problems
from rlbox.cluster.options import ClusterOptions
from rlbox.cluster.plan import BASE, STRIDE, ClusterMember, ClusterPlan
from rlbox.cluster.preflight import check_survey
from rlbox.cluster.ray_runtime import CERTIFICATE_FILES, TOKEN_FILE, Started, has_tokens
from rlbox.cluster.ray_state import RayState, lacking
from rlbox.cluster.start import (
    ask_state,
    bring_image,
    callers_of,
    close_nodes,
    make_certificates,
    make_token,
    mark_replaced,
    rollback_on_error,
    start_members,
    wait_alive,
    write_files,
)
from rlbox.cluster.status import ClusterStatus, status_of
from rlbox.cluster.survey import Survey, plan_ports, probe_ports, probe_ways
from rlbox.engine.connection import require_image
from rlbox.errors import NodeError, SpecError
from rlbox.foreign import whole_number
from rlbox.i18n import _
from rlbox.values import Secret

START_S = 300.0

_Up = tuple[ClusterPlan, RayState, tuple[str, ...], BurnInResult | None]


@dataclass(frozen=True, kw_only=True)
class UpOptions(ClusterOptions):
    """How a cluster is to come up: the first of its ports (0: the first that fit), whether it may be open.

    With `prove` its nodes are given work whose result is known. `image` names one of a registry, which the nodes pull.
    """

    port: int = 0
    open: bool = False
    prove: bool = False
    limit_s: float = START_S
    paths: tuple[str, ...] = ()
    image: str = ""
    plain_http: bool = False


def bring_up(app: App, options: UpOptions) -> tuple[ClusterStatus, tuple[str, ...], BurnInResult | None]:
    """Return the cluster, up and healthy, the nodes that this call started Ray on, and what they did for proof.

    Raises
    ------
    NodeError
        Something is wrong with nodes, all of it told, or one of them failed while Ray was started; nothing of this
        call is left.
    LockHeld
        Another call changes clusters on one of the nodes.
    TimedOut
        Ray has not got every node in time.
    """
    with open_context(app, options) as context, held(context.fleet, f"rlbox cluster up {options.target}"):
        survey = context.survey(options.paths)
        standing = context.standing(survey) if not context.fleet.unreached else None
        if standing:
            plan, state, started, proof = _heal(context, survey, standing, options)
        else:
            plan, state, started, proof = _begin(context, complete_survey(context, survey, options), options)
        disks = {name: facts.disk.free for name, facts in survey.facts.items()}
        return status_of(plan, state, dict.fromkeys(survey.facts, "running"), disks), started, proof


def dry_run_up(app: App, options: UpOptions) -> int:
    """Say what would be started, and what is refused; return the exit code of a dry run."""
    with open_context(app, options) as context:
        survey = context.survey(options.paths)
        standing = context.standing(survey)
        if standing:
            dead = [member.name for member in standing.plan.members if not standing.going(member.name)]
            would = f"bring back {', '.join(dead)}" if dead else f"leave cluster {context.name} as it is"
            return app.planned({"cluster": plan_json(standing.plan)}, "", would)
        with app.checking("nodes"):
            survey = complete_survey(context, survey, options)
        if not all(map(survey.here, survey.facts)):
            with app.checking("image"):
                _named(options) or require_image(context.image.tag, options.target)
        with app.checking("strangers"):
            _closed(context, survey, options)
        data = {"nodes": {name: asdict(seat) for name, seat in survey.seats.items()}}
        return app.planned(data, _seats_text(survey), f"start cluster {context.name} on {', '.join(survey.facts)}")


def _seats_text(survey: Survey) -> str:
    """Return where the nodes and ports of a cluster would be; nothing when something is wrong with them."""
    if survey.ports is None:
        return ""
    rows = [(name, seat.address, seat.interface) for name, seat in survey.seats.items()]
    first, last = survey.ports.worker_range
    ports = f"ports {survey.ports.base}-{survey.ports.base + STRIDE - 1}, workers {first}-{last}"
    return "\n".join([*columns([("node", "address", "interface"), *rows]), ports])


def complete_survey(context: ClusterContext, survey: Survey, options: UpOptions) -> Survey:
    """Return the survey with places and ports of all nodes; `NodeError` when something is wrong with them."""
    survey = probe_ways(context.fleet, survey)
    base = options.port or context.target.cluster.port
    first = whole_number(context.target.env.get("RLBOX_RAY_PORT", "")) or BASE
    survey = probe_ports(context.fleet, survey, plan_ports(survey, context.name, base, first))
    raise_findings(context.app, check_survey(survey, context.needs(tuple(options.paths)), context.fleet.unreached))
    return survey


def _begin(context: ClusterContext, survey: Survey, options: UpOptions) -> _Up:
    """Start a new cluster."""
    port = survey.ports.of("parts") if survey.ports else 0
    identity, images = bring_image(context, survey, port, image=_named(options))
    plan = _plan(context, survey, identity, _closed(context, survey, options))
    _say_here(context, plan)
    callers = callers_of(survey)
    everything, mount = [member.name for member in plan.members], context.image.container.mount
    with rollback_on_error(context.fleet, plan, everything, context.app.say, mount=mount, new=True) as call:
        write_files(context.fleet, plan, _new_keys(plan), callers)
        if plan.closed == "tls":
            close_nodes(context.fleet, plan, everything)
        started = Started(plan=plan, limits=context.image.container, images=images, callers=callers)
        start_members(context.fleet, started, everything, call)
        state = wait_alive(context.fleet, plan, options.limit_s, context.app.say)
        require_declared_listeners(context.fleet, plan, survey.facts)
        proof = require_burn_in(context, plan, survey.facts) if options.prove else None
    return plan, state, tuple(everything), proof


def _heal(context: ClusterContext, survey: Survey, standing: RunningCluster, options: UpOptions) -> _Up:
    """Bring back what died of a cluster; without its head, all of it."""
    plan = standing.plan
    _require_same(context, plan)
    state = ask_state(context.fleet.links[plan.head.name], plan)
    dead = [m.name for m in plan.members if not standing.going(m.name) or m.name in lacking(plan, state)]
    if not dead:
        require_declared_listeners(context.fleet, plan, survey.facts)
        return plan, state, (), require_burn_in(context, plan, survey.facts) if options.prove else None
    if state.said:
        require_unused(context, standing)  # a Ray that does not tell of its nodes may be one that works
    if plan.head.name in dead or state.said:
        dead = [member.name for member in plan.members]
    plan = plan.renewed({name: survey.facts[name].identity for name in dead if name in survey.facts})
    _require_places(context, survey, plan)
    context.app.say(f"starting again on {', '.join(dead)}")
    __, images = bring_image(context, survey, plan.ports.of("parts"), plan, _named(options))
    callers, mount = callers_of(survey), context.image.container.mount
    with rollback_on_error(context.fleet, plan, dead, context.app.say, mount=mount, new=False) as call:
        write_files(context.fleet, plan, _known_keys(context, plan), callers)
        if plan.closed == "tls":
            close_nodes(context.fleet, plan, dead)
        started = Started(plan=plan, limits=context.image.container, images=images, callers=callers)
        mark_replaced(
            context.fleet, started, {name: one.id for name, one in standing.containers.items() if name in dead}
        )
        start_members(context.fleet, started, dead, call)
        state = wait_alive(context.fleet, plan, options.limit_s, context.app.say, state.lives(dead))
    proof = require_burn_in(context, plan, survey.facts) if options.prove else None
    return plan, state, tuple(dead), proof


def _named(options: UpOptions) -> RegistryImage | None:
    """Return the image of a registry that is named, None where it is that of this machine."""
    return find_in_registry(options.image, options.target, plain_http=options.plain_http) if options.image else None


def _require_same(context: ClusterContext, plan: ClusterPlan) -> None:
    """Refuse to bring back a cluster of other nodes than those that are named now."""
    now, then = [options.name for options in context.wishes], [member.name for member in plan.members]
    if set(now) != set(then):
        raise NodeError(
            _("cluster {plan} stands on {then}, not on {now}").format(
                plan=plan.name, then=", ".join(then), now=", ".join(now)
            ),
            next_step=_("--nodes {then}; or another --name; or rlbox cluster down first").format(then=",".join(then)),
        )


def _say_here(context: ClusterContext, plan: ClusterPlan) -> None:
    """Say once what a node without an engine cannot give."""
    here = [member.name for member in plan.members if member.here]
    if here:
        context.app.say(
            f"without an engine on {', '.join(here)}: Ray runs there as processes of yours, with the machine's own "
            "limits, /dev/shm and devices, and with what else its user may read"
        )


def _require_places(context: ClusterContext, survey: Survey, plan: ClusterPlan) -> None:
    """Refuse to bring back processes where the target is no longer what the cluster was made with."""
    for member in plan.members:
        if member.here and member.name in survey.facts:
            place = survey.facts[member.name].place
            raise_findings(context.app, tuple(place_problems(member.name, place, member.data, context.needs())))


def _closed(context: ClusterContext, survey: Survey, options: UpOptions) -> str:
    """Return what keeps strangers out; `SpecError` where nothing does, and nobody said that it may be so."""
    if has_tokens(context.ray):
        return "token"
    without = [name for name, facts in survey.facts.items() if not facts.rights.tool]
    if not without:
        return "tls"
    if options.open or context.target.run.open:
        context.app.say("open: whoever reaches the nodes' ports runs code there; it is recorded with the cluster")
        return "nothing"
    raise SpecError(
        _(
            "Ray {ray} takes commands of anybody: tokens came with 2.52, and its ports cannot be "
            "closed on {without}, where this user makes no rules for the network"
        ).format(ray=context.ray or _("of an unknown version"), without=", ".join(without)),
        next_step=_(
            "log in there as root, or --allow-unauthenticated, on a network that only the nodes reach; it is recorded"
        ),
    )


def _plan(context: ClusterContext, survey: Survey, identity: str, closed: str) -> ClusterPlan:
    ports = survey.ports
    if ports is None:
        raise NodeError(_("the nodes were not asked for their ports"))
    return ClusterPlan(
        id=secrets.token_hex(4),
        name=context.name,
        target=context.options.target,
        image=identity,
        ray=context.ray,
        members=tuple(_member(context, survey, name) for name in survey.facts),
        ports=ports,
        closed=closed,
        maker=maker(),
        made=utc_now(),
    )


def _member(context: ClusterContext, survey: Survey, name: str) -> ClusterMember:
    options, seat, place = survey.options(name), survey.seats[name], survey.facts[name].place
    return ClusterMember(
        name=name,
        data=options.data,
        address=seat.address,
        interface=seat.interface,
        gpus=context.target.hardware.gpus,
        uid=survey.facts[name].uid,
        identity=survey.facts[name].identity,
        place=place.own if place and survey.here(name) else "",
    )


def _new_keys(plan: ClusterPlan) -> dict[str, Secret]:
    match plan.closed:
        case "token":
            return make_token()
        case "tls":
            return make_certificates(member.address for member in plan.members)
        case _:
            return {}


def _known_keys(context: ClusterContext, plan: ClusterPlan) -> dict[str, Secret]:
    """Return the keys of a cluster that stands, from the first node that has them all."""
    wanted: Sequence[str] = {"token": (TOKEN_FILE,), "tls": CERTIFICATE_FILES}.get(plan.closed, ())
    for member in plan.members:
        link, folder = context.fleet.links[member.name], plan.folder(member.name)
        texts = {name: link.ask("read", disk=member.data, path=f"{folder}/{name}")["text"] for name in wanted}
        if all(texts.values()):
            return {name: Secret(str(text)) for name, text in texts.items()}
    return _new_keys(plan)


def plan_json(plan: ClusterPlan) -> dict[str, Any]:
    """Return a cluster as JSON types; no key is in it."""
    return asdict(plan)
