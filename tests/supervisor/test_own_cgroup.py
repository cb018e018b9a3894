"""A run in place owns what is in its control group, and what lies in Ray's folder since it began."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from supervised import PATIENCE_S, Bench, python, wait_for

from rlbox.system.cgroup import RunCgroup
from rlbox.system.process_table import has_environment
from rlbox.system.run_processes import RunProcesses
from rlbox.system.stop_signal import StopSignal

# A process that has left tree, session and environment behind: only the control group still knows it.
HIDDEN = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        word = sys.argv[1].removeprefix("of-")
        os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)", word], {})
    os._exit(0)
os.wait()
time.sleep(600)
"""
GROUP = """
import os, subprocess, sys
from pathlib import Path
from rlbox.system.cgroup import RunCgroup
group = RunCgroup(Path("/d/runs", sys.argv[1]))
print(group.create_and_enter(), flush=True)
child = subprocess.Popen(["sleep", "600"], start_new_session=True, env={})
again = RunCgroup(Path("/d/runs", sys.argv[1]))
print(group.list_other_pids() == {child.pid}, again.list_other_pids() == {child.pid}, flush=True)
child.kill()
child.wait()
group.leave_and_remove()
print(sorted(group.list_other_pids()), RunCgroup(Path("/d/runs", sys.argv[1])).list_other_pids() == set())
"""


def processes_with(word: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.fixture
def word() -> Iterator[str]:
    """A word of a command line that is this test's own; whoever has it is ended."""
    made = f"hidden-{os.getpid()}-{os.urandom(4).hex()}"
    yield made
    for pid in processes_with(made):
        os.kill(pid, 9)


def may_make_groups() -> bool:
    code = (
        "import sys; from pathlib import Path; from rlbox.system.cgroup import RunCgroup as G; "
        "g = G(Path(sys.argv[1])); print(g.create_and_enter()); g.leave_and_remove()"
    )
    argv = [sys.executable, "-c", code, f"probe-{os.getpid()}"]
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout == "True\n"


def test_a_group_knows_its_members_and_goes_with_them() -> None:
    if not may_make_groups():
        pytest.skip("this machine lets nobody make a control group")
    argv = [sys.executable, "-c", GROUP, f"test-{os.getpid()}-group"]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S)
    entered, members, left = said.stdout.splitlines()
    assert entered == "True"
    assert members == "True True"
    assert left == "[] True"


def test_what_hides_is_known_even_when_the_supervisor_was_killed(bench: Bench, word: str) -> None:
    if not may_make_groups():
        pytest.skip("this machine lets nobody make a control group")
    bench.stage("train", python(HIDDEN, f"of-{word}"))
    supervisor = bench.start()
    wait_for(lambda: processes_with(word))
    supervisor.send_signal(signal.SIGKILL)
    wait_for(lambda: supervisor.poll() is not None)
    (hidden,) = processes_with(word)
    assert not has_environment(hidden, {"RLBOX_RUN": bench.run_dir.name})
    processes = RunProcesses(bench.run_dir, StopSignal())
    assert hidden in {process.pid for process in processes.list_members()}
    assert processes.stop_all_and_list_survivors() == ()
    assert processes_with(word) == []


def test_without_a_group_nothing_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for bases in ((), (tmp_path / "none",)):
        found = [("", base) for base in bases]
        monkeypatch.setattr("rlbox.system.cgroup.find_own_cgroups", lambda kinds, found=found: found)
        group = RunCgroup(Path("/d/runs/r"))
        assert group.create_and_enter() is False
        assert group.list_other_pids() == set()
        group.leave_and_remove()


def place_with_check(folder: Path, run: str) -> Path:
    """Lay an installation whose only fix is checked before a run."""
    own = folder / "place/opt/rlbox"
    (own / "share").mkdir(parents=True)
    check = {"run": run, "when": ["run"]}
    row = {"id": "mine", "title": "It is there", "remedy": "Put it there.", "heals": [], "check": check}
    (own / "share/fixes.json").write_text(json.dumps({"fixes": [row]}))
    return own


def test_the_checks_of_a_place_come_before_the_first_stage(bench: Bench, tmp_path: Path) -> None:
    run = f'[ "$MADE_BY_A_HOOK" = yes ] && [ -e {tmp_path}/thing ] || {{ echo no thing; exit 1; }}'
    own = place_with_check(tmp_path, run)
    (own / "libexec").mkdir()
    (own / "libexec/init.sh").write_text("MADE_BY_A_HOOK=yes\nexport MADE_BY_A_HOOK\n")
    bench.stage("train", ("true",))
    bench.environment = {"RLBOX_PLACE": str(own)}
    assert bench.run() == 5
    assert "fix mine does not hold" in bench.cause().what


@pytest.mark.parametrize(
    ("command", "percent"), [(("true",), "0"), (("true", "--gpu-memory-utilization", "0.5"), "50")]
)
def test_the_checks_know_what_the_engines_of_the_run_ask_for(
    bench: Bench, tmp_path: Path, command: tuple[str, ...], percent: str
) -> None:
    """A run without an inference engine was refused for lack of room for one."""
    own = place_with_check(tmp_path, f'echo "$RLBOX_ENGINE_PERCENT" >{tmp_path}/percent')
    bench.stage("train", command)
    bench.environment = {"RLBOX_PLACE": str(own)}
    assert bench.run() == 0
    assert (tmp_path / "percent").read_text() == f"{percent}\n"
