"""Carry out a command beside a target's stack: `rlbox shell`, `components`, and `doctor` where a target was applied."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from rlbox.app import App
from rlbox.doctor.components import (
    ComponentResult,
    format_result,
    format_summary,
    results_to_json,
    run_component_checks,
)
from rlbox.doctor.stack import find_local_stack, find_named_or_local_stack, get_install_dir
from rlbox.errors import NodeError, SpecError, TimedOut, WorkFailed
from rlbox.i18n import _
from rlbox.image.plan import load_image_plan
from rlbox.provision.layout import Layout
from rlbox.provision.probe import read_record
from rlbox.run.host import find_applied_layout, run_rlbox_in_layout
from rlbox.values import OWN

if TYPE_CHECKING:
    from rlbox.engine.container import ContainerDefaults, ContainerPlan
    from rlbox.image.plan import ImagePlan
    from rlbox.run.backend import SingleMachinePlace


def open_shell_in_new_container(
    app: App, target: str, command_instead_of_shell: tuple[str, ...], data_option: str | None, gpus: str = ""
) -> int:
    """Run `command_instead_of_shell`, or a shell, in a container of the target's image and return its exit code.

    Parameters
    ----------
    data, gpus
        `--data` and `--gpus`, if they were given.
    """
    from rlbox.engine.address import is_engine_local
    from rlbox.engine.container import OWNER_LABEL, TARGET_LABEL, format_docker_run_args, plan_container
    from rlbox.engine.data_disk import ensure_data_dir_creating_default, require_devices, resolve_nonsystem_data_dir
    from rlbox.engine.gpu_access import GPUS_VARIABLE, NO_GPUS
    from rlbox.system.network_settings import find_custom_ca_bundle

    image = load_image_plan(app.project, target)
    folder = resolve_nonsystem_data_dir(image.container.host, data_option)
    ensure_data_dir_creating_default(app, folder, image.container, 0.0)
    with app.collecting_refusals_if_dry_run("devices"):
        require_devices(app, image.container)
    access = NO_GPUS
    if gpus or image.container.gpus or GPUS_VARIABLE in os.environ:
        from rlbox.doctor.gpu_choice import choose_container_gpu_access

        access = choose_container_gpu_access(app, image, gpus)
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    plan = plan_container(
        image.tag,
        _limits(app, image),
        name=f"rlbox-shell-{target}-{os.getpid()}",
        argv=command_instead_of_shell or ("bash",),
        env={},
        labels={TARGET_LABEL: target, OWNER_LABEL: str(os.getuid())},
        data_dir=str(folder),
        caller_uid_gid=f"{os.getuid()}:{os.getgid()}",
        ca_bundle=find_custom_ca_bundle() if is_engine_local() else "",
        gpus=access,
    )
    words = ("docker", *format_docker_run_args(plan, interactive=terminal or not sys.stdin.isatty(), terminal=terminal))
    _require_image(app, image)
    if app.dry_run:
        return _show(app, target, plan, words)
    return _run(plan, words)


def _require_image(app: App, image: ImagePlan) -> None:
    """Refuse what the docker client would refuse in its own words, or could not: there is no image, or no client."""
    import shutil

    from rlbox.engine.address import create_missing_docker_cli_error
    from rlbox.engine.connection import require_image

    with app.collecting_refusals_if_dry_run("docker client"):
        if shutil.which("docker") is None:
            raise create_missing_docker_cli_error()
    with app.collecting_refusals_if_dry_run("image"):
        require_image(image.tag, image.target)


def _limits(app: App, image: ImagePlan) -> ContainerDefaults:
    """Return the limits of the target with a network that the engine has; what opens the shell is said."""
    from rlbox.engine.connection import connect_engine

    limits = image.container
    with app.collecting_refusals_if_dry_run("network"):
        limits = connect_engine().use_host_network_without_bridge(limits)
    if limits.network != image.container.network:
        from rlbox.run.exposure import format_engine_has_no_bridge_note

        app.print_status(format_engine_has_no_bridge_note("shell", limits.network))
    return limits


def _show(app: App, name: str, plan: ContainerPlan, words: tuple[str, ...]) -> int:
    """Print the lines that do the same by hand, and whether it would be done."""
    import shlex

    from rlbox.engine.container import format_own_network_commands

    before, after = format_own_network_commands(plan)
    silent = [f"{shlex.join(part)} >/dev/null" if part else "" for part in (before, after)]
    text = "\n".join(line for line in (silent[0], shlex.join(words), silent[1]) if line)
    data = {"target": name, "command": words, "before": before, "after": after}
    return app.planned(data, text, f"start a container of {plan.image}")


def _run(plan: ContainerPlan, words: tuple[str, ...]) -> int:
    """Run the docker client in the foreground, with the container's network, and return the container's exit code."""
    from rlbox.engine.address import open_engine_tunnel_if_remote
    from rlbox.engine.connection import connect_engine
    from rlbox.system.command import run_in_foreground
    from rlbox.values import Command

    with connect_engine().create_temporary_network(plan):
        code = run_in_foreground(Command(argv=words, env={"DOCKER_HOST": open_engine_tunnel_if_remote()}))
    return code if code >= 0 else 128 - code


def run_component_tests(app: App, python: str, timeout_s: float) -> int:
    """Test the stack that is here, show each part as it is known, and return rlbox's exit code."""
    began = time.monotonic()
    stack = find_named_or_local_stack(python, "rlbox components TARGET, or rlbox components --python FILE")
    parts: list[ComponentResult] = []
    for part in run_component_checks(stack, dict(os.environ), timeout_s):
        parts.append(part)
        if not app.as_json and (part.state != "absent" or app.verbosity > 0):
            app.print_stdout(format_result(part))
    seconds = time.monotonic() - began
    app.result(results_to_json(parts, stack.python, seconds), "")
    app.print_status(format_summary(parts, seconds))
    states = {part.state for part in parts}
    return WorkFailed.exit_code if "failed" in states else TimedOut.exit_code if "late" in states else 0


def is_inside_target_or_raise(target: str) -> bool:
    """Return whether this process is in a target's image, or place; `NodeError` when it is in another one's."""
    here = find_local_stack()
    if here and here.requirements.target != target:
        raise NodeError(
            _("the installed stack belongs to target {target!r}").format(target=here.requirements.target),
            where=here.python,
            next_step=_("rlbox components, or rlbox components {name} outside of this container").format(name=target),
        )  # fmt: skip
    return here is not None


def run_component_tests_in_target(
    app: App, place: SingleMachinePlace, target: str, data_option: str | None, gpus: str, timeout_s: float
) -> int:
    """Test the stack of a target in a container, or where it was applied to this machine."""
    args = ("components", f"--timeout={timeout_s:g}", *app.json_language_verbosity_options)
    if place == "here":
        return run_rlbox_in_layout(app, find_applied_layout(app, target, data_option), args, gpus)
    return open_shell_in_new_container(app, target, (f"{OWN}/bin/rlbox", *args), data_option, gpus)


def find_host_layout_for_doctor(
    app: App, target: str | None, place: SingleMachinePlace, data_option: str | None
) -> Layout | None:
    """Return where the place is that is meant: the one around this shell, or TARGET's with `--place here`; else None.

    Raises
    ------
    SpecError, NodeError
        `--place here` names no target, or one that was not applied here; another target is around this shell.
    """
    if place == "here":
        if not target:
            raise SpecError(_("--place here wants a target"), next_step="rlbox doctor TARGET --place here")
        return find_applied_layout(app, target, data_option)
    layout = Layout(prefix=get_install_dir(os.environ).removesuffix(OWN), data_dir="/")
    if (record := read_record(layout)) is None:
        return None
    if target and target != record.target:
        raise NodeError(
            _("target {target} was applied here").format(target=record.target),
            where=layout.rlbox_dir,
            next_step=f"rlbox doctor {record.target}",
        )
    return replace(layout, data_dir=record.data, relocated_venv_dir=record.venv)


def examine_layout(app: App, layout: Layout, gpus: str, *, budget_s: float) -> int:
    """Examine a place in the environment that its runs have; return rlbox's exit code."""
    words = ["doctor", "--around", *app.json_language_verbosity_options]
    words += [f"--budget={budget_s:g}"] if budget_s else []
    return run_rlbox_in_layout(app, layout, tuple(words), gpus)
