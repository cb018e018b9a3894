"""What the Ray of each node is made of: the image, brought to its engine, or a place that is at the image's lock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlbox.cluster.facts import NodeFacts
from rlbox.cluster.gzipped import GzipSource
from rlbox.cluster.image import SentImage, unpacks_zstd
from rlbox.cluster.images import Sending, image_here, keep_as, send_image
from rlbox.cluster.plan import ClusterPlan, folder_of
from rlbox.cluster.pulled import RegistryImage, pull_image
from rlbox.cluster.reach.fleet import Fleet
from rlbox.cluster.story import Story
from rlbox.cluster.survey import Survey
from rlbox.engine.connection import require_image
from rlbox.errors import EngineError, SpecError
from rlbox.i18n import _
from rlbox.system.progress import show_progress


def callers_of(survey: Survey) -> dict[str, str]:
    """Return `uid:gid` of the user on each node."""
    return {name: f"{facts.uid}:{facts.gid}" for name, facts in survey.facts.items()}


def bring_image(
    story: Story, survey: Survey, port: int, plan: ClusterPlan | None = None, image: RegistryImage | None = None
) -> tuple[str, dict[str, str]]:
    """Return the image's identity, and what each node's engine calls it, once all have the very same.

    Nodes without an engine have a place at the image's lock, as was asked before; its checksum stands for the image.

    Parameters
    ----------
    image
        Where nodes that lack it pull it themselves; None: it is sent from here.
    """
    here = {name for name in survey.facts if _is_here(survey, plan, name)}
    locks = dict.fromkeys(here, story.image.lock_checksum)
    if here == set(survey.facts):
        _require_made_with(story, plan, story.image.lock_checksum)
        return story.image.lock_checksum, locks
    engines = {name: facts for name, facts in survey.facts.items() if name not in here}
    if image:
        identity = _pulled(story, engines, plan, image)
    else:
        identity = _sent(story, survey, engines, plan, port)
    links = Fleet({name: story.fleet.links[name] for name in engines}, ())
    rows = links.ask("image", image=story.image.tag)
    return identity, {**locks, **{name: str(row["image"]["id"]) for name, row in rows.items()}}


def _pulled(story: Story, engines: Mapping[str, NodeFacts], plan: ClusterPlan | None, image: RegistryImage) -> str:
    _require_made_with(story, plan, image.identity)
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
        with show_progress(story.app) as tell:
            pull_image(story.fleet, lacking, image, keep_as(story.image.tag), tell)
    return image.identity


def _sent(story: Story, survey: Survey, engines: Mapping[str, NodeFacts], plan: ClusterPlan | None, port: int) -> str:
    image = require_image(story.image.tag, story.wish.target)
    seats = {name: seat.address for name, seat in survey.seats.items()}
    seats |= {member.name: member.address for member in plan.members} if plan else {}
    with image_here(story.image.tag, image) as (source, sent):
        _require_made_with(story, plan, sent.identity)
        packed = GzipSource(source, sent) if _have_old(engines) else None
        if _lack(engines, sent, packed.known() if packed else None):
            with show_progress(story.app) as tell:
                sending = Sending(
                    image=packed.image(tell) if packed else sent,
                    source=packed or source,
                    keep=keep_as(story.image.tag),
                    folder=lambda node: folder_of(survey.facts[node].uid, story.name, node),
                    tell=tell,
                )
                if lacking := _lack(engines, sent, sending.image):
                    send_image(story.fleet, lacking, sending, seats, port)
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


def _require_made_with(story: Story, plan: ClusterPlan | None, identity: str) -> None:
    if plan and plan.image != identity:
        raise SpecError(
            _("cluster {plan} was started with another image of {target} than this machine has now").format(
                plan=plan.name, target=plan.target
            ),
            next_step=_("rlbox cluster down {words}, then the same command again").format(words=story.wish.words),
        )


def _id_of(image: Mapping[str, Any] | None) -> str:
    return str((image or {}).get("id", ""))
