"""`rlbox mirrors`: the places of a sources profile, and how they do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.options import complete_target, shared, sources_option
from rlbox.errors import WorkFailed

if TYPE_CHECKING:
    from rlbox.sources.profile import Profile, Rule
    from rlbox.sources.ranking import Probed
    from rlbox.target.artifact import Artifact
    from rlbox.target.target import Target


@click.command()
@click.argument("action", metavar="[list|probe]", default="list", type=click.Choice(["list", "probe"]))
@click.option(
    "--target", default="local", metavar="NAME", shell_complete=complete_target, help="Whose files to ask for."
)
@sources_option
@shared
def verb(app: App, action: str, target: str, sources: str) -> int:
    """List the mirrors of a sources profile in the order in which they are tried, or measure them.

    `probe` gets the smallest locked file of each kind from every mirror, compares it with the lock's digest, and
    remembers the order by time for six hours. Exit code 1: there is a kind that no mirror gives.

    \b
    Examples:
      rlbox mirrors list --sources cn
      rlbox mirrors probe --sources direct
    """
    from rlbox.sources.load import load_profile
    from rlbox.target.load import load_target

    spec = load_target(app.project, target).target
    profile = load_profile(app.project, sources or spec.sources)
    if action == "probe":
        return _probe(app, profile, spec)
    _list(app, profile)
    return 0


def _list(app: App, profile: Profile) -> None:
    import datetime

    from rlbox.sources.act.probe import remembered_ranking

    today = datetime.datetime.now(datetime.timezone.utc).date()
    known = {(one.kind, one.place): one for one in remembered_ranking(profile) or ()}
    rows = [_row(rule, known, today.isoformat()) for rule in _in_order(profile)]
    cells = [(row["kind"], row["mirror"], row["protocol"], row["url"] or "-", row["state"]) for row in rows]
    text = _aligned(cells) or "no rule: files come from where this machine's own clients are set to get them"
    app.result({"sources": profile.name, "title": profile.title, "rules": rows}, f"# {profile.title}\n{text}")
    app.say(f"next: rlbox mirrors probe --sources {profile.name}")


def _in_order(profile: Profile) -> list[Rule]:
    from rlbox.sources.act.probe import remembered_ranking
    from rlbox.sources.ranking import choice_of

    choice = choice_of(profile, remembered_ranking(profile) or ())
    return [
        rule
        for kind, rules in sorted(choice.rules.items())
        for rule in (*rules, *(rule for rule in profile.rules(kind) if rule not in rules))
    ]


def _row(rule: Rule, known: dict[tuple[str, str], Probed], today: str) -> dict[str, str]:
    from rlbox.sources.ranking import place_of

    probed = known.get((rule.kind, place_of(rule)))
    expires = rule.expires.isoformat() if rule.expires else ""
    states = [f"dead: {probed.reason}" if probed.reason else f"{probed.total_s:.2f} s"] if probed else []
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


def _probe(app: App, profile: Profile, target: Target) -> int:
    from rlbox.machine.act.site import probe_site
    from rlbox.sources.act.mirrors import probe_machine
    from rlbox.sources.act.probe import probe_mirrors, remember_ranking

    files = locked_files(app, target)
    site = probe_site()
    found = probe_mirrors(profile, probe_machine(site), files)
    remember_ranking(profile, found)
    dead = [kind for kind in dict.fromkeys(one.kind for one in found) if all(o.reason for o in found if o.kind == kind)]
    data = {"sources": profile.name, "probed": [asdict(one) for one in found], "dead": dead}
    app.result(data, _aligned(map(_cells, found)))
    for kind in sorted({rule.kind for rule in profile.rule} - {one.kind for one in found}):
        app.say(f"{kind}: not probed, the lock of {target.name} has no such file")
    if dead and not app.as_json:  # one object on stdout: `dead` says it there
        raise WorkFailed(
            f"no place of profile {profile.name} gives {', '.join(dead)}",
            where=", ".join(dict.fromkeys(one.mirror for one in found if one.kind in dead)),
            next_step="check the network, or choose another profile with --sources NAME",
        )
    return int(bool(dead))


def locked_files(app: App, target: Target) -> tuple[Artifact, ...]:
    """Return the locked files of a target, its base image among them."""
    from rlbox.errors import SpecError
    from rlbox.target.artifact import artifacts
    from rlbox.target.lock import load_lock

    lock = load_lock(app.project.lock_file(target.name))
    if lock is None:
        raise SpecError(
            f"target {target.name} has no lock, and so no known file", next_step=f"rlbox lock {target.name}"
        )
    return (*artifacts(lock), *base_artifact(lock.base))


def base_artifact(base: str) -> tuple[Artifact, ...]:
    """Return the base image of a lock as a file to probe; a bootstrapped base is none."""
    from rlbox.target.artifact import Artifact

    name, image, digest = base.partition("@sha256:")
    known = Artifact(kind="oci", name=name, file=name, sha256=digest, size=0, group="base", origin=base)
    return (known,) if image else ()


def _cells(one: Probed) -> tuple[str, ...]:
    if one.reason:
        return (one.kind, one.mirror, "dead", "", "", one.reason)
    speed = f"{one.mib_per_s:.1f} MiB/s" if one.mib_per_s else ""
    return (
        one.kind,
        one.mirror,
        f"{one.total_s:.2f} s",
        f"{one.first_byte_s:.3f} s",
        speed,
        f"{one.file}: {one.verified}",
    )


def _aligned(rows: Iterable[tuple[str, ...]]) -> str:
    lines = list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)
