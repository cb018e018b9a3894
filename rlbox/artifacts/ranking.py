"""What a probe of mirrors found, what it means for their order, and which files it is made with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rlbox.artifacts.profile import Profile, Rule
from rlbox.artifacts.settings import Choice
from rlbox.target.artifact import Artifact

FRESH_S = 6 * 3600
"""Seconds for which a probe decides the order of mirrors."""

QUICK_FRESH_S = 120
"""Seconds for which a quick look does."""

_OF_HTTP = ("http", "huggingface", "cuda-apt", "conda")  # their rules stand for addresses of `http` files


@dataclass(frozen=True, kw_only=True)
class Probed:
    """How one rule did; `reason` is empty when it gave the right bytes.

    `file` is what was asked for and `verified` how far its bytes were compared; times in seconds, `mib_per_s` 0 when
    the file was too small to tell.
    """

    kind: str
    mirror: str
    place: str
    file: str = ""
    verified: str = ""
    reason: str = ""
    first_byte_s: float = 0.0
    total_s: float = 0.0
    mib_per_s: float = 0.0


def place_of(rule: Rule) -> str:
    """Return what a rule's ranking is known by: its address, or `direct`."""
    return rule.base or rule.protocol


def probe_object(rule: Rule, artifacts: Sequence[Artifact]) -> Artifact | None:
    kind = "http" if rule.kind in _OF_HTTP else rule.kind
    found = [
        artifact
        for artifact in artifacts
        if artifact.kind == kind and (kind not in ("http", "git") or artifact.origin.startswith(rule.match))
    ]
    return min(found, key=lambda artifact: (artifact.size, artifact.file), default=None)


def rank(found: Iterable[Probed]) -> tuple[Probed, ...]:
    return tuple(sorted(found, key=lambda probed: (probed.kind, bool(probed.reason), probed.total_s)))


def rules_digest(profile: Profile) -> str:
    return hashlib.sha256(profile.model_dump_json().encode()).hexdigest()


def ranking_json(profile: Profile, found: Sequence[Probed], at: float, *, quick: bool = False) -> dict[str, Any]:
    """Return a ranking as it is remembered; `at` is the time of the probe, or of a quick look, seconds since 1970."""
    return {"profile": rules_digest(profile), "at": at, "quick": quick, "found": [asdict(probed) for probed in found]}


def read_ranking(data: Mapping[str, Any], profile: Profile, now: float) -> tuple[Probed, ...] | None:
    """Return a remembered ranking, or None when it is old, of other rules, or none at all."""
    try:
        lasts = QUICK_FRESH_S if data["quick"] else FRESH_S
        fresh = 0 <= now - float(data["at"]) < lasts and data["profile"] == rules_digest(profile)
        return tuple(Probed(**row) for row in data["found"]) if fresh else None
    except (KeyError, TypeError, ValueError):
        return None


def choice_of(profile: Profile, found: Sequence[Probed]) -> Choice:
    """Return the order that a ranking gives: live rules by their times, then those that were not probed.

    A kind whose rules are all dead keeps the profile's order: they may be back.
    """
    rules: dict[str, tuple[Rule, ...]] = {}
    for kind in dict.fromkeys(rule.kind for rule in profile.rule):
        mine = {place_of(rule): rule for rule in profile.rules(kind)}
        probed = {one.place: one for one in found if one.kind == kind and one.place in mine}
        live = [mine[one.place] for one in rank(probed.values()) if not one.reason]
        rest = [rule for place, rule in mine.items() if place not in probed]
        rules[kind] = tuple(live + rest) or profile.rules(kind)
    skipped = tuple((one.mirror, one.reason) for one in found if one.reason)
    return Choice(profile=profile.name, rules=rules, skipped=skipped)


def dead_kinds(found: Sequence[Probed]) -> list[str]:
    kinds = dict.fromkeys(one.kind for one in found)
    return [kind for kind in kinds if all(one.reason for one in found if one.kind == kind)]
