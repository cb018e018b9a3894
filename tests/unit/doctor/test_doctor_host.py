"""What doctor says of a host that gives its GPUs to containers: each fault is named, a machine without it is not."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import load_cases

from rlbox.doctor.gpus import DriverRequirements, check_driver, check_pcie_iommu
from rlbox.doctor.host import check_cgroups_and_cdi_paths, check_engine_gpus_and_disk, check_fabric_manager_by_cuda
from rlbox.doctor.requirements import Requirements
from rlbox.doctor.stack import ProbeProgramResult
from rlbox.engine.gpu_access import GpuSupport
from rlbox.system.gpu import CudaDriver, find_pcie_p2p_gpu_bus_ids

CASES = load_cases("doctor", "test_doctor_host")
TARGET = Requirements(gpu="NVIDIA A800", gpus=2)
TWO_GPUS = CudaDriver(is_present=True, device_file_count=2, max_cuda_version=(13, 0))
BY_RUNTIME = GpuSupport(has_nvidia_runtime=True, device_nodes=("/dev/nvidia0",))
NO_CGROUPS = "[nvidia-container-cli]\nno-cgroups = true\n"
DEFAULT = "[nvidia-container-cli]\n#no-cgroups = true\nno-cgroups = false\n"


def ids(findings: Any) -> list[str]:
    return [finding.id for finding in findings]


@pytest.mark.parametrize(
    ("config", "is_rootless", "is_nested", "support", "names"),
    [
        (NO_CGROUPS, False, False, BY_RUNTIME, ["toolkit-no-cgroups"]),
        (DEFAULT, True, False, BY_RUNTIME, ["toolkit-cgroups-rootless"]),
        (DEFAULT, False, False, BY_RUNTIME, []),
        (NO_CGROUPS, True, False, BY_RUNTIME, []),
        (NO_CGROUPS, False, True, BY_RUNTIME, []),  # in LXC it is right
        (NO_CGROUPS, False, False, replace(BY_RUNTIME, is_local=False), []),
        (NO_CGROUPS, False, False, GpuSupport(), []),
        (None, True, False, BY_RUNTIME, []),
    ],
)
def test_toolkit_config_that_does_not_fit_the_engine_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    config: str | None, is_rootless: bool, is_nested: bool, support: GpuSupport, names: list[str],
) -> None:  # fmt: skip
    if config is not None:
        (tmp_path / "config.toml").write_text(config)
    monkeypatch.setattr("rlbox.doctor.host.TOOLKIT_CONFIG", tmp_path / "config.toml")
    monkeypatch.setattr("rlbox.doctor.host.NESTED_MARKS", (str(tmp_path),) if is_nested else ())
    findings = list(check_cgroups_and_cdi_paths(support, is_rootless=is_rootless))
    assert ids(findings) == names
    assert all(finding.level == "warning" and "sudo nvidia-ctk config" in finding.remedy for finding in findings)


def test_engine_with_cdi_off_is_told_how_to_turn_it_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia.yaml").write_text("kind: nvidia.com/gpu\n")
    monkeypatch.setattr("rlbox.engine.gpu_access.CDI_FOLDERS", (str(tmp_path),))
    monkeypatch.setattr("rlbox.doctor.host.is_engine_on_unix_socket", lambda: True)
    monkeypatch.setattr("rlbox.doctor.host.resolve_engine_address_opening_tunnel", lambda: "unix:///x.sock")
    (finding,) = check_engine_gpus_and_disk({"Runtimes": {}, "DockerRootDir": "/none"}, TARGET)
    assert finding.id == "gpu-runtime-missing"
    assert "--cdi.enabled" in finding.remedy


SPEC = CASES["SPEC"]
JSON_SPEC = (
    '{{"kind": "nvidia.com/gpu", "containerEdits": {{"mounts": [{{"hostPath": "{folder}/libcuda.so.550.54.14"}}]}}}}'
)


@pytest.mark.parametrize("spec", [SPEC, JSON_SPEC])
def test_cdi_specification_of_an_older_driver_is_named(tmp_path: Path, spec: str) -> None:
    file = tmp_path / "nvidia.yaml"
    file.write_text(spec.format(folder=tmp_path))
    older = tmp_path / "etc/nvidia.yaml"  # /var/run/cdi overrides it
    support = GpuSupport(is_cdi_enabled=True, cdi_spec_files=(str(older), str(file)), device_nodes=("/dev/nvidia0",))
    for name in ("hook", "nvidia0"):
        (tmp_path / name).touch()
    (finding,) = check_cgroups_and_cdi_paths(support, is_rootless=False)
    assert (finding.id, finding.seen) == ("cdi-stale", f"{tmp_path}/libcuda.so.550.54.14")
    assert f"cdi generate --output={file}" in finding.remedy
    assert list(check_cgroups_and_cdi_paths(replace(support, device_nodes=()), is_rootless=False)) == []
    (tmp_path / "libcuda.so.550.54.14").touch()
    assert list(check_cgroups_and_cdi_paths(support, is_rootless=False)) == []


@pytest.mark.parametrize(
    ("code", "names"), [(errno.EPERM, ["nvml-unknown-in-container"]), (errno.EACCES, []), (errno.ENOENT, [])]
)
def test_gpus_that_the_device_rules_refuse_are_named(
    monkeypatch: pytest.MonkeyPatch, code: int, names: list[str]
) -> None:
    def refuse(path: str, flags: int) -> int:
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr("rlbox.doctor.gpus.os.open", refuse)
    assert ids(check_driver(TWO_GPUS, DriverRequirements(), TARGET)) == names
    assert ids(check_driver(TWO_GPUS, DriverRequirements(), Requirements())) == []


@pytest.mark.parametrize(("code", "names"), [(802, ["fabric-manager-down"]), (804, []), (100, []), (0, [])])
def test_fabric_that_is_not_ready_is_named_on_the_host(
    monkeypatch: pytest.MonkeyPatch, code: int, names: list[str]
) -> None:
    """Other codes may be of this shell: CUDA_VISIBLE_DEVICES, a compat library."""
    step = {"step": "driver", "ok": code == 0, "code": code, "name": "CUDA_ERROR", "count": 8, "library": "/l"}

    @contextlib.contextmanager
    def open_probe(*args: object) -> Iterator[Any]:
        yield SimpleNamespace(run=lambda script, monotonic_deadline: ProbeProgramResult(steps=(step,)))

    monkeypatch.setattr("rlbox.doctor.host.open_scratch_dir_stack_probe", open_probe)
    monkeypatch.setattr("rlbox.doctor.host.probe_cuda_driver", lambda: TWO_GPUS)
    findings = list(check_fabric_manager_by_cuda())
    assert ids(findings) == names
    assert all("nvidia-fabricmanager" in finding.remedy for finding in findings)
    monkeypatch.setattr("rlbox.doctor.host.probe_cuda_driver", CudaDriver)
    assert list(check_fabric_manager_by_cuda()) == []


@pytest.mark.parametrize(
    ("group_type", "cpu_flags", "environ", "names"), CASES["pcie_peers_behind_a_translating_iommu_are_named"]
)
def test_pcie_peers_behind_a_translating_iommu_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    group_type: str, cpu_flags: str, environ: dict[str, str], names: list[str],
) -> None:  # fmt: skip
    bus_ids = {"0000:41:00.0", "0000:61:00.0"}
    monkeypatch.setattr("rlbox.doctor.gpus.find_pcie_p2p_gpu_bus_ids", lambda: bus_ids)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(f"processor : 0\nflags : {cpu_flags}\n")
    for bus_id in bus_ids if group_type else ():
        group = tmp_path / "sys/bus/pci/devices" / bus_id / "iommu_group"
        group.mkdir(parents=True)
        (group / "type").write_text(f"{group_type}\n")
    findings = list(check_pcie_iommu(environ, tmp_path))
    assert ids(findings) == names
    assert all("NCCL_P2P_DISABLE=1" in finding.remedy and "0000:41" in finding.where for finding in findings)


def fake_nvml(links: dict[int, int]) -> SimpleNamespace:
    """Return an NVML of two GPUs; `links` has NVML's status (0: OK) by kind (0: read, 2: NVLink)."""
    return SimpleNamespace(
        NVMLError=RuntimeError, NVML_P2P_CAPS_INDEX_READ=0, NVML_P2P_CAPS_INDEX_NVLINK=2, NVML_P2P_STATUS_OK=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetPciInfo=lambda index: SimpleNamespace(busId=f"00000000:{index}A:00.0"),
        nvmlDeviceGetP2PStatus=lambda device, peer, kind: links[kind],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("links", "bus_ids"),
    [({0: 0, 2: 5}, {"0000:0a:00.0", "0000:1a:00.0"}), ({0: 0, 2: 0}, set()), ({0: 1, 2: 5}, set())],
)
def test_pcie_peers_are_gpus_without_nvlink(
    monkeypatch: pytest.MonkeyPatch, links: dict[int, int], bus_ids: set[str]
) -> None:
    nvml = fake_nvml(links)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert find_pcie_p2p_gpu_bus_ids() == bus_ids

    def fail() -> None:
        raise nvml.NVMLError("no driver")

    nvml.nvmlInit = fail
    assert find_pcie_p2p_gpu_bus_ids() == set()
