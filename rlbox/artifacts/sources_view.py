"""The mirrors of a profile, and how they did, as text and as JSON types."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rlbox.amounts import MIB, columns, fine_text, size_text
from rlbox.artifacts.profile import Profile, Rule
from rlbox.artifacts.ranking import Probed, choice_of, place_of


def mirror_rows(profile: Profile, ranking: Sequence[Probed], today: str) -> list[dict[str, str]]:
    """Return the rules in the order in which they are tried, with what is known of them; `today` as 2025-12-31."""
    choice = choice_of(profile, ranking)
    known = {(one.kind, one.place): one for one in ranking}
    return [
        _row(rule, known.get((rule.kind, place_of(rule))), today)
        for kind, rules in sorted(choice.rules.items())
        for rule in (*rules, *(rule for rule in profile.rules(kind) if rule not in rules))
    ]


def _row(rule: Rule, probed: Probed | None, today: str) -> dict[str, str]:
    expires = rule.expires.isoformat() if rule.expires else ""
    states = [f"dead: {probed.reason}" if probed.reason else fine_text(probed.total_s)] if probed else []
    states += [f"expired {expires}: read it up again"] if expires and expires < today else []
    return {
        "kind": rule.kind,
        "mirror": rule.title,
        "protocol": rule.protocol,
        "url": rule.base,
        "match": rule.match,
        "checked": rule.checked.isoformat() if rule.checked else "",
        "expires": expires,
        "state": "; ".join(states) or "not probed",
    }


def mirrors_text(rows: Iterable[dict[str, str]]) -> str:
    """Return the rows as a table; empty when there is none."""
    cells = (
        (
            row["kind"],
            row["mirror"],
            row["protocol"],
            (row["url"] or "-"),
            row["state"],
        )
        for row in rows
    )
    return "\n".join(columns(cells))


def probed_text(found: Iterable[Probed]) -> str:
    return "\n".join(columns(map(_cells, found)))


def _cells(one: Probed) -> tuple[str, ...]:
    if one.reason:
        return (one.kind, one.mirror, "dead", "", "", one.reason)
    speed = f"{size_text(one.mib_per_s * MIB)}/s" if one.mib_per_s else ""
    return (
        one.kind,
        one.mirror,
        fine_text(one.total_s),
        fine_text(one.first_byte_s),
        speed,
        f"{one.file}: {one.verified}",
    )
