"""`rlbox egress`: every host that a target contacts."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.offered import complete_target
from rlbox.cli.options import shared, sources_option

if TYPE_CHECKING:
    from rlbox.artifacts.egress import Contact
    from rlbox.config.project import Project
    from rlbox.target.artifact import Artifact
    from rlbox.target.target import Target


@click.command()
@click.argument("name", metavar="TARGET", shell_complete=complete_target)
@click.option("--closed", is_flag=True, help="Also list the hosts that a setting of the target closes.")
@sources_option
@shared
def verb(app: App, name: str, closed: bool, sources: str) -> None:
    """List every host that locking, fetching, building and running TARGET contacts, with why and what changes it.

    Hosts that software contacts by itself (usage statistics, kernels, vocabularies) are among them. What the clients'
    own defaults lead to is asked now; hosts that cannot be asked are marked.

    \b
    Examples:
      rlbox egress local
      rlbox egress local --sources cn --json
    """
    from rlbox.artifacts.egress import contacted

    profile, found = find_contacts(app, name, sources)
    shown = [one for one in found if closed or not one.closed_by]
    rows = [{**asdict(one), "phases": list(one.phases)} for one in found]
    app.result({"target": name, "sources": profile, "hosts": contacted(found), "contacts": rows}, _table(shown))
    if count := len(found) - len(shown):
        one, more = "1 more is closed by settings of the target", f"{count} more are closed by settings of the target"
        app.say(f"{one if count == 1 else more}: rlbox egress {name} --closed")


def find_contacts(app: App, name: str, sources: str) -> tuple[str, tuple[Contact, ...]]:
    """Return a sources profile, the target's own when `sources` is empty, and the contacts of the target by it."""
    from rlbox.artifacts.egress import plan_egress
    from rlbox.artifacts.egress_probe import probe_egress
    from rlbox.artifacts.load_profile import load_hidden_hosts, load_profile
    from rlbox.artifacts.mirror_search import probe_machine
    from rlbox.system.network_settings import read_network_settings

    target, files = as_built(app.project, name)
    profile = load_profile(app.project, sources or target.sources)
    facts = probe_egress(target, files, profile, probe_machine(read_network_settings()))
    return profile.name, plan_egress(target, files, profile, load_hidden_hosts(), facts)


def as_built(project: Project, name: str) -> tuple[Target, tuple[Artifact, ...]]:
    """Return a target with the environment that its fixes bake below its own, and the files of its lock."""
    from rlbox.fixes.applies import stack_versions
    from rlbox.fixes.bake import bake_fixes
    from rlbox.fixes.load import load_fixed_target
    from rlbox.target.artifact import artifacts
    from rlbox.target.lock import load_lock

    fixed = load_fixed_target(project, name)
    lock = load_lock(project.lock_file(name))
    baked = bake_fixes(fixed.fixes, fixed.target, stack_versions(fixed.target, lock))
    env = {**baked.env({}), **fixed.target.env}
    return fixed.target.model_copy(update={"env": env}), artifacts(lock) if lock else ()


def _table(found: list[Contact]) -> str:
    from rlbox.amounts import columns
    from rlbox.artifacts.egress import PHASES

    lines = []
    for one in sorted(found, key=lambda one: (PHASES.index(one.phases[0]), one.kind, one.host)):
        mark = f"  [closed by {one.closed_by}]" if one.closed_by else ""
        names = map(str, (one.host or "?", one.kind, "+".join(one.phases)))
        lines.append((*names, one.declared, one.why + mark, one.rule))
    width = max((len(row[0]) for row in lines), default=0)
    text = [
        head + (f"\n{'':{width}}    -> {rule}" if rule and declared == "hidden" else "")
        for head, (*_, declared, _why, rule) in zip(columns(row[:5] for row in lines), lines, strict=True)
    ]
    return "\n".join(text) or "no host is contacted"
