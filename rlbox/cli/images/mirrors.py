"""`rlbox mirrors`: the places of a sources profile, and how they do."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.offered import complete_target
from rlbox.cli.options import Action, shared, sources_option
from rlbox.errors import WorkFailed

if TYPE_CHECKING:
    from rlbox.artifacts.profile import Profile


@click.command()
@click.argument("action", metavar="[ls|probe]", default="ls", type=Action(["ls", "probe"]))
@click.option(
    "--target",
    default="local",
    metavar="NAME",
    shell_complete=complete_target,
    help="Target whose files to ask the mirrors for.",
)
@sources_option
@shared
def verb(app: App, action: str, target: str, sources: str) -> int:
    """List the mirrors of a sources profile in the order in which they are tried, or measure them.

    `probe` gets the smallest locked file of each kind from every mirror, compares it with the lock's digest, and
    remembers the order by time for six hours. Exit code 1: there is a kind that no mirror gives.

    \b
    Examples:
      rlbox mirrors ls --sources cn
      rlbox mirrors probe --sources direct
    """
    from rlbox.artifacts.load_profile import load_profile
    from rlbox.target.load import load_target

    spec = load_target(app.project, target).target
    profile = load_profile(app.project, sources or spec.sources)
    if action == "probe":
        return _probe(app, profile, spec.name)
    _list(app, profile)
    return 0


def _list(app: App, profile: Profile) -> None:
    import datetime

    from rlbox.artifacts.mirror_probe import remembered_ranking
    from rlbox.artifacts.sources_view import mirror_rows, mirrors_text

    today = datetime.datetime.now(datetime.timezone.utc).date()
    rows = mirror_rows(profile, remembered_ranking(profile) or (), today.isoformat())
    text = mirrors_text(rows) or "no rules: files come from wherever this machine's own clients are set to get them"
    app.result({"sources": profile.name, "title": profile.title, "rules": rows}, f"# {profile.title}\n{text}")
    app.say(f"next: rlbox mirrors probe --sources {profile.name}")


def _probe(app: App, profile: Profile, target: str) -> int:
    from rlbox.artifacts.mirror_probe import measure_mirrors
    from rlbox.artifacts.ranking import dead_kinds
    from rlbox.artifacts.sources_view import probed_text

    found = measure_mirrors(app, profile, target)
    dead = dead_kinds(found)
    data = {"sources": profile.name, "probed": [asdict(one) for one in found], "dead": dead}
    app.result(data, probed_text(found))
    for kind in sorted({rule.kind for rule in profile.rule} - {one.kind for one in found}):
        app.say(f"{kind}: not probed, the lock of {target} has no such file")
    if dead and not app.as_json:  # one object on stdout: `dead` says it there
        raise WorkFailed(
            f"no place of profile {profile.name} gives {', '.join(dead)}",
            where=", ".join(dict.fromkeys(one.mirror for one in found if one.kind in dead)),
            next_step="check the network, or choose another profile with --sources NAME",
        )
    return int(bool(dead))
