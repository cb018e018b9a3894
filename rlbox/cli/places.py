"""Where a target's files come from on this machine: its sources profile and the machine's own settings together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlbox.act.lock import Places
    from rlbox.act.mirrors import Locator
    from rlbox.cli.app import App
    from rlbox.plan.image import ImagePlan
    from rlbox.plan.sources import SiteFacts
    from rlbox.spec.target import Target


def lock_places(app: App, target: Target) -> Places:
    """Return where the target's lock is resolved from."""
    from rlbox.act.apt import machine_archives
    from rlbox.act.lock import Places
    from rlbox.act.site import probe_site
    from rlbox.plan.image import torch_groups
    from rlbox.plan.sources import plan_sources

    site = probe_site()
    archives = machine_archives() if target.base.bootstrap else {}
    return Places(sources=plan_sources(torch_groups(target), site), archives=archives, ca_bundle=site.ca_bundle)


def locator(app: App, profile: str) -> Locator:
    """Return who knows where the files of a lock are; a mirror that is passed over is said."""
    from rlbox.act.mirrors import Locator, new_client, probe_machine
    from rlbox.act.site import probe_site
    from rlbox.spec.load import load_profile

    site = probe_site()
    return Locator(
        load_profile(app.project, profile),
        probe_machine(site),
        new_client(site),
        on_skip=lambda mirror, reason: app.say(f"{mirror} is passed over: {reason}"),
    )


def build_env(app: App, plan: ImagePlan, profile: str, site: SiteFacts) -> Mapping[str, str]:
    """Return the settings of pip and uv in build steps."""
    from rlbox.plan.sources import plan_sources

    return plan_sources(plan.torch_groups, site).env
