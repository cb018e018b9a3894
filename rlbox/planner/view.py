"""What a run needs and what there is, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlbox.amounts import GIB, card_text, columns, size_text
from rlbox.planner.judge import Lack, not_judged
from rlbox.planner.needs import RunNeeds
from rlbox.planner.room import Room

_TOLD = {"target": "the target", "here": "this machine", "named": "--machine"}
_SHOWN = 0.05 * GIB
"""Bytes of a part that is shown: less reads 0.0 GiB."""
_SEED_BYTES = 12
"""Bytes of a parameter in seed 004's own figure: fp32 weight, AdamW's two moments; no gradients, no peak."""


def seed_shard_gb(billions: float, gpus: int) -> float:
    """Return seed 004's figure of a card's share of a model, GB: 84 / N for 7 (P137)."""
    return _SEED_BYTES * billions / gpus


def needs_json(needs: RunNeeds, room: Room, lacks: Sequence[Lack]) -> dict[str, Any]:
    """Return the needs of a run beside the room that there is; bytes."""
    stages = [
        {
            "stage": row.stage,
            "nodes": row.nodes,
            "gpus": row.gpus,
            "card": dict(row.card),
            "host": dict(row.host),
            "disk": dict(row.disk),
        }
        for row in needs.stages
    ]
    have = {"nodes": room.nodes, "gpus": room.gpus, "card": room.card, "host": room.host, "disk": room.disk}
    wrong = [{"kind": lack.kind, "stage": lack.stage, "text": lack.text} for lack in lacks]
    return {"stages": stages, "room": have, "lacks": wrong, "not_judged": list(not_judged(needs, room))}


def needs_lines(needs: RunNeeds, room: Room) -> list[str]:
    """Return the table of a run's needs, a row for each stage, then what there is and what was not judged."""
    rows = [("stage", "nodes x GPUs", "a GPU", "host memory", "disk")]
    rows += [
        (
            row.stage,
            f"{row.nodes} x {row.gpus}" if row.gpus else "-",
            _card(row.card_bytes),
            _size(row.host_bytes),
            _size(sum(row.disk.values())),
        )
        for row in needs.stages
        if row.gpus or row.card or row.host or row.disk
    ]
    gpus = "all" if room.gpus < 0 else str(room.gpus)
    rows.append((_TOLD[room.told], f"{room.nodes} x {gpus}", _card(room.card), _size(room.host), _size(room.disk)))
    return [*columns(rows), *(f"not judged: {text}" for text in not_judged(needs, room))]


def part_lines(needs: RunNeeds) -> list[str]:
    """Return what the needs are made of, a line for each part."""
    found = []
    for row in needs.stages:
        for kind, parts in (("a GPU", row.card), ("host", row.host), ("disk", row.disk)):
            text = _card if parts is row.card else _size
            shown = ((name.replace("_", " "), size) for name, size in parts.items() if size >= _SHOWN)
            found += [(row.stage, kind, text(size), name) for name, size in shown]
    return columns(found) if found else []


def refusal(lacks: Sequence[Lack]) -> str:
    """Return all that does not fit, as one message."""
    lines = [f"{lack.stage}: {lack.text}" if lack.stage else lack.text for lack in lacks]
    return (
        lines[0]
        if len(lines) == 1
        else "\n".join([f"{len(lines)} things do not fit", *(f"  {line}" for line in lines)])
    )


def _card(size: float) -> str:
    return card_text(size) if size else "-"


def _size(size: float) -> str:
    return size_text(size) if size else "-"
