"""`--gpus`: what the user asks for, what the engine offers, and whether the driver fits the stack."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlbox.app import App
from rlbox.doctor.gpus import (
    OLDEST_DRIVERS,
    DriverRequirements,
    check_driver,
    check_required_gpu_arch,
    find_stack_cuda_version_or_empty,
)
from rlbox.doctor.requirements import Requirements, override_gpus_unless_all
from rlbox.engine.address import find_engine_url, is_engine_on_unix_socket
from rlbox.engine.connection import connect_engine
from rlbox.engine.gpu_access import (
    GPUS_VARIABLE,
    NO_GPUS,
    GpuAccess,
    GpuSupport,
    choose_gpu_access,
    create_host_gpu_env,
    detect_gpu_support_from_engine_info,
    parse_gpus_option,
)
from rlbox.errors import MachineError
from rlbox.i18n import _, join
from rlbox.system.gpu import FIRMWARE_TIMEOUT_S, probe_cuda_driver, query_gpus_or_empty
from rlbox.system.identity import is_in_rlbox_image
from rlbox.target.lock import load_lock
from rlbox.target.target import find_cuda12_variant_or_empty

if TYPE_CHECKING:
    from rlbox.image.plan import ImagePlan


def get_gpus_option_or_env(option: str) -> str:
    return option or os.environ.get(GPUS_VARIABLE, "")


def choose_and_print_gpu_access(app: App, image: ImagePlan, gpus_option: str) -> GpuAccess:
    """Return how a container of the target's image gets its GPUs; a target without any asks no engine."""
    option = get_gpus_option_or_env(gpus_option)
    access = NO_GPUS
    with app.collecting_refusals_if_dry_run("GPUs"):
        request = parse_gpus_option(option, image.container.gpus)
        if request.is_none and not image.container.gpus:
            return NO_GPUS
        access = choose_gpu_access(request, GpuSupport(is_local=False, is_cdi_enabled=True))  # where none answers
        support, is_local = GpuSupport(), is_engine_on_unix_socket() and not is_in_rlbox_image()
        if not request.is_none:
            support = detect_gpu_support_from_engine_info(connect_engine().info(), find_engine_url(), is_local=is_local)
        access = choose_gpu_access(request, support, set_gpu_count_env=bool(option))
        if not request.is_none:
            app.print_status(_("GPUs: {access}").format(access=access.describe()))
    return access


def choose_and_print_gpu_env_or_empty(app: App, gpus_option: str) -> dict[str, str]:
    """Return the variables that choose the GPUs of programs on this machine itself; empty: nothing was asked for."""
    if not (option := get_gpus_option_or_env(gpus_option)):
        return {}
    env = {}
    with app.collecting_refusals_if_dry_run("GPUs"):
        env = create_host_gpu_env(parse_gpus_option(option, 0), os.environ, probe_cuda_driver().device_file_count)
        shown = env.get("CUDA_VISIBLE_DEVICES", _("all")) or _("none")
        app.print_status(_("GPUs: {gpus} by CUDA_VISIBLE_DEVICES").format(gpus=shown))
    return env


def require_usable_local_gpus(
    app: App, image: ImagePlan, gpus_option: str, access: GpuAccess, image_env: Mapping[str, str]
) -> None:
    """Refuse a run whose GPUs or driver do not fit the stack, before its container is made; raises `MachineError`."""
    if access.method == "none" or is_in_rlbox_image() or not is_engine_on_unix_socket():
        return  # what is elsewhere is examined there, by the checks of the run's first stage
    limits = image.container
    request = parse_gpus_option(get_gpus_option_or_env(gpus_option), limits.gpus)
    declared = Requirements(gpu=limits.gpu or "GPU", gpus=limits.gpus, arch=limits.arch, grade=limits.gpu_grade)
    requirements = override_gpus_unless_all(declared, request.count_all_or_none)
    for finding in (
        *check_driver(probe_cuda_driver(), load_driver_requirements(app, image, image_env), requirements),
        *check_required_gpu_arch(query_gpus_or_empty(FIRMWARE_TIMEOUT_S), requirements),
    ):
        if finding.level == "error":
            raise MachineError(join(": ", (finding.title, finding.seen)), where=finding.where, next_step=finding.remedy)
        text = _("warning: {title}: {seen}\n  next:  {step}")
        app.print_status(text.format(title=finding.title, seen=finding.seen, step=finding.remedy))


def parse_image_environment(image_info: Mapping[str, Any]) -> dict[str, str]:
    lines = (image_info.get("Config") or {}).get("Env") or ()
    return {name: value for name, _, value in (str(line).partition("=") for line in lines)}


def find_oldest_driver_branch_for_locked_cuda(app: App, target: str) -> str | None:
    """Return the oldest branch of the driver that runs the CUDA of a target's lock; None where it has none."""
    cuda = find_stack_cuda_version_or_empty(_packages(app, target))
    return OLDEST_DRIVERS.get(int(cuda.partition(".")[0])) if cuda else None


def _packages(app: App, target: str) -> dict[str, str]:
    lock = load_lock(app.project.own_or_shipped_lock_file(target))
    return {row.name: row.version for group in lock.groups for row in group.packages} if lock else {}


def load_driver_requirements(app: App, image: ImagePlan, image_env: Mapping[str, str]) -> DriverRequirements:
    require = image_env.get("NVIDIA_REQUIRE_CUDA", "")
    return DriverRequirements(
        require_cuda_variable=require,
        torch_cuda=find_stack_cuda_version_or_empty(_packages(app, image.target)),
        # NVIDIA's own bases, which set both, bring the compatibility library; source: nvidia/cuda's Dockerfiles.
        has_compat_libraries=bool(require and image_env.get("CUDA_VERSION")),
        target_for_older_drivers=find_cuda12_variant_or_empty(app.project, image.target),
    )
