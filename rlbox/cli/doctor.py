"""`rlbox doctor`, `engine`, `gpus` and `components`: check this machine and a target's stack."""

from __future__ import annotations

import os
from typing import Literal

import click

from rlbox.app import App
from rlbox.cli.options import (
    NON_NEGATIVE,
    data_option,
    dry_run_option,
    gpus_option,
    optional_target_argument,
    pass_app_with_shared_options,
    place_option,
)
from rlbox.doctor.gpu_inventory import find_unmet_gpu_needs_or_busy_gpus, format_gpu_inventory, probe_local_and_ray_gpus
from rlbox.doctor.host import run_host_or_container_doctor
from rlbox.engine.setup import (
    describe_missing_setup_steps,
    install_and_start_engine_and_build_tools,
    probe_engine_version_and_setup,
)
from rlbox.errors import EngineError, WorkFailed
from rlbox.i18n import _, join, translate
from rlbox.run.backend import SingleMachinePlace
from rlbox.run.exec import (
    find_layout_around_shell_or_require_applied,
    is_inside_target_or_raise_if_in_other,
    run_and_print_component_tests,
    run_component_tests_in_target,
    run_doctor_in_layout,
)


@click.command("doctor")
@optional_target_argument
@data_option
@place_option
@gpus_option
@click.option("--budget", type=NON_NEGATIVE, default=0.0, hidden=True)
@click.option("--around", is_flag=True, hidden=True, help="What this process is in, as it is.")
@pass_app_with_shared_options
def examine_machine_and_image(
    app: App, name: str | None, data: str | None, place: SingleMachinePlace, gpus: str, budget: float, around: bool
) -> int:
    """Examine this machine or container, and the image of TARGET; prints nothing when nothing is wrong.

    With --place here, or on a machine with an applied target, it checks the environment that runs get.

    Takes seconds, on a busy machine up to a minute. Checks limits, disks, paths, tokens, ports, mirrors,
    leftover processes, every file of the stack, a calculation, one Ray task, and the checks of all fixes.
    Errors give exit code 1, warnings 0.

    \b
    Examples:
      rlbox doctor local
      rlbox shell local -- rlbox doctor
    """
    if not around and (layout := find_layout_around_shell_or_require_applied(app, name, place, data)):
        return run_doctor_in_layout(app, layout, gpus, budget_s=budget)
    return run_host_or_container_doctor(app, name, data_dir=data, gpus_option=gpus, budget_s=budget)


@click.command("engine")
@click.argument("action", type=click.Choice(["status", "up"]))
@dry_run_option
@pass_app_with_shared_options
def show_or_install_and_start_engine(app: App, action: Literal["status", "up"]) -> int:
    """Show the state of this machine's Docker engine, or start one if Docker is not reachable.

    A running engine is used unchanged. Otherwise, as root on Debian or Ubuntu, `up` installs and starts one with the
    packages for builds, and prints how to stop it. Exit code 4 if no engine can run, or if `status` finds a missing
    step.

    \b
    Examples:
      rlbox engine status
      rlbox engine up
    """
    if app.dry_run:
        if action != "up":
            raise click.UsageError(_("--dry-run goes with up."))
        left: tuple[str, ...] = ()
        with app.collecting_refusals_if_dry_run("engine"):
            left = describe_missing_setup_steps()
        would = join("; ", left) or _("change nothing: an engine answers, and images can be built")
        return app.print_dry_run({"left": list(left)}, "\n".join(map(translate, left)), would)
    if action == "up":
        install_and_start_engine_and_build_tools(app.print_status)
    status = probe_engine_version_and_setup()
    app.output(status.to_json(), status.format())
    return 0 if status.is_running_and_set_up else EngineError.exit_code


_COUNT = click.IntRange(0, 1_000_000)


@click.command("gpus")
@click.option("--actor", metavar="N", type=_COUNT, default=0, help="GPUs of training, over all nodes.")
@click.option("--rollout", metavar="N", type=_COUNT, default=0, help="GPUs of generation, over all nodes.")
@click.option("--total", metavar="N", type=_COUNT, default=0, help="GPUs that must be there, over all nodes.")
@click.option("--ray", metavar="URL", default="http://127.0.0.1:8265", show_default=True, help="Ray's dashboard.")
@pass_app_with_shared_options
def list_gpus_and_check_roles(app: App, actor: int, rollout: int, total: int, ray: str) -> int:
    """List the GPUs of this machine with their processes, Ray's view, and whether two roles have their GPUs.

    Exit code 1 when GPUs are missing or held, or Ray counts fewer.

    \b
    Examples:
      rlbox gpus
      rlbox gpus --actor 2 --rollout 2 --total 8
    """
    inventory = probe_local_and_ray_gpus(os.environ, ray)
    problems = find_unmet_gpu_needs_or_busy_gpus(inventory, actor_gpus=actor, rollout_gpus=rollout, total_gpus=total)
    app.output({**inventory.as_json(), "problems": problems}, format_gpu_inventory(inventory, problems))
    return WorkFailed.exit_code if problems else 0


@click.command("components")
@optional_target_argument
@click.option("--python", metavar="FILE", default="", help="Test this interpreter's packages, of any environment.")
@data_option
@click.option(
    "--timeout",
    type=NON_NEGATIVE,
    metavar="SECONDS",
    default=300.0,
    show_default=True,
    help="Time limit for all parts together.",
)
@place_option
@gpus_option
@pass_app_with_shared_options
def check_stack_components(
    app: App, name: str | None, python: str, data: str | None, place: SingleMachinePlace, gpus: str, timeout: float
) -> int:
    """Test the parts of the stack: torch, CUDA, linking, Triton, NCCL, Ray, each framework.

    In a container of an image it tests the components of that image. With TARGET, on a host, it tests the
    target's image in a container, or with --place here the environment that `rlbox apply` installed. Without a
    GPU, parts that need one are skipped. A part that fails gives exit code 1, one that exceeds its time limit
    7.

    \b
    Examples:
      rlbox components local
      rlbox shell local -- rlbox components
    """
    if not name or python or is_inside_target_or_raise_if_in_other(name):
        return run_and_print_component_tests(app, python, timeout)
    return run_component_tests_in_target(app, place, name, data, gpus, timeout)
