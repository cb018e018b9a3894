"""What does not fit: need against have, stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from rlbox.amounts import card_text, size_text
from rlbox.i18n import _
from rlbox.planner.needs import RunNeeds, StageNeeds
from rlbox.planner.room import CONTEXT, Room


@dataclass(frozen=True, kw_only=True)
class Lack:
    """One thing that does not fit; `kind` is gpus, nodes, card, host, disk, rule or size, `text` the sentence."""

    kind: str
    stage: str
    text: str


def judge_fit(needs: RunNeeds, room: Room) -> tuple[Lack, ...]:
    """Return what of `needs` the machine has not; what nobody knows of the machine is not judged."""
    found = [Lack(kind="size", stage="", text=text) for text in needs.unsized if " = 0:" not in text]
    for row in needs.stages:
        found += _stage(row, room)
    if room.disk and needs.disk_bytes > room.disk:
        found.append(Lack(kind="disk", stage="", text=_text("the data disk", needs.disk, room.disk)))
    return tuple(found)


def not_judged(needs: RunNeeds, room: Room) -> tuple[str, ...]:
    """Return what was not looked at, and why."""
    kinds = {
        "memory of a GPU": (room.card, any(row.card_bytes for row in needs.stages)),
        "host memory": (room.host, any(row.host_bytes for row in needs.stages)),
        "data disk": (room.disk, needs.disk_bytes),
    }
    found = [f"{kind}: {room.where} does not say it" for kind, (have, asked) in kinds.items() if asked and not have]
    return (*found, *(text for text in needs.unsized if " = 0:" in text))


def _stage(row: StageNeeds, room: Room) -> Iterator[Lack]:
    yield from (Lack(kind="rule", stage=row.stage, text=text) for text in row.broken)
    if row.nodes > room.nodes:
        yield Lack(
            kind="nodes",
            stage=row.stage,
            text=_("{nodes} nodes, there are {room_nodes}").format(nodes=row.nodes, room_nodes=room.nodes),
        )
    if room.gpus >= 0 and row.gpus > room.gpus:
        asked = f"1 GPU of a machine, there are {room.gpus}"
        asked = asked if row.gpus == 1 else f"{row.gpus} GPUs of a machine, there are {room.gpus}"
        none = () if room.gpus else ("the target names none: hardware.gpu, or --gpus",)
        yield Lack(kind="gpus", stage=row.stage, text="; ".join((asked, *none)))
    free = room.card - CONTEXT - room.taken
    if room.card and row.card_bytes and row.card_bytes > free:
        others = f" and {card_text(room.taken)} that other processes hold" if room.taken else ""
        kept = f" ({card_text(room.card)}, less {card_text(CONTEXT)} for CUDA's context and NCCL{others})"
        text = _text("a GPU", row.card, max(0.0, free), card_text) + kept
        yield Lack(kind="card", stage=row.stage, text=text)
    if room.host and row.host_bytes > room.host:
        yield Lack(kind="host", stage=row.stage, text=_text("host memory", row.host, room.host))


def _text(what: str, parts: Mapping[str, float], have: float, text: Callable[[float], str] = size_text) -> str:
    most = sorted(parts.items(), key=lambda part: -part[1])[:4]
    shown = ", ".join(f"{name.replace('_', ' ')} {text(size)}" for name, size in most if size)
    return _("{what}: {text} needed ({shown}), {text2} there").format(
        what=what, text=text(sum(parts.values())), shown=shown, text2=text(have)
    )
