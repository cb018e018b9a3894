"""Bring a cluster up: from nothing, or what died of one that stands; a healthy one is left as it is."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rlbox.amounts import columns, utc_now
from rlbox.app import App
from rlbox.cluster.burn_in import Proof, require_proof
from rlbox.cluster.context import StandingCluster, Story, refuse, story_of
from rlbox.cluster.fleet import held, maker
from rlbox.cluster.image_sync import RegistryImage, find_in_registry
from rlbox.cluster.in_use import refuse_in_use
from rlbox.cluster.listeners import require_audit
from rlbox.cluster.node_checks import place_problems
from rlbox.cluster.options import ClusterWish
from rlbox.cluster.plan import BASE, STRIDE, ClusterMember, ClusterPlan
from rlbox.cluster.preflight import judge_survey
from rlbox.cluster.ray_runtime import CERTIFICATE_FILES, TOKEN_FILE, Started, has_tokens
from rlbox.cluster.ray_state import RayState, lacking
from rlbox.cluster.start import (
    ask_state,
    bring_image,
    callers_of,
    close_nodes,
    make_certificates,
    make_token,
    retire,
    start_members,
    undone,
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

_Up = tuple[ClusterPlan, RayState, tuple[str, ...], Proof | None]


@dataclass(frozen=True, kw_only=True)
class UpWish(ClusterWish):
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


def bring_up(app: App, wish: UpWish) -> tuple[ClusterStatus, tuple[str, ...], Proof | None]:
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
    with story_of(app, wish) as story, held(story.fleet, f"rlbox cluster up {wish.target}"):
        survey = story.survey(wish.paths)
        standing = story.standing(survey) if not story.fleet.unreached else None
        if standing:
            plan, state, started, proof = _heal(story, survey, standing, wish)
        else:
            plan, state, started, proof = _begin(story, look_ahead(story, survey, wish), wish)
        disks = {name: facts.disk.free for name, facts in survey.facts.items()}
        return status_of(plan, state, dict.fromkeys(survey.facts, "running"), disks), started, proof


def look_at(app: App, wish: UpWish) -> int:
    """Say what would be started, and what is refused; return the exit code of a dry run."""
    with story_of(app, wish) as story:
        survey = story.survey(wish.paths)
        standing = story.standing(survey)
        if standing:
            dead = [member.name for member in standing.plan.members if not standing.going(member.name)]
            would = f"bring back {', '.join(dead)}" if dead else f"leave cluster {story.name} as it is"
            return app.planned({"cluster": json_of(standing.plan)}, "", would)
        with app.checking("nodes"):
            survey = look_ahead(story, survey, wish)
        if not all(map(survey.here, survey.facts)):
            with app.checking("image"):
                _named(wish) or require_image(story.image.tag, wish.target)
        with app.checking("strangers"):
            _closed(story, survey, wish)
        data = {"nodes": {name: asdict(seat) for name, seat in survey.seats.items()}}
        return app.planned(data, _seats_text(survey), f"start cluster {story.name} on {', '.join(survey.facts)}")


def _seats_text(survey: Survey) -> str:
    """Return where the nodes and ports of a cluster would be; nothing when something is wrong with them."""
    if survey.ports is None:
        return ""
    rows = [(name, seat.address, seat.interface) for name, seat in survey.seats.items()]
    first, last = survey.ports.worker_range
    ports = f"ports {survey.ports.base}-{survey.ports.base + STRIDE - 1}, workers {first}-{last}"
    return "\n".join([*columns([("node", "address", "interface"), *rows]), ports])


def look_ahead(story: Story, survey: Survey, wish: UpWish) -> Survey:
    """Return the survey with places and ports of all nodes; `NodeError` when something is wrong with them."""
    survey = probe_ways(story.fleet, survey)
    base = wish.port or story.target.cluster.port
    first = whole_number(story.target.env.get("RLBOX_RAY_PORT", "")) or BASE
    survey = probe_ports(story.fleet, survey, plan_ports(survey, story.name, base, first))
    refuse(story.app, judge_survey(survey, story.needs(tuple(wish.paths)), story.fleet.unreached))
    return survey


def _begin(story: Story, survey: Survey, wish: UpWish) -> _Up:
    """Start a new cluster."""
    port = survey.ports.of("parts") if survey.ports else 0
    identity, images = bring_image(story, survey, port, image=_named(wish))
    plan = _plan(story, survey, identity, _closed(story, survey, wish))
    _say_here(story, plan)
    callers = callers_of(survey)
    everything, mount = [member.name for member in plan.members], story.image.container.mount
    with undone(story.fleet, plan, everything, story.app.say, mount=mount, new=True) as call:
        write_files(story.fleet, plan, _new_keys(plan), callers)
        if plan.closed == "tls":
            close_nodes(story.fleet, plan, everything)
        started = Started(plan=plan, limits=story.image.container, images=images, callers=callers)
        start_members(story.fleet, started, everything, call)
        state = wait_alive(story.fleet, plan, wish.limit_s, story.app.say)
        require_audit(story.fleet, plan, survey.facts)
        proof = require_proof(story, plan, survey.facts) if wish.prove else None
    return plan, state, tuple(everything), proof


def _heal(story: Story, survey: Survey, standing: StandingCluster, wish: UpWish) -> _Up:
    """Bring back what died of a cluster; without its head, all of it."""
    plan = standing.plan
    _require_same(story, plan)
    state = ask_state(story.fleet.links[plan.head.name], plan)
    dead = [m.name for m in plan.members if not standing.going(m.name) or m.name in lacking(plan, state)]
    if not dead:
        require_audit(story.fleet, plan, survey.facts)
        return plan, state, (), require_proof(story, plan, survey.facts) if wish.prove else None
    if state.said:
        refuse_in_use(story, standing)  # a Ray that does not tell of its nodes may be one that works
    if plan.head.name in dead or state.said:
        dead = [member.name for member in plan.members]
    plan = plan.renewed({name: survey.facts[name].identity for name in dead if name in survey.facts})
    _require_places(story, survey, plan)
    story.app.say(f"starting again on {', '.join(dead)}")
    __, images = bring_image(story, survey, plan.ports.of("parts"), plan, _named(wish))
    callers, mount = callers_of(survey), story.image.container.mount
    with undone(story.fleet, plan, dead, story.app.say, mount=mount, new=False) as call:
        write_files(story.fleet, plan, _known_keys(story, plan), callers)
        if plan.closed == "tls":
            close_nodes(story.fleet, plan, dead)
        started = Started(plan=plan, limits=story.image.container, images=images, callers=callers)
        retire(story.fleet, started, {name: one.id for name, one in standing.containers.items() if name in dead})
        start_members(story.fleet, started, dead, call)
        state = wait_alive(story.fleet, plan, wish.limit_s, story.app.say, state.lives(dead))
    proof = require_proof(story, plan, survey.facts) if wish.prove else None
    return plan, state, tuple(dead), proof


def _named(wish: UpWish) -> RegistryImage | None:
    """Return the image of a registry that is named, None where it is that of this machine."""
    return find_in_registry(wish.image, wish.target, plain_http=wish.plain_http) if wish.image else None


def _require_same(story: Story, plan: ClusterPlan) -> None:
    """Refuse to bring back a cluster of other nodes than those that are named now."""
    now, then = [wish.name for wish in story.wishes], [member.name for member in plan.members]
    if set(now) != set(then):
        raise NodeError(
            _("cluster {plan} stands on {then}, not on {now}").format(
                plan=plan.name, then=", ".join(then), now=", ".join(now)
            ),
            next_step=_("--nodes {then}; or another --name; or rlbox cluster down first").format(then=",".join(then)),
        )


def _say_here(story: Story, plan: ClusterPlan) -> None:
    """Say once what a node without an engine cannot give."""
    here = [member.name for member in plan.members if member.here]
    if here:
        story.app.say(
            f"without an engine on {', '.join(here)}: Ray runs there as processes of yours, with the machine's own "
            "limits, /dev/shm and devices, and with what else its user may read"
        )


def _require_places(story: Story, survey: Survey, plan: ClusterPlan) -> None:
    """Refuse to bring back processes where the target is no longer what the cluster was made with."""
    for member in plan.members:
        if member.here and member.name in survey.facts:
            place = survey.facts[member.name].place
            refuse(story.app, tuple(place_problems(member.name, place, member.data, story.needs())))


def _closed(story: Story, survey: Survey, wish: UpWish) -> str:
    """Return what keeps strangers out; `SpecError` where nothing does, and nobody said that it may be so."""
    if has_tokens(story.ray):
        return "token"
    without = [name for name, facts in survey.facts.items() if not facts.rights.tool]
    if not without:
        return "tls"
    if wish.open or story.target.run.open:
        story.app.say("open: whoever reaches the nodes' ports runs code there; it is recorded with the cluster")
        return "nothing"
    raise SpecError(
        _(
            "Ray {ray} takes commands of anybody: tokens came with 2.52, and its ports cannot be "
            "closed on {without}, where this user makes no rules for the network"
        ).format(ray=story.ray or _("of an unknown version"), without=", ".join(without)),
        next_step=_(
            "log in there as root, or --allow-unauthenticated, on a network that only the nodes reach; it is recorded"
        ),
    )


def _plan(story: Story, survey: Survey, identity: str, closed: str) -> ClusterPlan:
    ports = survey.ports
    if ports is None:
        raise NodeError(_("the nodes were not asked for their ports"))
    return ClusterPlan(
        id=secrets.token_hex(4),
        name=story.name,
        target=story.wish.target,
        image=identity,
        ray=story.ray,
        members=tuple(_member(story, survey, name) for name in survey.facts),
        ports=ports,
        closed=closed,
        maker=maker(),
        made=utc_now(),
    )


def _member(story: Story, survey: Survey, name: str) -> ClusterMember:
    wish, seat, place = survey.wish(name), survey.seats[name], survey.facts[name].place
    return ClusterMember(
        name=name,
        data=wish.data,
        address=seat.address,
        interface=seat.interface,
        gpus=story.target.hardware.gpus,
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


def _known_keys(story: Story, plan: ClusterPlan) -> dict[str, Secret]:
    """Return the keys of a cluster that stands, from the first node that has them all."""
    wanted: Sequence[str] = {"token": (TOKEN_FILE,), "tls": CERTIFICATE_FILES}.get(plan.closed, ())
    for member in plan.members:
        link, folder = story.fleet.links[member.name], plan.folder(member.name)
        texts = {name: link.ask("read", disk=member.data, path=f"{folder}/{name}")["text"] for name in wanted}
        if all(texts.values()):
            return {name: Secret(str(text)) for name, text in texts.items()}
    return _new_keys(plan)


def json_of(plan: ClusterPlan) -> dict[str, Any]:
    """Return a cluster as JSON types; no key is in it."""
    return asdict(plan)
