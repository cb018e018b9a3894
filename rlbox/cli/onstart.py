"""`rlbox onstart`: print the start script of a target for a platform."""

from __future__ import annotations

from typing import Any

import click

from rlbox.app import App
from rlbox.cli.options import pass_app_with_shared_options, target_argument
from rlbox.i18n import _, translate
from rlbox.image.forms import OnstartScript, require_platform_of_target
from rlbox.target.platform import PLATFORM_FILES, Platform, load_platform
from rlbox.target.target import Target, load_target
from rlbox.vast.rental import parse_docker_options_to_vast_env, render_target_onstart_unless_fix_refuses

_CONTAINER_LIMITS = ("ulimits", "cap_add", "devices", "memory_gib", "cpus", "pids")


@click.command("onstart")
@target_argument
@click.option(
    "--platform",
    "platform_name",
    type=click.Choice(list(PLATFORM_FILES)),
    help="Platform of the machine [hardware.platform of TARGET].",
)
@click.option(
    "--provisioning",
    is_flag=True,
    help="Print the file for PROVISIONING_SCRIPT, which images of vast.ai download and run.",
)
@pass_app_with_shared_options
def print_onstart_script(app: App, name: str, platform_name: str | None, *, provisioning: bool) -> None:
    """Print the start script of TARGET for the platform that it is rented from.

    The text is in the form that the platform's field takes, and within its limit: it is packed when it would be longer.
    The script runs at every start of the machine, may be run again at any time, and continues where it was cut off. It
    writes its log to onstart.log on the data disk, and its outcome to onstart.status in the same folder.

    \b
    Examples:
      rlbox onstart vast-5090 > onstart.sh
      rlbox onstart vast-5090 --platform cloud-init > user-data
    """
    target = load_target(app.project, name).target
    platform = load_platform(platform_name) if platform_name else require_platform_of_target(target)
    script = render_target_onstart_unless_fix_refuses(app, target, platform, as_provisioning_script=provisioning)
    field = (platform.provisioning if provisioning else None) or platform.script
    data: dict[str, Any] = {
        "target": name,
        "form": script.encoding,
        "characters": script.field_characters,
        "bytes": script.field_bytes,
        "limit": field.limit_bytes,
        "disk_gb": target.disk.need_gib,
        "script": script.field_text,
    }
    if platform.name == "vast":
        parse_docker_options_to_vast_env(target)  # for what it refuses
        data |= {"options": target.vast.options, "mode": target.vast.mode}
    else:
        data |= {"platform": platform.name, "field": field.field}
    app.output(data, script.field_text.rstrip("\n"))
    _print_size(app, target, script, field.limit_bytes)
    if platform.name != "vast":
        _print_platform_notes(app, target, platform)
    step = _("paste it into the field {field}")
    if not field.field:
        step = _("copy it to the machine and run it: sh onstart.sh")
    elif provisioning:
        step = _("put the file where the instance can download it, and its address into {field}")
    elif platform.name == "vast":
        step = _("rlbox vast search {target}, or paste it into the On-start Script field of a template")
    app.print_next(step.format(target=name, field=field.field))


def _print_size(app: App, target: Target, script: OnstartScript, limit_bytes: int) -> None:
    size = _("{field_characters} of {limit} characters ({encoding}); log: {mount}/onstart.log")
    if not limit_bytes:
        size = _("{field_characters} characters ({encoding}); log: {mount}/onstart.log")
    app.print_status(
        size.format(
            field_characters=script.field_characters,
            limit=limit_bytes,
            encoding=script.encoding,
            mount=target.disk.mount,
        )
    )


def _print_platform_notes(app: App, target: Target, platform: Platform) -> None:
    app.print_status(f"{platform.title}: {translate(platform.restart.effect)}")
    if not target.hardware.platform:
        note = _("target {target} is for your own machine: the script installs it, and starts no sandbox")
        app.print_status(note.format(target=target.name))
    ignored = [f"run.{key}" for key in _CONTAINER_LIMITS if getattr(target.run, key)]
    if ignored and not platform.has_docker:
        note = _("{platform} ignores {keys} of the target")
        app.print_status(note.format(platform=platform.title, keys=", ".join(ignored)))
