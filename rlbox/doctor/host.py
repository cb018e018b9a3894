"""What `rlbox doctor` does: examine where it runs, or a host with a container of its image; nothing is changed."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rlbox.amounts import GIB, decimal_size_text
from rlbox.app import App
from rlbox.artifacts.profile import load_profile
from rlbox.doctor.catalogue import make_finding
from rlbox.doctor.checks import Check, CheckThreads
from rlbox.doctor.container import BUDGET_S, examine_container
from rlbox.doctor.disks import RunDirectory, check_host_dirs_by_writing_or_report_none, is_path_responsive_cached
from rlbox.doctor.environment import check_tokens_and_dotenv_files
from rlbox.doctor.gpu_choice import (
    choose_and_print_gpu_access,
    choose_and_print_gpu_env_or_empty,
    get_gpus_option_or_env,
    load_driver_requirements,
)
from rlbox.doctor.gpus import (
    DriverRequirements,
    GpuFacts,
    check_cuda_init_nvml_and_gpu_health,
    check_driver,
    check_pcie_iommu,
)
from rlbox.doctor.network import Endpoint, check_network
from rlbox.doctor.processes import check_live_runs_and_leftovers, list_processes_in_same_container
from rlbox.doctor.report import (
    DoctorReport,
    format_report,
    format_summary,
    merge_and_split_off_explained,
    merge_reports,
    parse_report,
)
from rlbox.doctor.requirements import Requirements, override_gpus_unless_all, parse_or_default
from rlbox.doctor.stack import StackPythonAndRequirements, find_local_stack, open_scratch_dir_stack_probe
from rlbox.engine.address import is_engine_on_unix_socket, resolve_engine_address_opening_tunnel
from rlbox.engine.connection import connect_engine, find_image
from rlbox.engine.container import OWNER_LABEL, TARGET_LABEL, plan_container
from rlbox.engine.data_disk import resolve_data_dir_outside_system_dirs, would_create_default_data_dir
from rlbox.engine.gpu_access import NO_GPUS, GpuSupport, detect_gpu_support_from_engine_info, parse_gpus_option
from rlbox.errors import EngineError, MachineError, RlboxError, WorkFailed
from rlbox.findings import Finding, join_and_count_rest
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _
from rlbox.image.context import find_image_outdated_reason
from rlbox.image.plan import ImagePlan, doctor_requirements_json, load_image_plan
from rlbox.job.job import load_target_ports_by_job_dot_port
from rlbox.system.files import free_bytes_or_0
from rlbox.system.gpu import probe_cuda_driver
from rlbox.system.identity import format_uid_gid, is_in_rlbox_image
from rlbox.system.network_settings import find_env_or_pip_ca_bundle_or_empty
from rlbox.system.process_table import read_text_or_empty
from rlbox.target.target import load_target

_LEAST_ENGINE_BYTES = 5 * GIB
_REMOVAL_S = 5.0  # what an engine gets to remove the container once nobody waits for its answer


def _check_host(app: App, target: str | None, data_dir: str | None, gpus_option: str, budget_s: float) -> DoctorReport:
    """Return what is wrong with this host for a target (none: with what every target needs)."""
    start = time.monotonic()
    image = load_image_plan(app.project, target) if target else None
    gpus = parse_gpus_option(get_gpus_option_or_env(gpus_option), image.container.gpus if image else 0)
    directory = _find_data_dir(image, data_dir)
    requirements = override_gpus_unless_all(_load_requirements(app, image), gpus.count_all_or_none)
    checks = _list_checks(app, image, requirements, directory)
    in_container = _ImageCheck(app, image, directory, gpus_option, budget_s) if image else None
    if in_container:
        checks = {"image": in_container.run, **checks}
    threads = CheckThreads(checks, start + budget_s)
    try:
        found = threads.wait_and_get_findings_so_far()
    finally:
        if in_container and in_container.has_started and threads.is_running("image"):
            in_container.remove_container_while(partial(threads.is_running, "image"))
    findings, follows = merge_and_split_off_explained(row for rows in found.values() for row in rows)
    unfinished = tuple(threads.describe_unfinished_or_failed())
    host = DoctorReport(findings=findings, follows=follows, checks=len(checks) - len(unfinished), unfinished=unfinished)
    reports = [in_container.report] if in_container and in_container.report else []
    return merge_reports([host, *reports], time.monotonic() - start)


def _list_checks(
    app: App, image: ImagePlan | None, requirements: Requirements, data_dir: Path | None
) -> dict[str, Check]:
    is_usable = data_dir is not None and is_path_responsive_cached(str(data_dir))
    dotenv_dirs = list(map(str, (app.project.folder, os.getcwd(), *((data_dir,) if is_usable else ()))))
    shares_network = image is not None and image.container.network == "host"
    driver_requirements = partial(load_driver_requirements, app, image, {}) if image else DriverRequirements
    checks: dict[str, Check] = {
        "processes": lambda: check_live_runs_and_leftovers(list_processes_in_same_container()),
        "network": lambda: check_network(
            os.environ,
            requirements.ports if shares_network and is_engine_on_unix_socket() else {},
            _list_mirrors(app, image) if image else (),
        ),
        "engine": lambda: check_engine(requirements),
        "driver": lambda: check_driver(probe_cuda_driver(), driver_requirements(), requirements),
        "fabric": check_fabric_manager_by_cuda,
        "tokens": lambda: check_tokens_and_dotenv_files(os.environ, dotenv_dirs, requirements),
    }
    if requirements.grade != "consumer":  # whose images have NCCL_P2P_DISABLE=1
        checks["gpu peers"] = lambda: check_pcie_iommu({**requirements.env, **os.environ})
    is_made_by_run = image and data_dir and is_usable and would_create_default_data_dir(data_dir, image.container)
    if (image or data_dir) and not is_made_by_run:
        directories = [RunDirectory("data", str(data_dir))] if data_dir else []
        checks["data disk"] = lambda: check_host_dirs_by_writing_or_report_none(directories, requirements)
    return checks


def _load_requirements(app: App, image: ImagePlan | None) -> Requirements:
    if image is None:
        return Requirements()
    target = load_target(app.project, image.target).target
    ports = load_target_ports_by_job_dot_port(app.project, target.name)
    return parse_or_default(
        {"target": target.name, "facts": doctor_requirements_json(target, image.container, ports)}, {}
    )


def _find_data_dir(image: ImagePlan | None, data_dir: str | None) -> Path | None:
    named = data_dir or os.environ.get("RLBOX_DATA") or (image.container.disk_host_dir if image else "")
    if named and not is_path_responsive_cached(path := os.path.abspath(os.path.expanduser(named))):
        return Path(path)
    if data_dir is not None or os.environ.get("RLBOX_DATA"):
        return resolve_data_dir_outside_system_dirs("", data_dir)
    try:
        return resolve_data_dir_outside_system_dirs(image.container.disk_host_dir, None) if image else None
    except RlboxError:  # none is named, which is a finding
        return None


def _list_mirrors(app: App, image: ImagePlan) -> list[Endpoint]:
    rules = [rule for rule in load_profile(app.project, image.sources_profile).rule if rule.url.startswith("http")]
    kinds = [rule.kind for rule in rules]
    return [
        Endpoint(
            name=rule.display_name, url=f"{rule.url_without_trailing_slash}/", is_optional=kinds.count(rule.kind) > 1
        )
        for rule in rules
    ]


def check_engine(requirements: Requirements) -> Iterator[Finding]:
    try:
        info = connect_engine().info()
    except EngineError as error:
        yield make_finding("engine-missing", seen=error.what, where=error.where, remedy=error.next_step)
        return
    yield from check_engine_gpus_and_disk(info, requirements)


def check_engine_gpus_and_disk(info: Mapping[str, Any], requirements: Requirements) -> Iterator[Finding]:
    address, is_local = resolve_engine_address_opening_tunnel(), is_engine_on_unix_socket()
    support = detect_gpu_support_from_engine_info(info, address, is_local=is_local and not is_in_rlbox_image())
    if requirements.wants_gpu and not support.methods_best_first:
        yield make_finding("engine-cdi-off" if support.cdi_spec_files else "gpu-runtime-missing", where=address)
    yield from check_cgroups_and_cdi_paths(support, is_rootless="name=rootless" in (info.get("SecurityOptions") or ()))
    root = Path(str(info.get("DockerRootDir", "")))
    if is_local and root.is_absolute() and root.is_dir() and (free := free_bytes_or_0(root) or 0) < _LEAST_ENGINE_BYTES:
        yield make_finding("engine-disk-full", level="warning", where=str(root), room=decimal_size_text(free))


TOOLKIT_CONFIG = Path("/etc/nvidia-container-runtime/config.toml")
NESTED_MARKS = (
    "/run/systemd/container",
    "/.dockerenv",
)  # of LXC and Docker, where root may not set device rules either


def check_cgroups_and_cdi_paths(support: GpuSupport, *, is_rootless: bool) -> Iterator[Finding]:
    """Yield what is wrong in the files by which an engine of this machine gives its GPUs to containers."""
    method, config = support.methods_best_first[:1] if support.is_local else (), read_text_or_empty(TOOLKIT_CONFIG)
    has_no_cgroups = bool(re.search(r"^\s*no-cgroups\s*=\s*true", config, re.M))
    if method == ("gpus",) and config and has_no_cgroups != is_rootless and not any(map(os.path.exists, NESTED_MARKS)):
        finding_id = "toolkit-no-cgroups" if has_no_cgroups else "toolkit-cgroups-rootless"
        yield make_finding(finding_id, level="warning", where=str(TOOLKIT_CONFIG))
    if method == ("cdi",) and support.cdi_spec_files and support.device_nodes:
        file = support.cdi_spec_files[-1]  # the last folder overrides the others; source: CDI's SPEC.md
        paths = dict.fromkeys(re.findall(r"""\b(?:hostPath|path)"?:\s*"?(/[^"\s,]+)""", read_text_or_empty(file)))
        if gone := [path for path in paths if not os.path.exists(path) and os.access(os.path.dirname(path), os.X_OK)]:
            yield make_finding("cdi-stale", level="warning", seen=join_and_count_rest(gone), where=file, file=file)


def check_fabric_manager_by_cuda() -> Iterator[Finding]:
    """Start CUDA in a process of its own, and report only error 802: others may come from this shell's variables."""
    if probe_cuda_driver().device_file_count:
        here = StackPythonAndRequirements(python=sys.executable, requirements=Requirements())
        with open_scratch_dir_stack_probe(here, os.environ) as probe:
            cuda = probe.run("probe_cuda.py", monotonic_deadline=time.monotonic() + BUDGET_S)
        found = check_cuda_init_nvml_and_gpu_health(GpuFacts(cuda=cuda), here.requirements)
        yield from (finding for finding in found if finding.id == "fabric-manager-down")


class _ImageCheck:
    """Checks the image of a target, and examines a container of it; `report` is what doctor said in there."""

    def __init__(self, app: App, image: ImagePlan, data_dir: Path | None, gpus_option: str, budget_s: float) -> None:
        self._app, self._image, self._data_dir = app, image, data_dir
        self._gpus_option, self._budget_s = gpus_option, budget_s
        self._container_name = f"rlbox-doctor-{image.target}-{os.getpid()}"
        self.has_started = False
        self.report: DoctorReport | None = None

    def run(self) -> Iterator[Finding]:
        image = self._image
        try:
            info = find_image(image.tag)
        except RlboxError:  # the engine has a finding of its own
            return
        if info is None:
            yield make_finding("image-missing", level="note", target=image.target)
            return
        # Whoever asks a directory that does not answer waits for ever.
        if self._data_dir and is_path_responsive_cached(str(self._data_dir)) and self._data_dir.is_dir():
            self.has_started = True
            yield from self._examine_container(str(info["Id"]))
        if find_image_outdated_reason(image, info):
            yield make_finding("image-outdated", level="note", target=image.target)

    def _examine_container(self, image_id: str) -> Iterator[Finding]:
        image, gpus = self._image, NO_GPUS
        with contextlib.suppress(EngineError, MachineError):  # an engine that offers none has a finding of its own
            gpus = choose_and_print_gpu_access(self._app, image, self._gpus_option)
        bytecode = f"cache/bytecode/{image.target}/{image_id.rpartition(':')[2][:16]}"  # as of runs
        plan = plan_container(
            image.tag,
            connect_engine().use_host_network_if_no_bridge(image.container),
            name=self._container_name,
            argv=("/opt/rlbox/bin/python", "-m", "rlbox.doctor", "container", f"{0.8 * self._budget_s:.1f}"),
            env={"PYTHONPYCACHEPREFIX": f"{image.container.disk_mount}/{bytecode}"},
            labels={TARGET_LABEL: image.target, OWNER_LABEL: str(os.getuid())},
            data_dir=str(self._data_dir),
            caller_uid_gid=format_uid_gid(),
            ca_bundle=find_env_or_pip_ca_bundle_or_empty() if is_engine_on_unix_socket() else "",
            gpus=gpus,
        )
        try:
            outcome = connect_engine().run_and_remove_container(plan, timeout_s=self._budget_s)
            self.report = parse_report(parse_untrusted_json(outcome.stdout))
        except EngineError as error:
            yield make_finding("container-refused", seen=error.what[:500], where=image.tag)
        except (ValueError, KeyError, TypeError):
            lines = outcome.stderr.strip().splitlines() or [_("no output")]
            yield make_finding("container-refused", seen=lines[-1][:500], where=image.tag)

    def remove_container_while(self, is_running: Callable[[], bool]) -> None:
        """Remove the container when nobody waits for it: its thread ends with this process, before it would."""

        def remove() -> None:
            with contextlib.suppress(RlboxError):
                while is_running():  # one that is asked for at this moment is there at the next look
                    connect_engine().remove_container_and_network(self._container_name)
                    time.sleep(0.1)

        thread = threading.Thread(target=remove, daemon=True)  # an engine that hangs must not keep rlbox from ending
        thread.start()
        thread.join(_REMOVAL_S)


def run_host_or_container_doctor(
    app: App, target: str | None, *, data_dir: str | None, gpus_option: str, budget_s: float
) -> int:
    report = _examine(app, target, data_dir, gpus_option, budget_s or BUDGET_S)
    app.output(report.as_json(), format_report(report, with_notes_and_follows=app.verbosity > 0))
    app.print_status(format_summary(report))
    return WorkFailed.exit_code if report.has_errors else 0


def _examine(app: App, name: str | None, data: str | None, gpus: str, budget_s: float) -> DoctorReport:
    if (here := find_local_stack()) or is_in_rlbox_image():
        if name and here and here.requirements.target != name:
            raise MachineError(
                _("the installed stack belongs to target {target!r}").format(target=here.requirements.target),
                where=here.python,
                next_step=_("rlbox doctor, or rlbox doctor {name} outside of this container").format(name=name),
            )
        return examine_container(
            {**os.environ, **(choose_and_print_gpu_env_or_empty(app, gpus) if gpus else {})}, budget_s
        )
    return _check_host(app, name, data, gpus, budget_s)
