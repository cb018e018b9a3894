"""The five jobs as they are typed first, on a machine with what their target describes: refused by nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes import CHECKOUT, EngineSocket, Rlbox

from rlbox.amounts import GIB
from rlbox.config.project import Project
from rlbox.image.context import compute_build_digest, list_hashed_context_entries
from rlbox.image.plan import load_image_plan
from rlbox.job.job import load_job
from rlbox.system.gpu import CudaDriver, GpuStatus
from rlbox.target.target import Target, load_target

pytestmark = pytest.mark.allow("sockets", "processes")
PROJECT = Project(folder=CHECKOUT)
JOBS = ("gkd", "grpo", "holdem", "sft", "xdan")


@pytest.fixture(params=JOBS)
def job(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def target(job: str) -> Target:
    return load_target(PROJECT, load_job(PROJECT, job).target).target


@pytest.fixture
def machine(target: Target, engine: EngineSocket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the target describes, and its image; returns the data disk. A driver shows a little less than a card has."""
    hardware = target.hardware
    cards = tuple(
        GpuStatus(
            index=number, name=hardware.gpu, utilization=0, power_w=50, power_limit_w=500, processes=(),
            memory_bytes=0, total_bytes=int(0.99 * hardware.gpu_memory_gib * GIB), arch=hardware.arch,
        )
        for number in range(hardware.gpus)
    )  # fmt: skip
    driver = CudaDriver(is_present=True, device_file_count=len(cards), max_cuda_version=(13, 0))
    monkeypatch.setattr("rlbox.planner.fit.query_gpus_or_empty", lambda: cards)
    monkeypatch.setattr(
        "rlbox.planner.fit.get_machine_total_memory_bytes", lambda: int((hardware.memory_gib or 1024) * GIB)
    )
    for name in ("planner.fit", "engine.data_disk"):
        monkeypatch.setattr(f"rlbox.{name}.free_bytes_or_0", lambda path: int(target.disk.need_gib * GIB))
    monkeypatch.setattr("rlbox.doctor.gpu_choice.probe_cuda_driver", lambda: driver)
    monkeypatch.setattr("rlbox.doctor.gpu_choice.query_gpus_or_empty", lambda timeout_s: cards)
    monkeypatch.setattr("rlbox.run.inputs.describe_port_holder_unless_free", lambda number: "")
    info = {"ServerVersion": "28.2.2", "Runtimes": {"nvidia": {}}, "CgroupVersion": "2"}
    engine.answers["/info"] = (200, json.dumps(info).encode())
    plan = load_image_plan(PROJECT, target.name)
    labels = {"rlbox.build": compute_build_digest(list_hashed_context_entries(plan), plan.epoch)}
    engine.images[plan.tag] = {"Id": "sha256:0123456789abcdef", "Config": {"Labels": labels}}
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


def test_a_default_run_is_refused_by_nothing(rlbox: Rlbox, job: str, machine: Path) -> None:
    said = rlbox("run", job, "--dry-run", "--data", str(machine), "--project", str(CHECKOUT))
    assert said.code == 0, said.out
    assert "# refused" not in said.out
    assert "open: " not in said.err  # Ray has a token
