"""Which GPUs are asked for, which ways an engine offers, and what a container is given."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import LIMITS, h200

from rlbox.doctor.gpus import (
    DriverRequirements,
    check_driver,
    check_required_gpu_arch,
    find_stack_cuda_version_or_empty,
)
from rlbox.doctor.requirements import Requirements, override_gpus_unless_all
from rlbox.engine.container import create_docker_py_options, format_docker_run_args, plan_container
from rlbox.engine.gpu_access import (
    ALL_GPUS,
    GpuAccess,
    GpuRequest,
    GpuSupport,
    choose_gpu_access,
    create_host_gpu_env,
    detect_gpu_support_from_engine_info,
    parse_gpus_option,
)
from rlbox.errors import EngineError, MachineError, SpecError
from rlbox.system.gpu import CudaDriver

NAMES = ("nvidia.com/gpu=0", "nvidia.com/gpu=1", "nvidia.com/gpu=all")
CDI = GpuSupport(engine_address="unix:///e", is_cdi_enabled=True, cdi_devices=NAMES)
RUNTIME = GpuSupport(engine_address="unix:///e", has_nvidia_runtime=True)
LESS = "--gpus 2, or lower hardware.gpus of the target"
VOID = {"NVIDIA_VISIBLE_DEVICES": "void"}


@pytest.mark.parametrize(
    ("text", "wish"),
    [
        ("", GpuRequest(count=4)),
        ("none", GpuRequest()),
        ("all", GpuRequest(count=ALL_GPUS)),
        ("2", GpuRequest(count=2)),
        ("0,1", GpuRequest(ids=("0", "1"))),
        (" 0, 3 ", GpuRequest(ids=("0", "3"))),
        ("0,", GpuRequest(ids=("0",))),
        ("device=0", GpuRequest(ids=("0",))),
        ("GPU-12ab,MIG-34cd", GpuRequest(ids=("GPU-12ab", "MIG-34cd"))),
    ],
)
def test_what_is_asked_for(text: str, wish: GpuRequest) -> None:
    assert parse_gpus_option(text, 4) == wish


@pytest.mark.parametrize("text", ["0", "-1", "two", "0,0", ",", "device=", "0;1", "0,x", "²", "٣"])
def test_what_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="invalid --gpus") as caught:
        parse_gpus_option(text, 0)
    assert "device=0" in caught.value.next_step


def offer(info: dict[str, Any], *, here: bool = True) -> GpuSupport:
    return detect_gpu_support_from_engine_info(info, "unix:///e", is_local=here)


def test_an_engine_without_any_way() -> None:
    found = offer({"Runtimes": {"runc": {}}, "CDISpecDirs": []})
    assert (found.methods_best_first, found.machine_gpu_count) == ((), None)
    assert offer({}).methods_best_first == ()


def test_an_engine_with_the_toolkit_runtime() -> None:
    found = offer({"Runtimes": {"runc": {}, "nvidia": {"path": "nvidia-container-runtime"}}})
    assert found.methods_best_first == ("gpus",)


def test_an_engine_with_cdi(tmp_path: Path) -> None:
    info = {"Runtimes": {"nvidia": {}}, "CDISpecDirs": [str(tmp_path)]}
    (tmp_path / "other.yaml").write_text("kind: intel.com/gpu\n")
    assert offer(info).methods_best_first == ("gpus",)
    (tmp_path / "nvidia.yaml").write_text("kind: nvidia.com/gpu\n")
    found = offer(info)
    assert (found.methods_best_first, found.cdi_devices) == (("cdi", "gpus"), ())
    assert choose_gpu_access(GpuRequest(count=2), found).names == NAMES[:2]
    found = offer(info | {"DiscoveredDevices": [{"Source": "cdi", "ID": name} for name in NAMES]})
    assert (found.methods_best_first, found.cdi_devices, found.machine_gpu_count) == (("cdi", "gpus"), NAMES, 2)


@pytest.mark.parametrize(
    ("wish", "given", "access"),
    [
        (GpuRequest(count=1), CDI, GpuAccess(method="cdi", names=NAMES[:1], env=VOID)),
        (GpuRequest(count=2), CDI, GpuAccess(method="cdi", names=NAMES[:2], env=VOID)),
        (GpuRequest(ids=("1",)), CDI, GpuAccess(method="cdi", names=NAMES[1:2], env=VOID)),
        (GpuRequest(count=ALL_GPUS), CDI, GpuAccess(method="cdi", names=NAMES[2:], env=VOID)),
        (
            GpuRequest(count=ALL_GPUS),
            replace(CDI, cdi_devices=NAMES[:2]),
            GpuAccess(method="cdi", names=NAMES[:2], env=VOID),
        ),
        (GpuRequest(count=1), replace(CDI, cdi_devices=NAMES[2:]), GpuAccess(method="cdi", names=NAMES[2:], env=VOID)),
        (GpuRequest(count=2), RUNTIME, GpuAccess(method="gpus", names=("2",), by_count=True)),
        (GpuRequest(count=ALL_GPUS), RUNTIME, GpuAccess(method="gpus", names=("all",), by_count=True)),
        (GpuRequest(ids=("0", "1")), RUNTIME, GpuAccess(method="gpus", names=("0", "1"))),
        (GpuRequest(), GpuSupport(), GpuAccess(env=VOID)),
    ],
)
def test_what_a_container_gets(wish: GpuRequest, given: GpuSupport, access: GpuAccess) -> None:
    assert choose_gpu_access(wish, given) == access


def test_doctor_counts_by_what_the_user_said() -> None:
    assert choose_gpu_access(GpuRequest(count=2), RUNTIME, set_gpu_count_env=True).env == {"RLBOX_GPUS": "2"}
    assert choose_gpu_access(GpuRequest(), GpuSupport(), set_gpu_count_env=True).env == VOID | {"RLBOX_GPUS": "none"}
    target = Requirements(gpu="NVIDIA H200", gpus=8)
    assert (
        override_gpus_unless_all(target, "2").gpus,
        override_gpus_unless_all(target, "").gpus,
        override_gpus_unless_all(target, "all").gpus,
    ) == (
        2,
        8,
        8,
    )
    assert not override_gpus_unless_all(target, "none").wants_gpu


@pytest.mark.parametrize(
    ("wish", "given", "says", "step"),
    [
        (GpuRequest(count=4), CDI, "4 GPUs are wanted, this machine has 2", LESS),
        (
            GpuRequest(count=4),
            replace(RUNTIME, device_nodes=("/dev/nvidia0", "/dev/nvidia1")),
            "4 GPUs are wanted, this machine has 2",
            LESS,
        ),
        (GpuRequest(ids=("0", "7")), CDI, "this machine has no GPU 7", "it has: 0, 1"),
    ],
)
def test_a_machine_without_those_gpus(wish: GpuRequest, given: GpuSupport, says: str, step: str) -> None:
    with pytest.raises(MachineError) as caught:
        choose_gpu_access(wish, given)
    assert (caught.value.what, caught.value.next_step) == (says, step)


def test_an_engine_that_offers_nothing() -> None:
    with pytest.raises(EngineError, match="the engine cannot give a GPU to a container") as caught:
        choose_gpu_access(GpuRequest(count=1), GpuSupport(engine_address="unix:///e"))
    assert caught.value.where == "unix:///e: no runtime nvidia, CDI is off, no /dev/nvidia0"
    assert "nvidia-ctk runtime configure" in caught.value.next_step
    with pytest.raises(EngineError) as caught:
        choose_gpu_access(GpuRequest(count=1), GpuSupport(cdi_spec_files=("/etc/cdi/nvidia.yaml",)))
    assert "daemon.json" in caught.value.next_step


def words(access: GpuAccess) -> list[str]:
    plan = container(access)
    return [
        word
        for word in format_docker_run_args(plan, interactive=False, terminal=False)
        if re.search("(?i)nvidia|gpus", word)
    ]


def container(access: GpuAccess) -> Any:
    return plan_container(
        "i", LIMITS, name="n", argv=(), env={}, labels={}, data_dir="/d", caller_uid_gid="0:0", gpus=access
    )


def test_words_and_options_of_each_way() -> None:
    cdi = choose_gpu_access(GpuRequest(count=2), CDI)
    assert words(cdi) == [
        "--device=nvidia.com/gpu=0", "--device=nvidia.com/gpu=1", "--env=NVIDIA_VISIBLE_DEVICES=void",
    ]  # fmt: skip
    assert create_docker_py_options(container(cdi))["device_requests"] == [
        {"Driver": "cdi", "DeviceIDs": list(NAMES[:2])}
    ]
    assert words(choose_gpu_access(GpuRequest(count=2), RUNTIME)) == ["--gpus=2"]
    assert words(choose_gpu_access(GpuRequest(ids=("0", "1")), RUNTIME)) == ['--gpus="device=0,1"']
    requests = [
        create_docker_py_options(container(choose_gpu_access(wish, RUNTIME)))["device_requests"] for wish in WISHES
    ]
    assert requests == [[{"Driver": "", "Capabilities": [["gpu"]], **rest}] for rest in ASKED]
    assert words(GpuAccess()) == []


WISHES = (GpuRequest(count=2), GpuRequest(count=ALL_GPUS), GpuRequest(ids=("0", "1")))
ASKED: tuple[dict[str, Any], ...] = ({"Count": 2}, {"Count": -1}, {"DeviceIDs": ["0", "1"]})


def test_what_is_said() -> None:
    assert choose_gpu_access(GpuRequest(count=2), CDI).describe() == "0, 1 through CDI"
    assert choose_gpu_access(GpuRequest(count=2), RUNTIME).describe() == "2 through the engine's --gpus"
    assumed = GpuSupport(is_local=False, is_cdi_enabled=True)
    assert choose_gpu_access(GpuRequest(count=2), assumed).names == NAMES[:2]
    assert choose_gpu_access(GpuRequest(count=ALL_GPUS), assumed).names == NAMES[2:]


@pytest.mark.parametrize(
    ("packages", "cuda"),
    [
        ({"torch": "2.11.0+cu130"}, "13.0"),
        ({"torch": "2.13.0+cpu", "nvidia-cuda-runtime-cu12": "12.8.90"}, ""),
        ({"torch": "2.9.0", "nvidia-cuda-runtime-cu12": "12.8.90"}, "12.8"),
        ({"torch": "2.11.0", "nvidia-cuda-runtime": "13.0.96"}, "13.0"),
        ({}, ""),
    ],
)
def test_the_cuda_of_a_stack(packages: dict[str, str], cuda: str) -> None:
    assert find_stack_cuda_version_or_empty(packages) == cuda


DATACENTER = Requirements(gpu="NVIDIA A100", grade="datacenter", arch="sm_80")
CONSUMER = Requirements(gpu="NVIDIA GeForce RTX 4090", grade="consumer", arch="sm_89")
WORKSTATION = Requirements(gpu="NVIDIA RTX PRO 6000 Blackwell", grade="workstation", arch="sm_120")
OLD = CudaDriver(is_present=True, max_cuda_version=(12, 4), device_file_count=1)


@pytest.mark.parametrize(
    ("needs", "demands", "remedy"),
    [
        (DriverRequirements(torch_cuda="12.8"), CONSUMER, None),  # a driver runs every CUDA of its own major version
        (DriverRequirements(torch_cuda="13.0"), CONSUMER, "update the host's driver"),
        (
            DriverRequirements(torch_cuda="13.0", has_compat_libraries=True),
            CONSUMER,
            "update the host's driver",
        ),
        (
            DriverRequirements(torch_cuda="13.0"),
            DATACENTER,
            "compatibility library (cuda-compat-13-0; this card can use it)",
        ),
        (DriverRequirements(torch_cuda="13.0"), DATACENTER, "update the host's driver to 580 or newer"),
        (DriverRequirements(torch_cuda="13.0"), WORKSTATION, "update the host's driver"),
        (
            DriverRequirements(torch_cuda="13.0", target_for_older_drivers="mine-cu12"),
            CONSUMER,
            "take the target mine-cu12",
        ),
        (DriverRequirements(torch_cuda="13.0", has_compat_libraries=True), DATACENTER, None),
        (
            DriverRequirements(require_cuda_variable="cuda>=12.8 brand=tesla,driver>=535", has_compat_libraries=True),
            DATACENTER,
            None,
        ),
        (
            DriverRequirements(require_cuda_variable="cuda>=12.8 brand=tesla,driver>=535"),
            CONSUMER,
            "update the host's driver",
        ),
    ],
)
def test_forward_compatibility(needs: DriverRequirements, demands: Requirements, remedy: str | None) -> None:
    found = list(check_driver(OLD, needs, demands))
    assert [row.id for row in found] == (["cuda-driver-old"] if remedy else [])
    assert remedy is None or remedy in found[0].remedy


def test_another_gpu_than_the_target_is_for() -> None:
    found = list(check_required_gpu_arch((replace(h200(0), name="NVIDIA H200", arch="sm_90"),), DATACENTER))
    assert [(row.level, row.seen) for row in found] == [("warning", "NVIDIA H200 is sm_90, the target sm_80")]
    assert list(check_required_gpu_arch((replace(h200(0), name="NVIDIA A100", arch="sm_80"),), DATACENTER)) == []
    assert list(check_required_gpu_arch((replace(h200(0), name="any", arch="sm_90"),), Requirements())) == []


@pytest.mark.parametrize(
    ("asked", "shell", "count", "seen", "word"),
    [
        ("1", "", 2, "0", "1"),
        ("2", "4,6,7", 8, "4,6", "2"),
        ("device=1", "", 2, "1", "1"),
        ("0,2", "", 4, "0,2", "2"),
        ("GPU-4711", "", 4, "GPU-4711", "1"),
        ("3", "", 0, "0,1,2", "3"),
        ("none", "0,1", 2, "", "none"),
        ("all", "", 2, None, "all"),
    ],
)
def test_programs_of_the_machine_itself_see_what_is_asked_for(
    asked: str, shell: str, count: int, seen: str | None, word: str
) -> None:
    env = create_host_gpu_env(parse_gpus_option(asked, 0), {"CUDA_VISIBLE_DEVICES": shell} if shell else {}, count)
    assert (env.get("CUDA_VISIBLE_DEVICES"), env["RLBOX_GPUS"]) == (seen, word)
    assert env.get("CUDA_DEVICE_ORDER") == (None if seen is None else "PCI_BUS_ID")


@pytest.mark.parametrize(
    ("asked", "shell", "says"),
    [
        ("3", "", "3 GPUs are wanted, this machine has 2"),
        ("device=2", "", "this machine has no GPU 2"),
        ("2", "1", "2 GPUs are wanted, this machine has 1"),
    ],
)
def test_what_the_machine_itself_does_not_have_is_refused(asked: str, shell: str, says: str) -> None:
    with pytest.raises(MachineError) as refused:
        create_host_gpu_env(parse_gpus_option(asked, 0), {"CUDA_VISIBLE_DEVICES": shell} if shell else {}, 2)
    assert says in refused.value.what
