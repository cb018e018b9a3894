"""What doctor's judges make of facts: each fault is named, and a healthy machine is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rlbox.amounts import GIB, MIB
from rlbox.doctor.disks import DirectoryFacts, check_directories
from rlbox.doctor.environment import DotEnvFile, EnvironmentFacts, check_environment, parse_dotenv
from rlbox.doctor.limits import LimitFacts, check_limits
from rlbox.doctor.network import Endpoint, NetworkFacts, PortConflict, check_network
from rlbox.doctor.packages import AbiMismatch, FileDamage, PackageFacts, check_packages
from rlbox.doctor.paths import PathFacts, check_paths
from rlbox.doctor.processes import ProcessInfo, check_processes
from rlbox.doctor.requirements import Requirements, parse_requirements
from rlbox.doctor.sandbox import check_sandbox
from rlbox.findings import Finding
from rlbox.sandbox.plan import IsolationLevel

TARGET = Requirements(
    target="mine", shm_gib=2.0, pids=4096, memory_gib=14.0, packages={"torch": "2.13.0", "ray": "2.60.0"}
)
LIMITS = LimitFacts(
    shm_total=2 * GIB, shm_free=2 * GIB, pids_max=4096, pids_now=9, memory_max=14 * GIB, memory_free=9 * GIB, cores=2
)
PLACE = DirectoryFacts(
    role="data", path="/data", total_bytes=100 * GIB, free_bytes=50 * GIB, total_inodes=10**6, free_inodes=10**5
)
PATHS = PathFacts(prefix="/opt/venv", program_paths={"python3": "/opt/venv/bin/python3", "ray": "/opt/venv/bin/ray"})
PACKAGES = PackageFacts(site_packages="/site", installed={"torch": ("2.13.0",), "ray": ("2.60.0",)})
NETWORK = NetworkFacts(
    hostname="box", hostname_ips=("127.0.1.1",), interfaces=("lo", "eth0"), now_unix=2e9, earliest_unix=1e9
)


def ids(findings: Any) -> list[str]:
    return [finding.id for finding in findings]


def test_a_healthy_machine_is_silent() -> None:
    assert check_limits(LIMITS, TARGET) == []
    assert check_directories([PLACE, replace(PLACE, role="tmp", path="/tmp")], TARGET, "uid 1") == []
    assert check_paths(PATHS, TARGET) == []
    assert check_packages(PACKAGES, TARGET) == []
    assert check_network(NETWORK, TARGET) == []
    assert check_environment(EnvironmentFacts(environ={"HF_TOKEN": "abc", "TOKENIZERS_PARALLELISM": ""}), TARGET) == []
    assert list(check_processes([])) == []


@pytest.mark.parametrize(
    ("changes", "name", "level", "seen"),
    [
        ({"shm_total": None}, "shm-missing", "error", "is no directory"),
        ({"shm_total": 64 * MIB}, "shm-too-small", "error", "67.1 MB, the target wants 2.1 GB (2 GiB)"),
        ({"shm_total": int(1.5 * GIB)}, "shm-too-small", "warning", "1.6 GB, the target wants 2.1 GB (2 GiB)"),
        ({"shm_error": "Permission denied"}, "shm-not-writable", "error", "Permission denied"),
        (
            {"shm_free": 9 * MIB, "shm_largest": (("/dev/shm/x", GIB),)},
            "shm-full",
            "error",
            "largest: /dev/shm/x 1.1 GB",
        ),
        ({"pids_max": 100}, "pids-limit", "error", "limit 100, 9 in use, 2 cores; wanted: 4096"),
        ({"pids_max": 1024}, "pids-limit", "warning", "limit 1024, 9 in use, 2 cores; wanted: 4096"),
        ({"rlimits": {"nproc": 50}}, "pids-limit", "error", "limit 50"),
        ({"memory_max": GIB}, "memory-limit", "error", "1.1 GB, the target wants 15.0 GB"),
        ({"memory_max": 8 * GIB}, "memory-limit", "warning", "8.6 GB, the target wants 15.0 GB"),
        ({"memory_free": 200 * MIB}, "memory-low", "error", "209.7 MB free"),
        ({"cpus": 0.5}, "cpu-quota", "warning", "0.5 cores"),
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


def test_limits_of_a_platform_that_are_known_are_no_finding() -> None:
    rented = replace(TARGET, pids=0, pid_limit=1024)
    assert check_limits(replace(LIMITS, pids_max=1024, cores=384), rented) == []
    assert ids(check_limits(replace(LIMITS, pids_max=1024, cores=384), replace(rented, pid_limit=0))) == ["pids-limit"]


def test_floors_hold_where_the_target_says_nothing() -> None:
    assert ids(check_limits(replace(LIMITS, shm_total=64 * MIB, pids_max=100), Requirements())) == [
        "shm-too-small", "pids-limit",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("place", "name", "seen"),
    [
        ({"problem": "missing", "error_text": "/data: no such folder"}, "data-disk-missing", "no such folder"),
        ({"problem": "read-only", "error_text": "Read-only file system"}, "data-disk-read-only", "Read-only"),
        (
            {"problem": "denied", "error_text": "Permission denied", "owner_text": "/data is uid 0's"},
            "data-disk-denied",
            "for uid 7",
        ),
        (
            {"problem": "full", "error_text": "No space left on device", "free_bytes": 0},
            "data-disk-full",
            "0 B free of 107.4 GB",
        ),
        ({"problem": "slow", "error_text": "no answer in 4 s"}, "data-disk-slow", "no answer"),
        ({"free_bytes": 100 * MIB}, "data-disk-full", "104.9 MB free of 107.4 GB, 1.1 GB are needed"),
        ({"free_inodes": 3}, "data-disk-inodes", "3 of 1000000 inodes are free"),
        ({"role": "tmp", "path": "/tmp", "free_bytes": MIB}, "tmp-full", "536.9 MB are needed"),
        ({"role": "HF_HOME", "path": "/x", "problem": "denied", "is_own": True}, "folder-denied", "for uid 7"),
    ],
)
def test_places(place: dict[str, Any], name: str, seen: str) -> None:
    (finding,) = check_directories([replace(PLACE, **place)], TARGET, "uid 7")
    assert finding.id == name
    assert seen in finding.seen
    assert finding.remedy


@pytest.mark.parametrize(
    ("need_gib", "free", "level"),
    [(350, 349, "warning"), (350, 2, "warning"), (350, 1.9, "error"), (1, 1.5, ""), (1, 0.9, "error"), (0, 0.1, "")],
)
def test_room_for_all_jobs_of_a_target_is_no_need_of_one(need_gib: float, free: float, level: str) -> None:
    """What one job needs is computed before it runs; a disk that holds what runs wrote is not broken."""
    found = check_directories([replace(PLACE, free_bytes=int(free * GIB))], replace(TARGET, disk_gib=need_gib), "uid 7")
    assert [finding.level for finding in found] == ([level] if level else [])
    assert all("`rlbox plan JOB`" in finding.remedy for finding in found)


def test_folders_of_one_full_disk_are_one_finding() -> None:
    full = replace(PLACE, problem="full", free_bytes=0)
    assert ids(check_directories([full, replace(full, role="tmp", path="/tmp")], TARGET, "uid 7")) == ["data-disk-full"]


@pytest.mark.parametrize(
    ("changes", "name", "seen"),
    [
        ({"program_paths": {"ray": "/usr/local/bin/ray"}}, "path-shadowed", "ray is /usr/local/bin/ray"),
        ({"program_paths": {"ray": ""}}, "ray-not-on-path", "ray is not found"),
        ({"lib64": "missing"}, "lib64-missing", "there is no lib64"),
        ({"python_error": "is missing", "lib64": "missing"}, "stack-python", "/opt/venv/bin/python is missing"),
        ({"lib64": "nested"}, "lib64-missing", "the link inside it"),
        (
            {"environ": {"LD_LIBRARY_PATH": "/cuda/lib64/stubs:/cuda/lib64"}},
            "cuda-stubs-order",
            "has /cuda/lib64/stubs",
        ),
        ({"environ": {"LIBRARY_PATH": "/c/stubs:/c/lib64"}}, "cuda-stubs-order", "stubs before /c/lib64"),
        ({"linker_config_lines": ("0.conf: /cuda/lib64/stubs",)}, "cuda-stubs-order", "the loader is told"),
        ({"environ": {"LD_LIBRARY_PATH": "/a::/b"}}, "empty-path-element", "/a::/b"),
        ({"environ": {"PYTHONHOME": "/usr"}}, "pythonhome-set", "/usr"),
        ({"shadowing_modules": ("/x/torch",)}, "pythonpath-shadows", "/x/torch"),
        ({"cuda_home": "/c", "cuda_missing": ("bin/nvcc",)}, "cuda-home", "/c lacks bin/nvcc"),
        ({"missing_preloads": ("/x.so",)}, "preload-missing", "/x.so"),
    ],
)
def test_paths(changes: dict[str, Any], name: str, seen: str) -> None:
    (finding,) = check_paths(replace(PATHS, **changes), TARGET)
    assert finding.id == name
    assert seen in finding.seen


def test_stubs_last_on_the_linkers_path_are_right() -> None:
    assert check_paths(replace(PATHS, environ={"LIBRARY_PATH": "/c/lib64:/c/lib64/stubs"}), TARGET) == []


def test_compat_libraries_are_wrong_on_consumer_cards_only() -> None:
    facts = replace(PATHS, environ={"LD_LIBRARY_PATH": "/usr/local/cuda/compat"})
    assert ids(check_paths(facts, replace(TARGET, grade="consumer"))) == ["cuda-compat-shadows-driver"]
    assert check_paths(facts, replace(TARGET, grade="datacenter")) == []


@pytest.mark.parametrize(
    ("environ", "name", "seen"),
    [
        ({"HF_TOKEN": ""}, "token-unset", "HF_TOKEN: no value"),
        ({"RLBOX_SECRETS": "WANDB_API_KEY"}, "token-unset", "WANDB_API_KEY: no value"),
        ({"HF_TOKEN": "<your token>"}, "token-placeholder", "HF_TOKEN"),
        ({"HF_TOKEN": "abc\r"}, "token-placeholder", "HF_TOKEN"),
        ({"WANDB_KEY": "abc"}, "token-name", "WANDB_API_KEY is not"),
        ({"OMP_NUM_THREADS": "0"}, "threads-value", "OMP_NUM_THREADS=0"),
        ({"OMP_NUM_THREADS": "²"}, "threads-value", "OMP_NUM_THREADS=²"),
        ({"http_proxy": "http://p:1"}, "proxy-for-localhost", "no_proxy lacks localhost and 127.0.0.1"),
        ({"RAY_TMPDIR": "/" + "x" * 60}, "ray-tmpdir-long", "61 characters"),
    ],
)
def test_environment(environ: dict[str, str], name: str, seen: str) -> None:
    (finding,) = check_environment(EnvironmentFacts(environ=environ), TARGET)
    assert finding.id == name
    assert seen in finding.seen
    assert "abc" not in str(finding)  # no value of a token


def test_dotenv_names_that_are_not_exported() -> None:
    file = DotEnvFile(path="/data/.env", values={"HF_TOKEN": "secret", "A": "1", "WANDB_API_KEY": ""})
    first, second = check_environment(EnvironmentFacts(environ={"A": "1"}, env_files=(file,)), TARGET)
    assert (first.id, first.seen, first.remedy) == (
        "env-not-exported",
        "HF_TOKEN",
        "set -a; . /data/.env; set +a",
    )
    assert (second.id, second.seen) == ("token-unset", "WANDB_API_KEY: no value")


def test_dotenv_as_a_shell_reads_it() -> None:
    file = parse_dotenv("e", "# c\nA=1\nexport B='2'\n\nC = 3\nD=4\r\nnonsense\n")
    assert file.values == {"A": "1", "B": "2", "C": "3", "D": "4"}
    assert file.broken_lines == (
        "line 5: blanks around = of C", "line 6: a carriage return ends the value of D", "line 7 is no NAME=value",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "name", "seen"),
    [
        ({"localhost": ()}, "localhost-unresolved", "localhost is unknown"),
        ({"loopback_error": "Network is unreachable"}, "loopback-down", "unreachable"),
        ({"hostname_ips": ("10.9.9.9",), "foreign_ips": ("10.9.9.9",)}, "hostname-foreign", "10.9.9.9"),
        ({"environ": {"NCCL_SOCKET_IFNAME": "ib0"}}, "interface-missing", "NCCL_SOCKET_IFNAME=ib0; there are lo, eth0"),
        (
            {"environ": {"VLLM_HOST_IP": "10.9.9.9"}, "unresolved_hosts": ("VLLM_HOST_IP",)},
            "address-unknown",
            "10.9.9.9",
        ),
        (
            {"port_conflicts": (PortConflict(name="smoke.vllm", number=21432, holder="x (pid 3)"),)},
            "port-taken",
            "21432 (smoke.vllm)",
        ),
        ({"endpoints": (Endpoint(name="HF_ENDPOINT", url="http://h", error="refused"),)}, "mirror-dead", "refused"),
        ({"endpoints": (Endpoint(name="x", url="http://h", kind="proxy", error="no"),)}, "proxy-dead", "no"),
        (
            {"endpoints": (Endpoint(name="RAY_ADDRESS", url="tcp://h:1", kind="ray", error="no"),)},
            "ray-address-dead",
            "no",
        ),
        ({"endpoints": (Endpoint(name="x", url="http://h", skew_s=-900.0),)}, "clock-skew", "15 min 00 s behind"),
        ({"now_unix": 1.0}, "clock-skew", "behind"),
    ],
)
def test_network(changes: dict[str, Any], name: str, seen: str) -> None:
    (finding,) = check_network(replace(NETWORK, **changes), TARGET)
    assert finding.id == name
    assert seen in finding.seen


def test_a_hostname_on_the_loopback_is_wrong_on_several_nodes_only() -> None:
    assert ids(check_network(NETWORK, replace(TARGET, nodes=2))) == ["hostname-loopback"]


def test_an_interface_may_be_named_by_its_beginning_for_nccl() -> None:
    assert check_network(replace(NETWORK, environ={"NCCL_SOCKET_IFNAME": "eth,ib"}), TARGET) == []
    assert ids(check_network(replace(NETWORK, environ={"GLOO_SOCKET_IFNAME": "eth"}), TARGET)) == ["interface-missing"]


def test_packages() -> None:
    other = replace(PACKAGES, installed={"torch": ("2.9.0",), "ray": ("2.60.0",)})
    assert [f.seen for f in check_packages(other, TARGET)] == ["torch 2.9.0 (locked: 2.13.0)"]
    gone = replace(PACKAGES, installed={"ray": ("2.60.0",)})
    assert ids(check_packages(gone, TARGET)) == ["package-missing"]
    short = FileDamage(package="vllm", path="/s/_C.so", kind="short", description="has 5 bytes of 9")
    missing = replace(short, path="/s/x.py", kind="missing", description="is missing")
    (found,) = check_packages(replace(PACKAGES, damages=(missing, short)), TARGET)
    assert (found.id, found.seen) == ("file-truncated", "/s/_C.so has 5 bytes of 9")
    gap = AbiMismatch(path="/s/flash_attn_2_cuda.so", count=3, example="_ZN3c105Error")
    (found,) = check_packages(replace(PACKAGES, abi_mismatches=(gap,)), TARGET)
    assert found.seen == "flash_attn_2_cuda.so wants 3 symbols that torch 2.13.0 lacks: _ZN3c105Error"
    assert ids(check_packages(PackageFacts(site_packages="/s", missing_reason="gone"), TARGET)) == ["stack-missing"]


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
            is_stack_program=True,
        ),
    ],
)
def test_what_a_run_left_behind_is_named_with_its_owner(process: ProcessInfo) -> None:
    (finding,) = check_processes([process])
    assert finding.id == "stale-processes"
    assert f"(pid 5, {process.owner}, 5 s old)" in finding.seen
    assert finding.remedy == "if nothing of yours needs them, end them: kill 5"
    for spared in ({"is_doctor": True}, {"is_in_live_run": True}, {"is_zombie": True}, {"started_by": "pytest"}):
        assert list(check_processes([replace(process, **spared)])) == []


def test_nobody_is_told_to_end_what_is_of_others() -> None:
    mine = ProcessInfo(pid=5, name="raylet", command_line="raylet", owner="user a", age_s=5)
    other = replace(mine, pid=6, owner="user b", is_own_user=False)
    (finding,) = check_processes([mine, other])
    assert finding.remedy == "if nothing of yours needs them, end them: kill 5; ask user b to end the others"
    (finding,) = check_processes([other])
    assert finding.remedy == "ask user b to end them, if nothing needs them"


def test_what_carries_the_mark_of_a_run_that_is_gone_is_left_over_whatever_it_is() -> None:
    left = ProcessInfo(pid=5, name="awk", command_line="awk -f x", owner="user a", age_s=5, started_for_run="smoke-1")
    (finding,) = check_processes([left])
    assert finding.seen == "awk (pid 5, user a, 5 s old, of run smoke-1)"


def test_other_programs_are_left_alone() -> None:
    editor = ProcessInfo(pid=5, name="vim", command_line="vim array.py raymond.txt", owner="user a", age_s=5)
    assert list(check_processes([editor])) == []


def test_demands_of_a_manifest_and_a_lock() -> None:
    manifest = {
        "target": "mine",
        "facts": {
            "run": {"shm_gib": 2, "pids": 9}, "disk": {"mount": "/d", "need_gib": 3}, "hardware": {"nodes": 2},
            "env": {"A": "1"}, "ports": {"a.b": 7},
        },
    }  # fmt: skip
    lock = {"python": "3.11", "groups": [{"name": "g", "packages": [{"name": "Flash_Attn", "version": "2"}]}]}
    found = parse_requirements(manifest, lock)
    assert (found.shm_gib, found.pids, found.data_mount, found.nodes, found.ports) == (2.0, 9, "/d", 2, {"a.b": 7})
    assert found.has_package("flash-attn")
    assert parse_requirements({}, {}) == Requirements()


def test_every_finding_says_what_to_do() -> None:
    facts = NetworkFacts(
        localhost=(), port_conflicts=(PortConflict(name="a", number=1, holder="h"),), now_unix=1, earliest_unix=1e9
    )
    findings: list[Finding] = [*check_limits(LimitFacts(shm_total=None), TARGET), *check_network(facts, TARGET)]
    assert all(finding.remedy and finding.where for finding in findings)


def test_walls_are_enough_or_not() -> None:
    assert check_sandbox(None) == []
    assert (
        check_sandbox(IsolationLevel.of(("landlock", "seccomp"), {"namespaces": "unshare: Operation not permitted"}))
        == []
    )
    (found,) = check_sandbox(IsolationLevel.of(("seccomp",), {"landlock": "landlock: Function not implemented"}))
    assert (found.id, found.level) == ("sandbox-weak", "warning")
    assert found.seen == "landlock: landlock: Function not implemented"
