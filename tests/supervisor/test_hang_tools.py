"""NCCL's own tools, GPUs and refusals: what is asked of a hung stage beside the kernel."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from supervised import wait_for
from test_hang_ranks import NO_END_OF_SLEEP

import rlbox.hang.stacks
import rlbox.system.gpu
from rlbox.hang.nccl import make_ras_address_env_unless_set, write_ras_report_and_copy_dumps
from rlbox.hang.stacks import NO_PERMISSION, add_and_write_py_spy_stacks
from rlbox.hang.waits import probe_process_waits_without_stacks, probe_remaining_tolerated_sleep_s_or_0
from rlbox.system.counters import compute_rates, probe_machine_and_process_activity, probe_process_usage
from rlbox.system.gpu import GpuStatus, query_gpus_or_empty

REPORT = "NCCL version 2.27.5\nJob summary\nMissing ranks: 3 (pid 77 on node b)\n"


def ras_server(server: socket.socket, heard: list[str]) -> None:
    connection = server.accept()[0]
    stream = connection.makefile("rwb")
    for answer in (b"SERVER PROTOCOL 2\n", b"OK\n", REPORT.encode()):
        heard.append(stream.readline().decode().strip())
        stream.write(answer)
        stream.flush()
    stream.close()
    connection.close()


@pytest.fixture
def sleeper(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    env = {**os.environ, **{key: value.replace("TMP", str(tmp_path)) for key, value in request.param.items()}}
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(1000)"], env=env, stdout=-1
    )
    assert process.stdout
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def test_ras_is_asked_as_ncclras_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, heard = socket.create_server(("127.0.0.1", 0)), list[str]()
    thread = threading.Thread(target=ras_server, args=(server, heard))
    thread.start()
    monkeypatch.setenv("NCCL_RAS_ADDR", f"localhost:{server.getsockname()[1]}")
    monkeypatch.setattr(
        "rlbox.hang.nccl.read_environ_or_empty",
        lambda pid: {"NCCL_RAS_ADDR": f"127.0.0.1:{server.getsockname()[1]}"},
    )
    facts = write_ras_report_and_copy_dumps([os.getpid()], tmp_path / "nccl", time.time())
    thread.join()
    server.close()
    assert heard == ["CLIENT PROTOCOL 2", "TIMEOUT 5", "VERBOSE STATUS"]
    assert facts["files"] == ["ras.txt"]
    assert (tmp_path / "nccl" / "ras.txt").read_text() == REPORT


@pytest.mark.parametrize("sleeper", [{"NCCL_RAS_ADDR": "127.0.0.1:28028"}], indirect=True)
def test_the_ras_of_another_job_is_not_asked(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    facts = write_ras_report_and_copy_dumps([sleeper.pid], tmp_path / "nccl", time.time())
    assert (facts["files"], (tmp_path / "nccl").exists()) == ([], False)
    assert "no process of the run offers NCCL's RAS" in facts["trouble"]


def test_runs_have_ports_of_their_own_for_ras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_RAS_ADDR", raising=False)
    ports = {
        int(make_ras_address_env_unless_set(f"smoke-{i}")["NCCL_RAS_ADDR"].removeprefix("127.0.0.1:"))
        for i in range(20)
    }
    assert len(ports) == 20
    assert all(28028 < port < 32768 for port in ports)
    monkeypatch.setenv("NCCL_RAS_ADDR", "localhost:12345")
    assert make_ras_address_env_unless_set("smoke-0") == {}


@pytest.mark.parametrize("sleeper", [{"TORCH_FR_DUMP_TEMP_FILE": "TMP/trace-"}], indirect=True)
def test_dumps_of_the_flight_recorder_are_copied(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    (tmp_path / "trace-0").write_bytes(b"new")
    (tmp_path / "trace-1").write_bytes(b"of an earlier run")
    os.utime(tmp_path / "trace-1", (1, 1))
    facts = write_ras_report_and_copy_dumps([sleeper.pid], tmp_path / "nccl", time.time() - 60)
    assert facts["files"] == ["trace-0"]
    assert (tmp_path / "nccl" / "trace-0").read_bytes() == b"new"


@pytest.mark.parametrize("sleeper", [{}], indirect=True)
@pytest.mark.parametrize(
    ("words", "trouble"),
    [
        ("echo 'Error: Permission Denied: Try running again' >&2; exit 1", NO_PERMISSION),
        ("echo 'Error: Failed to get stack' >&2; exit 1", "py-spy: Error: Failed to get stack"),
        ("sleep 30", "py-spy: "),
    ],
)
def test_a_stack_that_cannot_be_had_is_said_and_the_kernel_says_the_rest(
    sleeper: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, trouble: str
) -> None:
    spy = tmp_path / "py-spy"
    spy.write_text(f"#!/bin/sh\n{words}\n")
    spy.chmod(0o755)
    monkeypatch.setattr(rlbox.hang.stacks, "_program", lambda: str(spy))
    monkeypatch.setattr(rlbox.hang.stacks, "_DUMP_S", 0.3)
    (found,) = add_and_write_py_spy_stacks(
        probe_process_waits_without_stacks([sleeper.pid]),
        tmp_path / "stacks",
        lambda text: text,
        deadline_monotonic_s=time.monotonic() + 20,
    )
    assert found.stack_error.startswith(trouble)
    assert found.stack == ()
    text = (tmp_path / "stacks" / f"{sleeper.pid}.txt").read_text()
    assert found.stack_error in text
    assert "sleeps between two looks at something" in text


@pytest.mark.parametrize("sleeper", [{}], indirect=True)
def test_activity_of_a_process(sleeper: subprocess.Popen[bytes]) -> None:
    before = probe_machine_and_process_activity([sleeper.pid, os.getpid()], with_gpus=False)
    with open("/dev/zero", "rb", buffering=0) as zero:
        zero.read(4 << 20)
    rates = compute_rates(before, probe_machine_and_process_activity([sleeper.pid, os.getpid()], with_gpus=False))
    assert rates.read * rates.seconds >= 4 << 20
    wait_for(lambda: (idle := probe_process_usage(sleeper.pid)) and idle.state == "S")
    idle = probe_process_usage(sleeper.pid)
    assert idle
    assert (idle.state, idle.pid) == ("S", sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    assert probe_process_usage(sleeper.pid) is None
    assert compute_rates(before, probe_machine_and_process_activity([sleeper.pid], with_gpus=False)).cpu == 0.0


class Driver:
    """NVML as nvidia-ml-py has it, with one card that waits in a collective; `stuck` blocks as a broken driver does."""

    NVMLError = type("NVMLError", (Exception,), {})

    def __init__(self) -> None:
        self.stuck = threading.Event()
        self.stuck.set()

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self.stuck.wait(20)
        return 1

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "nvmlDeviceGetHandleByIndex": "card",
            "nvmlDeviceGetName": "NVIDIA A800",
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=100, memory=0),
            "nvmlDeviceGetPowerUsage": 95_000,
            "nvmlDeviceGetEnforcedPowerLimit": 400_000,
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=3 << 30, total=80 << 30),
            "nvmlDeviceGetTotalEccErrors": 2,
            "nvmlDeviceGetCudaComputeCapability": (8, 0),
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=7)],
            "nvmlDeviceGetProcessUtilization": [
                SimpleNamespace(pid=7, smUtil=99, memUtil=0, timeStamp=2),
                SimpleNamespace(pid=7, smUtil=34, memUtil=5, timeStamp=1),
            ],
        }
        return lambda *_: answers[name]


def test_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", driver)  # type: ignore[arg-type]
    monkeypatch.setattr(rlbox.system.gpu, "_nvml", rlbox.system.gpu._Nvml())
    card = GpuStatus(
        index=0,
        name="NVIDIA A800",
        utilization=100,
        power_w=95.0,
        power_limit_w=400.0,
        memory_bytes=3 << 30,
        total_bytes=80 << 30,
        processes=(7,),
        memory_utilization=0,
        uncorrected_errors=2,
        arch="sm_80",
        shares=((7, 99, 0),),
    )
    assert query_gpus_or_empty() == (card,)
    driver.stuck.clear()
    assert query_gpus_or_empty(0.05) == ()
    assert query_gpus_or_empty(0.05) == ()
    driver.stuck.set()


@pytest.mark.skipif(sys.version_info < (3, 11), reason=NO_END_OF_SLEEP)
@pytest.mark.parametrize(
    ("sleep_s", "waited_s", "is_pause"),
    [
        pytest.param(45, 10, True, id="asks a server again"),
        pytest.param(3600, 10, False, id="for an hour"),
        pytest.param(45, 290, False, id="again and again"),
        pytest.param(2, 10, False, id="between two looks"),
    ],
)
def test_a_sleep_that_ends_soon_is_a_pause(sleep_s: int, waited_s: float, is_pause: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", f"import time; print(flush=True); time.sleep({sleep_s})"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.readline()
        try:
            wait_for(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S")
            left_s = probe_remaining_tolerated_sleep_s_or_0([process.pid], waited_s)
        finally:
            process.kill()
    assert (sleep_s - 5 <= left_s <= sleep_s) if is_pause else left_s == 0
