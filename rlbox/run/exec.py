"""Carry out a command beside a target's stack: `rlbox shell`, `components`, and `doctor` where a target was applied."""

from __future__ import annotations

import os
import shlex
import shutil
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
from rlbox.doctor.stack import find_local_stack, get_rlbox_files_dir, require_named_or_local_stack
from rlbox.errors import MachineError, SpecError, TimedOut, WorkFailed
from rlbox.i18n import _
from rlbox.image.plan import load_image_plan
from rlbox.provision.layout import Layout
from rlbox.provision.probe import read_install_record
from rlbox.run.host import require_applied_layout_even_outdated, run_rlbox_in_layout
from rlbox.values import OWN, Command

if TYPE_CHECKING:
    from rlbox.run.backend import SingleMachinePlace


def run_shell_or_command_in_new_container(
    app: App, target: str, command_instead_of_shell: tuple[str, ...], data_option: str | None, gpus: str = ""
) -> int:
    from rlbox.doctor.gpu_choice import choose_and_print_gpu_access
    from rlbox.engine import address, container, data_disk
    from rlbox.engine.connection import connect_engine, require_image
    from rlbox.engine.gpu_access import GPUS_VARIABLE, NO_GPUS
    from rlbox.run.exposure import format_engine_has_no_bridge_note
    from rlbox.system.command import run_in_foreground
    from rlbox.system.network_settings import find_env_or_pip_ca_bundle_or_empty

    image = load_image_plan(app.project, target)
    folder = data_disk.resolve_data_dir_outside_system_dirs(image.container.disk_host_dir, data_option)
    data_disk.ensure_usable_data_dir_creating_default(app, folder, image.container, 0.0)
    with app.collecting_refusals_if_dry_run("devices"):
        data_disk.report_and_require_local_devices(app, image.container)
    wants_gpus = gpus or image.container.gpus or GPUS_VARIABLE in os.environ
    access = choose_and_print_gpu_access(app, image, gpus) if wants_gpus else NO_GPUS
    defaults = image.container
    with app.collecting_refusals_if_dry_run("network"):
        defaults = connect_engine().use_host_network_if_no_bridge(defaults)
    if defaults.network != image.container.network:
        app.print_status(format_engine_has_no_bridge_note("shell", defaults.network))
    plan = container.plan_container(
        image.tag,
        defaults,
        name=f"rlbox-shell-{target}-{os.getpid()}",
        argv=command_instead_of_shell or ("bash",),
        env={},
        labels={container.TARGET_LABEL: target, container.OWNER_LABEL: str(os.getuid())},
        data_dir=str(folder),
        caller_uid_gid=f"{os.getuid()}:{os.getgid()}",
        ca_bundle=find_env_or_pip_ca_bundle_or_empty() if address.is_engine_on_unix_socket() else "",
        gpus=access,
    )
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    args = container.format_docker_run_args(plan, interactive=terminal or not sys.stdin.isatty(), terminal=terminal)
    argv = ("docker", *args)
    # what the docker client would refuse in its own words, or could not
    with app.collecting_refusals_if_dry_run("docker client"):
        if shutil.which("docker") is None:
            raise address.create_missing_docker_cli_error()
    with app.collecting_refusals_if_dry_run("image"):
        require_image(image.tag, image.target)
    if app.dry_run:
        before, after = container.build_own_network_commands_or_empty(plan)
        lines = (f"{shlex.join(before)} >/dev/null", shlex.join(argv), f"{shlex.join(after)} >/dev/null")
        data = {"target": target, "command": argv, "before": before, "after": after}
        text = "\n".join(lines) if before else shlex.join(argv)
        return app.print_dry_run(data, text, _("start a container of {image}").format(image=plan.image))
    with connect_engine().create_temporary_network_if_own(plan):
        client_env = {"DOCKER_HOST": address.resolve_engine_address_opening_tunnel()}
        code = run_in_foreground(Command(argv=argv, env=client_env))
    return code if code >= 0 else 128 - code


def run_and_print_component_tests(app: App, python: str, timeout_s: float) -> int:
    began = time.monotonic()
    stack = require_named_or_local_stack(python, _("rlbox components TARGET, or rlbox components --python FILE"))
    parts: list[ComponentResult] = []
    for part in run_component_checks(stack, dict(os.environ), timeout_s):
        parts.append(part)
        if not app.as_json and (part.state != "absent" or app.verbosity > 0):
            app.print_stdout(format_result(part))
    seconds = time.monotonic() - began
    app.output(results_to_json(parts, stack.python, seconds), "")
    app.print_status(format_summary(parts, seconds))
    states = {part.state for part in parts}
    return WorkFailed.exit_code if "failed" in states else TimedOut.exit_code if "late" in states else 0


def is_inside_target_or_raise_if_in_other(target: str) -> bool:
    """Return whether this process is in a target's image, or place; `MachineError` when it is in another one's."""
    here = find_local_stack()
    if here and here.requirements.target != target:
        raise MachineError(
            _("the installed stack belongs to target {target!r}").format(target=here.requirements.target),
            where=here.python,
            next_step=_("rlbox components, or rlbox components {name} outside of this container").format(name=target),
        )  # fmt: skip
    return here is not None


def run_component_tests_in_target(
    app: App, place: SingleMachinePlace, target: str, data_option: str | None, gpus: str, timeout_s: float
) -> int:
    args = ("components", f"--timeout={timeout_s:g}", *app.json_language_verbosity_options)
    if place == "here":
        return run_rlbox_in_layout(app, require_applied_layout_even_outdated(app, target, data_option), args, gpus)
    return run_shell_or_command_in_new_container(app, target, (f"{OWN}/bin/rlbox", *args), data_option, gpus)


def find_layout_around_shell_or_require_applied(
    app: App, target: str | None, place: SingleMachinePlace, data_option: str | None
) -> Layout | None:
    """Return where the place is that is meant: that around this shell, or TARGET's with `--place here`; else None."""
    if place == "here":
        if not target:
            raise SpecError(_("--place here wants a target"), next_step="rlbox doctor TARGET --place here")
        return require_applied_layout_even_outdated(app, target, data_option)
    layout = Layout(prefix=get_rlbox_files_dir(os.environ).removesuffix(OWN), data_dir="/")
    if (record := read_install_record(layout)) is None:
        return None
    if target and target != record.target:
        raise MachineError(
            _("target {target} was applied here").format(target=record.target),
            where=layout.rlbox_dir,
            next_step=f"rlbox doctor {record.target}",
        )
    return replace(layout, data_dir=record.data)


def run_doctor_in_layout(app: App, layout: Layout, gpus: str, *, budget_s: float) -> int:
    words = ["doctor", "--around", *app.json_language_verbosity_options]
    words += [f"--budget={budget_s:g}"] if budget_s else []
    return run_rlbox_in_layout(app, layout, tuple(words), gpus)
