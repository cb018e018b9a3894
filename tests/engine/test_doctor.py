"""`rlbox doctor` in containers of the `local` image, each with one planted fault: it names that one and no other."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from enginebox import Box, docker
from projectbox import own

SITE = "/opt/venv/lib/python3.11/site-packages"
LIMITS = ("--init", "--shm-size=2g", "--memory=14g", "--pids-limit=4096")
BUDGET_S = 90  # on a busy machine Ray alone takes longer than the ten seconds that people get
# A shared object with one undefined symbol of c10 that no torch has, as a wheel for another torch wants it.
FOREIGN = Path(__file__).resolve().parents[1] / "cases/doctor/foreign_abi.py"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault: options of `docker run`, and what is done as root in the container before doctor looks."""

    finding: str
    setup: str = "true"
    options: tuple[str, ...] = ()
    disk: bool = True


def env(**values: str) -> tuple[str, ...]:
    return tuple(f"--env={name}={value}" for name, value in values.items())


FAST = {
    "lib64 is missing": Fault(finding="lib64-missing", setup="rm /opt/venv/lib64"),
    "64 MB of shared memory": Fault(finding="shm-too-small", options=("--shm-size=64m",)),
    "100 processes": Fault(finding="pids-limit", options=("--pids-limit=100",)),
    "the data disk is full": Fault(finding="data-disk-full", options=("--tmpfs=/data:size=8m",), disk=False),
    "a truncated flash-attn": Fault(
        finding="file-truncated",
        setup=f"head -c 100000 {SITE}/vllm/_C_AVX2.abi3.so > {SITE}/flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so",
    ),
    "256 open files": Fault(finding="ulimit-nofile", options=("--ulimit=nofile=256:256",)),
    "ray from elsewhere": Fault(
        finding="path-shadowed",
        setup="echo '#!/bin/sh' > /usr/local/bin/ray; chmod 755 /usr/local/bin/ray; export PATH=/usr/local/bin:$PATH",
    ),
}
SLOW = {
    "stubs before the real libraries": Fault(
        finding="cuda-stubs-order", options=env(LD_LIBRARY_PATH="/usr/local/cuda/lib64/stubs:/usr/local/cuda/lib64")
    ),
    "stubs first for the linker": Fault(
        finding="cuda-stubs-order", options=env(LIBRARY_PATH="/usr/local/cuda/lib64/stubs:/usr/local/cuda/lib64")
    ),
    "lib64 with the link inside": Fault(
        finding="lib64-missing",
        setup="rm /opt/venv/lib64; mkdir /opt/venv/lib64; ln -sfn /opt/venv/lib /opt/venv/lib64",
    ),
    "a taken port": Fault(finding="port-taken", setup="python3 -m http.server 21432 > /tmp/server 2>&1 & sleep 2"),
    "a token without a value": Fault(finding="token-unset", options=env(HF_TOKEN="")),
    "a secret that is not passed on": Fault(finding="token-unset", options=env(RLBOX_SECRETS="WANDB_API_KEY")),
    ".env that is not exported": Fault(finding="env-not-exported", setup="cd /tmp; echo HF_TOKEN=abc > .env"),
    "a dead mirror": Fault(finding="mirror-dead", options=env(HF_ENDPOINT="http://127.0.0.1:9")),
    "a mirror without an address": Fault(finding="mirror-dead", options=env(PIP_INDEX_URL="http://a.invalid/simple")),
    "a dead proxy": Fault(
        finding="proxy-dead", options=env(http_proxy="http://127.0.0.1:9", no_proxy="localhost,127.0.0.1,::1")
    ),
    "an extension of another torch": Fault(
        finding="torch-abi",
        setup=f"python3 /foreign_abi.py {SITE}/flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so",
        options=("--volume", f"{FOREIGN}:/foreign_abi.py:ro"),
    ),
    "a truncated torch": Fault(
        finding="file-truncated", setup=f"truncate -s 100000000 {SITE}/torch/lib/libtorch_cpu.so"
    ),
    "numpy replaced": Fault(
        finding="package-overwritten", setup=f"mv {SITE}/numpy-*.dist-info {SITE}/numpy-1.26.4.dist-info"
    ),
    "ray removed": Fault(finding="package-missing", setup=f"rm -r {SITE}/ray {SITE}/ray-*.dist-info"),
    "a file of torch changed": Fault(
        finding="file-changed", setup=f"echo 'raise ImportError' >> {SITE}/torch/functional.py"
    ),
    "files of transformers gone": Fault(finding="file-missing", setup=f"rm -r {SITE}/transformers/models"),
    "a copy of torch on PYTHONPATH": Fault(
        finding="pythonpath-shadows",
        setup="mkdir -p /tmp/x/torch; touch /tmp/x/torch/__init__.py; export PYTHONPATH=/tmp/x",
    ),
    "a missing system library": Fault(finding="extension-load", setup="rm /usr/lib/x86_64-linux-gnu/libnuma*"),
    "a read-only data disk": Fault(finding="data-disk-read-only", options=("--tmpfs=/data:ro",), disk=False),
    "no data disk": Fault(finding="data-disk-missing", disk=False, setup="rmdir /data 2>/dev/null || true"),
    "no localhost": Fault(
        finding="localhost-unresolved", setup="grep -v localhost /etc/hosts > /tmp/h; cat /tmp/h > /etc/hosts"
    ),
    "an interface that is not there": Fault(finding="interface-missing", options=env(NCCL_SOCKET_IFNAME="ib0")),
    "512 MB of memory": Fault(finding="memory-limit", options=("--memory=512m", "--memory-swap=512m")),
    "files of 1 MB at most": Fault(finding="ulimit-fsize", options=("--ulimit=fsize=1000000",)),
    "an old Ray": Fault(finding="stale-processes", setup="(bash -c 'exec -a raylet sleep 300' &); sleep 1"),
    "CUDA_HOME without a toolkit": Fault(finding="cuda-home", options=env(CUDA_HOME="/opt/nothing")),
    "a cluster that is gone": Fault(finding="ray-address-dead", options=env(RAY_ADDRESS="127.0.0.1:6399")),
    "no shared memory": Fault(finding="shm-missing", options=("--ipc=none",)),
    "no interpreter": Fault(finding="stack-python", setup="rm /opt/venv/bin/python"),
    "the port of Ray's head": Fault(
        finding="port-taken",
        setup="python3 -m http.server $(ray-start --print head | sed -n 's/^--port=//p') > /tmp/server 2>&1 & sleep 2",
    ),
    "no thread": Fault(finding="threads-value", options=env(OMP_NUM_THREADS="0")),
}


@pytest.fixture
def examine(local: Box) -> Callable[[Fault], Any]:
    """Run doctor in a container with a fault and return what it says."""

    def run(fault: Fault, *words: str) -> Any:
        disk = ("--volume", f"{local.data}:/data") if fault.disk else ()
        script = f"{fault.setup}\nexec rlbox doctor --json --budget {BUDGET_S} {' '.join(words)}"
        argv = ["docker", "run", "--rm", *LIMITS, *disk, *fault.options, own("local"), "bash", "-c", script]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    return run


def named(report: Any) -> list[str]:
    return [f"{row['id']}: {row['seen']}" for row in report["findings"] if row["level"] != "note"]


def assert_names(report: Any, finding: str) -> None:
    assert [row.partition(":")[0] for row in named(report)] == [finding], named(report)
    assert all(row["remedy"] for row in report["findings"])


@pytest.mark.parametrize("name", FAST)
def test_a_planted_fault_is_named(examine: Callable[[Fault], Any], name: str) -> None:
    assert_names(examine(FAST[name]), FAST[name].finding)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_a_further_fault_is_named(examine: Callable[[Fault], Any], name: str) -> None:
    assert_names(examine(SLOW[name]), SLOW[name].finding)


def test_a_healthy_container_is_silent(local: Box) -> None:
    result = local("shell", "local", "--", "rlbox", "doctor")
    assert (result.code, result.out) == (0, ""), result.err


def test_nothing_of_an_examination_is_left(local: Box) -> None:
    buried = (
        "for _ in $(seq 50); do ps -eo stat --no-headers | grep -q Z || break; sleep 0.1; done"  # by the first process
    )
    script = f"rlbox doctor --budget 90; {buried}; ps -eo args --no-headers; ls -d /tmp/rlbox-doctor* 2>/dev/null"
    result = local("shell", "local", "--", "bash", "-c", script)
    assert "bash -c rlbox doctor" in result.out
    assert not [line for line in result.out.splitlines() if "rlbox doctor" not in line and "ps -eo" not in line]


@pytest.mark.slow
def test_fix_makes_the_link_again(examine: Callable[..., Any]) -> None:
    report = examine(Fault(finding="", setup="rm /opt/venv/lib64"), "--fix")
    assert report["fixed"] == ["lib64-missing: made the link /opt/venv/lib64 -> lib"]
    assert named(report) == []


@pytest.mark.slow
def test_a_host_and_its_image_make_one_report(local: Box) -> None:
    result = local("doctor", "local", "--json", "--budget", str(BUDGET_S))
    assert result.code == 0, result.out
    assert result.data["checks"] > 40
    assert docker("ps", "--all", "--quiet", "--filter=name=rlbox-doctor") == ""
