"""Each fault of a machine is named, and a healthy machine is not."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlbox.amounts import GIB, MIB
from rlbox.doctor import disks, network
from rlbox.doctor.container import _check_sandbox
from rlbox.doctor.disks import (
    RunDirectory,
    check_directories_by_writing,
    check_host_dirs_by_writing_or_report_none,
    list_run_directories,
)
from rlbox.doctor.environment import check_environment_variables, check_venv_programs_libraries_and_cuda_home
from rlbox.doctor.limits import LimitFacts, check_limits, probe_limits
from rlbox.doctor.network import (
    Endpoint,
    check_network,
    make_endpoint_and_clock_findings,
    read_env_and_pip_endpoints,
    run_ray_start_to_list_ports_or_empty,
)
from rlbox.doctor.processes import ProcessInfo, check_live_runs_and_leftovers
from rlbox.doctor.requirements import Requirements, parse_or_default

TARGET = Requirements(
    target="mine", shm_gib=2.0, pids=4096, memory_gib=14.0, packages={"torch": "2.13.0", "ray": "2.60.0"}
)
LIMITS = LimitFacts(
    shm_total=2 * GIB, shm_free=2 * GIB, pids_max=4096, pids_now=9, memory_max=14 * GIB, memory_free=9 * GIB, cores=2
)


def ids(findings: Any) -> list[str]:
    return [finding.id for finding in findings]


@pytest.mark.parametrize(
    ("changes", "name", "level", "seen"),
    [
        ({"shm_total": None}, "shm-missing", "error", "is not a directory"),
        ({"shm_total": 64 * MIB}, "shm-too-small", "error", "67.1 MB, the target wants 2.1 GB (2 GiB)"),
        ({"shm_total": int(1.5 * GIB)}, "shm-too-small", "warning", "1.6 GB, the target wants 2.1 GB (2 GiB)"),
        ({"shm_free": 9 * MIB}, "shm-full", "error", "9.4 MB free of 2.1 GB"),
        ({"pids_max": 100}, "pids-limit", "error", "limit 100, 9 in use, 2 cores; wanted: 4096"),
        ({"pids_max": 1024}, "pids-limit", "warning", "limit 1024, 9 in use, 2 cores; wanted: 4096"),
        ({"rlimits": {"nproc": 50}}, "pids-limit", "error", "limit 50"),
        ({"memory_max": GIB}, "memory-limit", "error", "1.1 GB, the target wants 15.0 GB"),
        ({"memory_max": 8 * GIB}, "memory-limit", "warning", "8.6 GB, the target wants 15.0 GB"),
        ({"memory_free": 200 * MIB}, "memory-low", "error", "209.7 MB free"),
        ({"rlimits": {"nofile": 256}}, "ulimit-nofile", "error", "256 open files, 4096 are the least"),
        ({"rlimits": {"fsize": 100 * MIB}}, "ulimit-fsize", "error", "100 MiB a file"),
        ({"rlimits": {"as": 4 * GIB}}, "ulimit-as", "error", "4096 MiB of addresses"),
        ({"rlimits": {"cpu": 60}}, "ulimit-cpu", "error", "60 seconds of CPU"),
    ],
)
def test_limits(changes: dict[str, Any], name: str, level: str, seen: str) -> None:
    (finding,) = check_limits(replace(LIMITS, **changes), TARGET)
    assert (finding.id, finding.level) == (name, level)
    assert seen in finding.seen
    assert finding.remedy


def test_limits_of_a_healthy_machine_or_a_known_platform_are_no_finding() -> None:
    assert ids(check_limits(LIMITS, TARGET)) == []
    assert set(probe_limits().rlimits) == {"nofile", "fsize", "as", "data", "stack", "cpu", "nproc"}
    rented = replace(TARGET, pids=0, pid_limit=1024)
    assert ids(check_limits(replace(LIMITS, pids_max=1024, cores=384), rented)) == []
    assert ids(check_limits(replace(LIMITS, pids_max=1024, cores=384), replace(rented, pid_limit=0))) == ["pids-limit"]


def test_floors_hold_where_the_target_says_nothing() -> None:
    assert ids(check_limits(replace(LIMITS, shm_total=64 * MIB, pids_max=100), Requirements())) == [
        "shm-too-small", "pids-limit",
    ]  # fmt: skip


class FullDisk:
    """Stands for `os.statvfs` of one disk."""

    f_frsize = 1

    def __init__(self, free: float, inodes: int = 10**6) -> None:
        self.f_blocks, self.f_bavail = 100 * GIB, int(free)
        self.f_files, self.f_favail = 10**6, inodes


@pytest.mark.parametrize(
    ("role", "error", "disk", "name", "level", "seen"),
    [
        ("data", errno.EROFS, FullDisk(GIB), "data-disk-read-only", "error", "Read-only file system"),
        ("data", errno.EACCES, FullDisk(GIB), "data-disk-denied", "error", f"Permission denied for uid {os.getuid()}"),
        ("data", errno.ENOSPC, FullDisk(0), "data-disk-full", "error", "0 B free of 107.4 GB"),
        ("data", errno.EIO, FullDisk(GIB), "data-disk-broken", "error", "Input/output error"),
        ("HF_HOME", errno.EACCES, FullDisk(GIB), "folder-denied", "error", "Permission denied"),
        ("data", 0, FullDisk(100 * MIB), "data-disk-full", "error", "104.9 MB free of 107.4 GB, 1.1 GB are needed"),
        ("data", 0, FullDisk(GIB, inodes=3), "data-disk-inodes", "error", "3 of 1000000 inodes are free"),
        ("tmp", 0, FullDisk(100 * MIB), "tmp-full", "warning", "536.9 MB are needed"),
    ],
)
def test_directories_that_cannot_be_used_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    role: str, error: int, disk: FullDisk, name: str, level: str, seen: str,
) -> None:  # fmt: skip
    def refuse(dir: str) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(disks.os, "statvfs", lambda path: disk)
    if error:
        monkeypatch.setattr(disks.tempfile, "TemporaryFile", refuse)
    rows = [RunDirectory(role, str(tmp_path)), RunDirectory(role, str(tmp_path))]
    finding = next(check_directories_by_writing(rows, TARGET))
    assert (finding.id, finding.level) == (name, level)
    assert seen in finding.seen
    assert finding.remedy
    if finding.id.endswith(("full", "inodes")):
        assert len(list(check_directories_by_writing(rows, TARGET))) == 1  # of one full disk


@pytest.mark.parametrize(
    ("need_gib", "free", "level"),
    [(350, 349, "warning"), (350, 2, "warning"), (350, 1.9, "error"), (1, 1.5, ""), (1, 0.9, "error"), (0, 0.1, "")],
)
def test_room_for_all_jobs_of_a_target_is_no_need_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, need_gib: float, free: float, level: str
) -> None:
    """What one job needs is computed before it runs; a disk that holds what runs wrote is not broken."""
    monkeypatch.setattr(disks.os, "statvfs", lambda path: FullDisk(free * GIB))
    found = list(
        check_directories_by_writing([RunDirectory("data", str(tmp_path))], replace(TARGET, disk_gib=need_gib))
    )
    assert [finding.level for finding in found] == ([level] if level else [])
    assert all("`rlbox plan JOB`" in finding.remedy for finding in found)


def test_directories_that_are_missing_or_slow_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    fine, missing, file = str(tmp_path), str(tmp_path / "none"), str(tmp_path / "file")
    rows = [("data", missing), ("data", file), ("tmp", fine), ("tmp", missing), ("HF_HOME", f"{missing}/a/b")]
    found = list(check_directories_by_writing([RunDirectory(*row) for row in rows], replace(TARGET, disk_gib=0)))
    assert ids(found) == ["data-disk-missing", "data-disk-missing", "tmp-missing"]
    assert "docker run --volume" in found[0].remedy
    assert found[1].seen == f"{file}: there is something else"
    (on_host,) = check_host_dirs_by_writing_or_report_none([RunDirectory("data", missing)], TARGET)
    assert on_host.remedy.startswith(f"mkdir -p {missing} ")
    assert ids(check_host_dirs_by_writing_or_report_none([], TARGET)) == ["data-disk-unnamed"]
    monkeypatch.setattr(disks, "_SLOW_S", 0.05)
    monkeypatch.setattr(disks, "_examine", lambda *args: time.sleep(2))
    assert ids(check_directories_by_writing([RunDirectory("data", fine)], TARGET)) == ["data-disk-slow"]


def test_directories_of_an_environment_are_those_that_variables_name() -> None:
    environ = {"TMPDIR": "/t", "HF_HOME": "/h", "TRITON_CACHE_DIR": "relative"}
    assert list_run_directories(environ, "/data") == [("data", "/data"), ("tmp", "/t"), ("HF_HOME", "/h")]


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """Return an environment with `python3`, `python`, `ray` and a `lib64`."""
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "lib").mkdir()
    (venv / "lib64").symlink_to("lib")
    for name in ("python3", "python", "ray"):
        make_program(venv / "bin" / name)
    return venv


def make_program(path: Path, text: str = "#!/bin/sh\n") -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def nest_link(venv: Path) -> None:
    (venv / "lib64").unlink()
    (venv / "lib64").mkdir()
    (venv / "lib64/lib").symlink_to("../lib")


@pytest.mark.parametrize(
    ("environ", "break_it", "name", "seen"),
    [
        ({}, lambda venv: make_program(venv.parent / "first/ray"), "path-shadowed", "ray is first/ray"),
        ({}, lambda venv: (venv / "bin/python").unlink(), "stack-python", "bin/python is missing"),
        ({}, lambda venv: (venv / "lib64").unlink(), "lib64-missing", "there is no lib64"),
        ({}, lambda venv: (venv / "lib").rmdir(), "lib64-missing", "a link to nothing"),
        ({}, nest_link, "lib64-missing", "the link inside it"),
        ({"PATH": "/nowhere"}, None, "ray-not-on-path", "ray is not found"),
        ({"LD_LIBRARY_PATH": "/cuda/lib64/stubs:/cuda/lib64"}, None, "cuda-stubs-order", "has /cuda/lib64/stubs"),
        ({"LIBRARY_PATH": "/c/stubs:/c/lib64"}, None, "cuda-stubs-order", "stubs before /c/lib64"),
        ({"LD_LIBRARY_PATH": "/a::/b"}, None, "empty-path-element", "/a::/b"),
        ({"CUDA_HOME": "other"}, None, "cuda-home", "lacks bin/nvcc, lib64/libcudart.so"),
        ({"CUDA_HOME": "/none"}, None, "cuda-home", "lacks the folder itself"),
    ],
)
def test_paths_that_lead_elsewhere_are_named(
    venv: Path, monkeypatch: pytest.MonkeyPatch,
    environ: dict[str, str], break_it: Callable[[Path], None] | None, name: str, seen: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(venv.parent)
    (venv.parent / "other").mkdir()
    if break_it:
        break_it(venv)
    (finding,) = check_venv_programs_libraries_and_cuda_home(
        {"PATH": f"first:{venv}/bin", **environ}, TARGET, str(venv)
    )
    assert finding.id == name
    assert seen in finding.seen


def test_paths_that_are_right_are_no_finding(venv: Path) -> None:
    facts = {"PATH": f"{venv}/bin", "LIBRARY_PATH": "/c/lib64:/c/lib64/stubs"}
    assert check_venv_programs_libraries_and_cuda_home(facts, TARGET, str(venv)) == []
    facts = {"PATH": f"{venv}/bin", "LD_LIBRARY_PATH": "/usr/local/cuda/compat"}
    assert check_venv_programs_libraries_and_cuda_home(facts, replace(TARGET, grade="datacenter"), str(venv)) == []
    assert ids(check_venv_programs_libraries_and_cuda_home(facts, replace(TARGET, grade="consumer"), str(venv))) == [
        "cuda-compat-shadows-driver"
    ]


@pytest.mark.parametrize(
    ("environ", "name", "seen"),
    [
        ({"HF_TOKEN": ""}, "token-unset", "HF_TOKEN: no value"),
        ({"RLBOX_SECRETS": "WANDB_API_KEY"}, "token-unset", "WANDB_API_KEY: no value"),
        ({"HF_TOKEN": "<your token>"}, "token-placeholder", "HF_TOKEN"),
        ({"HF_TOKEN": "abc\r"}, "token-placeholder", "HF_TOKEN"),
        ({"OMP_NUM_THREADS": "0"}, "threads-value", "OMP_NUM_THREADS=0"),
        ({"OMP_NUM_THREADS": "²"}, "threads-value", "OMP_NUM_THREADS=²"),
        ({"http_proxy": "http://p:1"}, "proxy-for-localhost", "no_proxy lacks localhost and 127.0.0.1"),
        ({"RAY_TMPDIR": "/" + "x" * 60}, "ray-tmpdir-long", "61 characters"),
    ],
)
def test_environment(environ: dict[str, str], name: str, seen: str) -> None:
    (finding,) = check_environment_variables(environ, (), TARGET)
    assert finding.id == name
    assert seen in finding.seen
    assert "abc" not in str(finding)  # no value of a token


def test_dotenv_names_that_are_not_exported_are_named(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"HF_TOKEN=secret\nA=1\nWANDB_API_KEY=\n")
    directories = (str(tmp_path), str(tmp_path / "."), str(tmp_path / "none"))  # the same file once
    first, second = check_environment_variables({"A": "1"}, directories, TARGET)
    assert (first.id, first.seen) == ("env-not-exported", "HF_TOKEN")
    assert first.remedy == f"set -a; . {tmp_path}/.env; set +a"
    assert (second.id, second.seen) == ("token-unset", "WANDB_API_KEY: no value")
    (tmp_path / ".env").write_bytes(b"A=1\r\nnonsense\n")
    (broken,) = check_environment_variables({"A": "1"}, directories, TARGET)
    assert (broken.id, broken.seen) == (
        "env-file-broken", "line 2: no '=' in it: write NAME=value; Windows line ends"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("endpoint", "name", "seen"),
    [
        (Endpoint(name="HF_ENDPOINT", url="http://h", error="refused"), "mirror-dead", "refused"),
        (Endpoint(name="x", url="http://h", kind="proxy", error="no"), "proxy-dead", "no"),
        (Endpoint(name="RAY_ADDRESS", url="tcp://h:1", kind="ray", error="no"), "ray-address-dead", "no"),
        (Endpoint(name="x", url="http://h", own_clock_ahead_s=-900.0), "clock-skew", "15 min 00 s behind"),
    ],
)
def test_endpoints_that_do_not_answer_are_named(endpoint: Endpoint, name: str, seen: str) -> None:
    (finding,) = make_endpoint_and_clock_findings([endpoint])
    assert (finding.id, finding.seen) == (name, seen)


@pytest.mark.allow("sockets")
def test_network_names_interfaces_and_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        network, "read_pip_and_proxy_settings", lambda env: SimpleNamespace(index_url="", extra_index_urls=())
    )
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0")])
    assert check_network({}, {}) == []
    assert check_network({"NCCL_SOCKET_IFNAME": "eth,ib"}, {}) == []  # NCCL takes the beginning of a name
    (interface,) = check_network({"GLOO_SOCKET_IFNAME": "eth"}, {})
    assert (interface.id, interface.seen) == ("interface-missing", "GLOO_SOCKET_IFNAME=eth; there are lo, eth0")
    (dead,) = check_network({"RAY_ADDRESS": "127.0.0.1:1"}, {})
    assert dead.id == "ray-address-dead"
    with socket.create_server(("127.0.0.1", 0)) as server:
        (taken,) = check_network({}, {"smoke.vllm": (number := server.getsockname()[1])})
    assert (taken.id, taken.seen.partition(":")[0]) == ("port-taken", f"{number} (smoke.vllm)")


def test_endpoints_of_an_environment_are_optional_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        network, "read_pip_and_proxy_settings", lambda env: SimpleNamespace(index_url="", extra_index_urls=())
    )
    found = read_env_and_pip_endpoints(
        {"HF_ENDPOINT": "http://h", "HF_HUB_OFFLINE": "1", "http_proxy": "p:1", "RAY_ADDRESS": "auto"}
    )
    assert [(row.name, row.url, row.is_optional) for row in found] == [
        ("HF_ENDPOINT", "http://h", True), ("http_proxy", "http://p:1", False),
    ]  # fmt: skip


@pytest.mark.allow("processes")
def test_ports_of_a_ray_head_are_read(tmp_path: Path) -> None:
    flags = "--head --port=6379 --dashboard-port=8265 --min-worker-port=10002"
    make_program(tmp_path / "ray-start", f"#!/bin/sh\nprintf '%s\\n' ray start {flags}\n")
    assert run_ray_start_to_list_ports_or_empty(str(tmp_path / "ray-start")) == {
        "ray port": 6379,
        "ray dashboard-port": 8265,
    }
    assert run_ray_start_to_list_ports_or_empty(str(tmp_path / "none")) == {}


@pytest.mark.parametrize(
    "process",
    [
        ProcessInfo(pid=5, name="raylet", command_line="/x/raylet --a", owner="user a", age_s=5),
        ProcessInfo(pid=5, name="ray::IDLE", command_line="ray::IDLE", owner="user a", age_s=5),
        ProcessInfo(
            pid=5,
            name="python",
            command_line="/opt/venv/bin/python -m vllm.entrypoints.openai.api_server",
            owner="u",
            age_s=5,
        ),
        ProcessInfo(
            pid=5,
            name="python",
            command_line="/opt/venv/bin/python train.py",
            owner="u",
            age_s=5,
            is_orphan=True,
            runs_from_stack_venv=True,
        ),
    ],
)
def test_what_a_run_left_behind_is_named_with_its_owner(process: ProcessInfo) -> None:
    (finding,) = check_live_runs_and_leftovers([process])
    assert finding.id == "stale-processes"
    assert f"(pid 5, {process.owner}, 5 s old)" in finding.seen
    assert finding.remedy == "if nothing of yours needs them, end them: kill 5"
    for spared in (
        {"is_doctor": True},
        {"is_in_live_run": True},
        {"has_living_starter": True},
    ):
        assert list(check_live_runs_and_leftovers([replace(process, **spared)])) == []


def test_nobody_is_told_to_end_what_is_of_others() -> None:
    mine = ProcessInfo(pid=5, name="raylet", command_line="raylet", owner="user a", age_s=5)
    other = replace(mine, pid=6, owner="user b", is_own_user=False)
    (finding,) = check_live_runs_and_leftovers([mine, other])
    assert finding.remedy == "if nothing of yours needs them, end them: kill 5"
    (finding,) = check_live_runs_and_leftovers([other])
    assert finding.remedy == "ask user b to end them, if nothing needs them"


def test_what_carries_the_mark_of_a_run_that_is_gone_is_left_over_whatever_it_is() -> None:
    left = ProcessInfo(pid=5, name="awk", command_line="awk -f x", owner="user a", age_s=5, ended_run="smoke-1")
    (finding,) = check_live_runs_and_leftovers([left])
    assert finding.seen == "awk (pid 5, user a, 5 s old, of run smoke-1)"


def test_other_programs_are_left_alone() -> None:
    editor = ProcessInfo(pid=5, name="vim", command_line="vim array.py raymond.txt", owner="user a", age_s=5)
    assert list(check_live_runs_and_leftovers([editor])) == []


def test_demands_of_a_manifest_and_a_lock() -> None:
    manifest = {
        "target": "mine",
        "facts": {
            "run": {"shm_gib": 2, "pids": 9}, "disk": {"mount": "/d", "need_gib": 3}, "hardware": {"nodes": 2},
            "env": {"A": "1"}, "ports": {"a.b": 7},
        },
    }  # fmt: skip
    lock = {"python": "3.11", "groups": [{"name": "g", "packages": [{"name": "Flash_Attn", "version": "2"}]}]}
    found = parse_or_default(manifest, lock)
    assert (found.shm_gib, found.pids, found.data_mount, found.nodes, found.ports) == (2.0, 9, "/d", 2, {"a.b": 7})
    assert found.has_any_package("flash-attn")
    assert parse_or_default({}, {}) == Requirements()


@pytest.mark.parametrize(("layers", "names"), [(["landlock", "seccomp"], []), (["seccomp"], ["sandbox-weak"])])
def test_sandbox_without_landlock_is_named(
    monkeypatch: pytest.MonkeyPatch, layers: list[str], names: list[str]
) -> None:
    answer = json.dumps({"layers": layers, "missing": {} if names == [] else {"landlock": "not implemented"}})
    monkeypatch.setattr("rlbox.doctor.container.run_command", lambda command: SimpleNamespace(stdout=answer))
    assert ids(_check_sandbox(9.0)) == names
