"""The container as a value, as words of the docker client and as docker-py's options."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import LIMITS

from rlbox.app import App
from rlbox.config.project import Project
from rlbox.engine.container import (
    build_own_network_commands_or_empty,
    create_docker_py_options,
    format_docker_run_args,
    plan_container,
)
from rlbox.engine.data_disk import report_and_require_local_devices
from rlbox.engine.gpu_access import GpuAccess
from rlbox.errors import MachineError
from rlbox.values import Mount

GIB = 1 << 30
SMALL = plan_container(
    "rlbox/mine:latest",
    LIMITS,
    name="n",
    argv=("sh", "-c", "echo $HOME; exit 3"),
    env={},
    labels={},
    data_dir="/disk",
    caller_uid_gid="1000:1000",
)
LARGE = plan_container(
    "rlbox/mine:latest",
    replace(LIMITS, network="bridge", shm_gib=2.5, memory_gib=14.0, cpus=1.5, pids=4096, disk_mount="/d"),
    name="n",
    argv=(),
    env={"B": "two words", "A": "1=2"},
    labels={"rlbox.target": "mine", "rlbox.run": "r"},
    data_dir="/disk",
    caller_uid_gid="1000:100",
)


@pytest.mark.parametrize(
    ("asked", "caller", "user"),
    [("caller", "1000:100", "1000:100"), ("caller", "0:0", ""), ("root", "1000:100", ""), ("root", "0:0", "")],
)
def test_user(asked: str, caller: str, user: str) -> None:
    limits = replace(LIMITS, user=asked)
    plan = plan_container("i", limits, name="n", argv=(), env={}, labels={}, data_dir="/d", caller_uid_gid=caller)
    assert plan.user == user


def test_client_words() -> None:
    assert format_docker_run_args(SMALL, interactive=False, terminal=False) == (
        "run", "--rm", "--init", "--pull=never", "--name=n", "--network=host", "--cap-drop=ALL",
        "--security-opt=no-new-privileges", f"--shm-size={GIB}", "--user=1000:1000",
        "--volume=/disk:/data", "rlbox/mine:latest", "sh", "-c", "echo $HOME; exit 3",
    )  # fmt: skip
    assert format_docker_run_args(LARGE, interactive=True, terminal=True) == (
        "run", "--rm", "--init", "--pull=never", "--name=n", "--network=bridge", "--cap-drop=ALL",
        "--security-opt=no-new-privileges", f"--shm-size={5 * GIB // 2}",
        f"--memory={14 * GIB}", f"--memory-swap={14 * GIB}", "--cpus=1.5", "--pids-limit=4096", "--user=1000:100",
        "--label=rlbox.run=r", "--label=rlbox.target=mine", "--env=A=1=2", "--env=B=two words",
        "--volume=/disk:/d", "--interactive", "--tty", "rlbox/mine:latest",
    )  # fmt: skip


def test_a_network_of_its_own() -> None:
    plan = replace(SMALL, network="own", labels={"rlbox.owner": "1000"})
    before, after = build_own_network_commands_or_empty(plan)
    assert before == (
        "docker", "network", "create", "--driver=bridge", "--label=rlbox.network=n", "--label=rlbox.owner=1000", "n",
    )  # fmt: skip
    assert after == ("docker", "network", "rm", "n")
    assert "--network=n" in format_docker_run_args(plan, interactive=False, terminal=False)
    assert create_docker_py_options(plan)["network_mode"] == "n"
    assert build_own_network_commands_or_empty(SMALL) == ((), ())


def test_ports_are_published_on_loopback_alone() -> None:
    assert create_docker_py_options(replace(SMALL, published_ports=(8101,)))["ports"] == {
        "8101/tcp": ("127.0.0.1", 8101)
    }


def test_a_read_only_mount() -> None:
    plan = replace(SMALL, mounts=(Mount(source="/a", target="/b", read_only=True),))
    assert "--volume=/a:/b:ro" in format_docker_run_args(plan, interactive=False, terminal=False)
    assert create_docker_py_options(plan)["volumes"] == {"/a": {"bind": "/b", "mode": "ro"}}


def test_engine_options() -> None:
    assert create_docker_py_options(SMALL) == {
        "image": "rlbox/mine:latest",
        "command": ["sh", "-c", "echo $HOME; exit 3"],
        "name": "n",
        "environment": {},
        "labels": {},
        "volumes": {"/disk": {"bind": "/data", "mode": "rw"}},
        "network_mode": "host",
        "ports": {},
        "shm_size": GIB,
        "mem_limit": None,
        "memswap_limit": None,
        "nano_cpus": None,
        "pids_limit": None,
        "user": "1000:1000",
        "ulimits": [],
        "devices": [],
        "cap_drop": ["ALL"],
        "cap_add": [],
        "security_opt": ["no-new-privileges"],
        "init": True,
        "detach": True,
    }
    large = create_docker_py_options(LARGE)
    names = ("mem_limit", "memswap_limit", "nano_cpus", "pids_limit", "shm_size")
    assert [large[name] for name in names] == [14 * GIB, 14 * GIB, 1_500_000_000, 4096, 5 * GIB // 2]


def test_devices_of_the_machine_are_handed_over_beside_its_gpus() -> None:
    limits = replace(LIMITS, devices={"/dev/infiniband": "rw", "/dev/fuse": "rwm"})
    plan = plan_container("i", limits, name="n", argv=(), env={}, labels={}, data_dir="/d", caller_uid_gid="1:1")
    rows = ["/dev/fuse:/dev/fuse:rwm", "/dev/infiniband:/dev/infiniband:rw"]
    words = format_docker_run_args(plan, interactive=False, terminal=False)
    assert [word for word in words if word.startswith("--device=")] == [f"--device={row}" for row in rows]
    assert create_docker_py_options(plan)["devices"] == rows
    cdi = create_docker_py_options(replace(plan, gpus=GpuAccess(method="cdi", names=("nvidia.com/gpu=0",))))
    assert (cdi["devices"], "device_requests" in cdi) == (rows, True)


def test_a_device_that_this_machine_lacks_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rlbox.engine.data_disk.is_engine_on_unix_socket", lambda: True)
    app = App(project=Project(folder=tmp_path))
    report_and_require_local_devices(app, replace(LIMITS, devices={"/dev/null": "rw"}))
    with pytest.raises(MachineError) as refused:
        report_and_require_local_devices(
            app, replace(LIMITS, devices={"/dev/null": "rw", "/dev/no-such-adapter": "rw"})
        )
    assert refused.value.what.startswith("this machine has no /dev/no-such-adapter")
    assert "[run.devices]" in refused.value.next_step
