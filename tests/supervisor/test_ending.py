"""Whatever ends a run, nothing of it is left, and nothing else is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from supervised import SERVER, Bench, free_port, line_rule, python, service, wait_for

# a stage that leaves a grandchild in a session of its own, and one whose environment shows no mark any more
STRAYS = """
import os, subprocess, sys, time
code = "import time; print('stray', flush=True); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
middle = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True, env={})"
subprocess.run([sys.executable, "-c", middle, code])
print("strays made", flush=True)
"""
SLEEPER = "import time; time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A foreign process with the command line of a stage."""
    process = subprocess.Popen(python(STRAYS.replace("subprocess.", "# ") + SLEEPER), stdout=subprocess.DEVNULL)
    yield process
    process.kill()
    process.wait()


def sleepers(text: str) -> list[int]:
    """Return the processes whose command line holds `text`, other than this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if text.encode() in (entry / "cmdline").read_bytes() and (entry / "exe").exists():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.mark.parametrize("end", ["0", "1", "forever"])
def test_strays_are_ended(bench: Bench, bystander: subprocess.Popen[bytes], end: str) -> None:
    mark = f"stray-{bench.run_id}"
    finish = "time.sleep(600)" if end == "forever" else f"sys.exit({end})"
    forbid = (line_rule("strays made"),) if end == "forever" else ()
    bench.stage("train", python(STRAYS.replace("stray'", f"{mark}'") + finish), forbid=forbid)
    assert bench.run() == (0 if end == "0" else 1)
    wait_for(lambda: sleepers(mark) == [])
    assert bystander.poll() is None


def test_deaf_process_is_killed_after_its_grace(bench: Bench) -> None:
    bench.stage("train", python(STUBBORN), require=(line_rule("deaf"),))
    supervisor = bench.start()
    wait_for(lambda: (bench.run_dir / "stages/1-train/stage.log").exists() and "deaf" in bench.log("1-train/stage.log"))
    supervisor.send_signal(signal.SIGTERM)
    assert bench.finish()[0] == 130
    assert bench.last("train").exit_code == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_interrupt(bench: Bench, number: signal.Signals) -> None:
    port = free_port()
    bench.stage("first", python(SLEEPER), services=(service("reward", port),))
    bench.stage("second", ("true",))
    supervisor = bench.start()
    wait_for(lambda: (bench.run_dir / "run.json").exists() and bench.last("first").state == "running")
    supervisor.send_signal(number)
    assert bench.finish()[0] == 130
    assert bench.states() == ["interrupted", "not started"]
    assert bench.state().state == "interrupted"
    assert bench.cause().what == f"interrupted by {number.name}"


def test_hang_up_is_no_reason_to_stop(bench: Bench) -> None:
    bench.stage("train", python("import time; print('up', flush=True); time.sleep(1); print('done')"))
    supervisor = bench.start()
    wait_for(lambda: (bench.run_dir / "run.json").exists() and bench.last("train").state == "running")
    supervisor.send_signal(signal.SIGHUP)
    assert bench.finish()[0] == 0


def test_children_do_not_inherit_odd_signals(bench: Bench) -> None:
    show = "import signal; print([signal.getsignal(s) == signal.SIG_DFL for s in (1, 15)])"
    bench.stage("train", python(show), require=(line_rule(r"\[True, True\]"),))
    assert bench.run() == 0


def test_services_stop_in_reverse(bench: Bench) -> None:
    ports = [free_port(), free_port()]
    services = tuple(service(f"s{i}", port, python(SERVER, str(port))) for i, port in enumerate(ports))
    bench.stage("train", ("true",), services=services)
    assert bench.run() == 0
    told = [(e["service"], e["state"]) for e in bench.events() if e["event"] == "service"]
    assert told == [
        ("s0", "starting"), ("s0", "ready"), ("s1", "starting"), ("s1", "ready"), ("s1", "stopped"), ("s0", "stopped"),
    ]  # fmt: skip


def test_bug_leaves_nothing_behind(bench: Bench) -> None:
    """A command without words passes no spec check; here it stands for any error inside."""
    bench.stage("train", (), services=(service("reward", free_port()),))
    bench.stage("later", ("true",))
    bench.start()
    code, err = bench.finish()
    assert code == 3, err
    assert bench.states() == ["failed", "not started"]
    assert bench.cause().what == "error in rlbox: IndexError: list index out of range"
    assert "Traceback" in (bench.run_dir / "supervisor-error.log").read_text()


def test_supervisor_runs_without_click() -> None:
    modules = "{'rich', 'click', 'docker'} & set(sys.modules)"
    code = f"import sys, rlbox.supervise, rlbox.supervise.supervisor; sys.exit(bool({modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
