"""What a program of a run does to its files, its supervisor and its container steers nothing outside."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from enginebox import Box, containers, docker, wait_until
from fakes import load_cases
from projectbox import own

CASES = load_cases("engine", "test_boundary")
JOB = CASES["JOB"]
FORGE = """
import json, os, pathlib, signal, sys, time
run = pathlib.Path(sys.argv[1])
def forge():
    state = json.loads((run / "run.json").read_text())
    state |= {"state": "passed", "exit_code": 0, "ended_at": state["started_at"], "cause": None}
    for stage in state["stages"]:
        stage |= {"state": "passed", "cause": None}
    (run / "forged").write_text(json.dumps(state))
    os.replace(run / "forged", run / "run.json")
"""


@pytest.fixture
def attacked(tiny: Box) -> Iterator[Box]:
    yield tiny
    for name in containers(tiny.data):  # what a red test leaves
        docker("rm", "--force", name)


def attack(box: Box, program: str) -> None:
    """Write the job whose second stage is a Python program; its argument is the run directory."""
    box.job("two", JOB)
    (box.project / "jobs/two").mkdir(exist_ok=True)
    (box.project / "jobs/two/attack.py").write_text(FORGE + program)


def row(box: Box) -> dict:
    found = box("runs", "--target", "tiny", "--json")
    assert found.code == 0, found.err
    return dict(found.data["runs"][0])


def running(box: Box) -> list[str]:
    """The states of the stages, none before there is a record."""
    try:
        return [stage["state"] for stage in box.state()["stages"]]
    except (OSError, ValueError, IndexError):
        return []


KILLS = """
tried = {}
def deed(name, act):
    try:
        act()
        tried[name] = "done"
    except OSError as error:
        tried[name] = error.strerror
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def trace():
    if libc.ptrace(16, 1, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
deed("trace", trace)
deed("output", lambda: os.open("/proc/1/fd/2", os.O_WRONLY))
deed("memory", lambda: os.open("/proc/1/mem", os.O_RDWR))
deed("secrets", lambda: open("/proc/1/environ", "rb").read())
for number in (signal.SIGSTOP, signal.SIGKILL):
    deed(number.name, lambda: os.kill(1, number))
(run / "tried.json").write_text(json.dumps(tried))
forge()
time.sleep(1)
forge()
"""


def test_the_supervisor_can_be_neither_killed_nor_traced_nor_spoken_for(attacked: Box) -> None:
    attack(attacked, KILLS)
    done = attacked("run", "two", "--json")
    assert done.code == 1, done.err
    assert "/never" in done.err, done.err
    tried = json.loads((attacked.runs()[-1] / "tried.json").read_text())
    assert tried == dict.fromkeys(("trace", "memory", "secrets", "output"), "Operation not permitted") | {
        "trace": "Operation not permitted",
        "output": "Permission denied",
        "memory": "Permission denied",
        "secrets": "Permission denied",
        "SIGSTOP": "done",  # and the kernel gave it to nobody
        "SIGKILL": "done",
    }
    assert (row(attacked)["state"], [stage["state"] for stage in attacked.state()["stages"]]) == (
        "failed",
        ["passed", "failed"],
    )


def test_a_record_that_says_passed_is_held_against_the_engine(attacked: Box) -> None:
    """T1, T7: the record is forged, then everything is killed from outside; the engine's word decides."""
    attack(attacked, "forge()\n(run / 'forged-now').write_text('')\ntime.sleep(600)\n")
    process = attacked.start("run", "two")
    wait_until(lambda: list(attacked.data.glob("runs/*/forged-now")), "the forged record")
    docker("kill", "--signal=KILL", containers(attacked.data)[0])
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    assert "the supervisor was killed (signal 9 (SIGKILL)) before it was seen that stage second passed" in err
    assert (row(attacked)["state"], running(attacked)) == ("failed", ["passed", "failed"])
    forged = attacked.state() | {"state": "passed", "exit_code": 0, "cause": None}
    forged["stages"] = [stage | {"state": "passed", "cause": None} for stage in forged["stages"]]
    (attacked.runs()[-1] / "run.json").write_text(json.dumps(forged))  # by another run's program, later
    found = row(attacked)
    assert (found["state"], found["stage"]) == ("failed", "second")
    assert "attempt 1 had failed" in found["cause"]
    plan = attacked("run", "--resume", attacked.runs()[-1].name, "--target", "tiny", "--dry-run")
    assert ("# stage first: has passed" in plan.out, "# stage second, attempt 2" in plan.out) == (True, True)


def test_a_container_that_is_started_again_starts_nothing(attacked: Box) -> None:
    attack(attacked, "print('there', flush=True)\ntime.sleep(600)\n")
    process = attacked.start("run", "two")
    wait_until(lambda: running(attacked) == ["passed", "running"], "stage second")
    name, run = containers(attacked.data)[0], attacked.runs()[-1]
    process.kill()  # nobody looks on
    process.communicate()
    docker("kill", "--signal=KILL", name)
    docker("start", name)
    docker("wait", name)
    assert f"attempt 1 of run {run.name} has started before" in docker("logs", name) + _errors(name)
    found = row(attacked)
    assert found["state"] == "failed"
    assert f"container {name} was started a second time, not by rlbox" in found["cause"]
    assert containers(attacked.data) == []


def _errors(name: str) -> str:
    return subprocess.run(["docker", "logs", name], capture_output=True, text=True).stderr


def test_links_that_are_planted_lead_nowhere(attacked: Box, tmp_path: Path) -> None:
    """T1, T2: a finished run's program left links to the user's files and folders in the place of rlbox's own."""
    home = tmp_path / "home"
    for name in ("new", "tiny/other", "two-1"):
        (home / name).mkdir(parents=True)
        (home / name / "mine.txt").write_text("mine")
    (home / ".bashrc").write_text("mine\n")
    before = _tree(home)
    links = {"events.jsonl": home / ".bashrc", "run.json": home / ".bashrc"}
    attack(
        attacked,
        f"for name, goal in {[(n, str(g)) for n, g in links.items()]!r}:\n"
        "    (run / name).unlink(missing_ok=True)\n    (run / name).symlink_to(goal)\ntime.sleep(600)\n",
    )
    process = attacked.start("run", "two")
    wait_until(lambda: [p for p in attacked.data.glob("runs/*/run.json") if p.is_symlink()], "the planted link")
    process.kill()
    process.communicate()
    docker("kill", "--signal=KILL", containers(attacked.data)[0])
    assert row(attacked)["state"] == "failed"
    assert _tree(home) == before
    for place in ("cache/bytecode/tiny", ".rlbox", "runs"):
        path = attacked.data / place
        subprocess.run(["rm", "-rf", str(path)], check=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(home / "tiny" if "tiny" in place else home)
        for words in (("runs", "--target", "tiny"), ("run", "two")):
            done = attacked(*words)
            assert "Traceback" not in done.err
            assert done.code in ((0, 5) if words[0] == "runs" else (1, 5)), (place, words, done)
            if done.code == 5:
                assert "it is a link, and rlbox follows none below a data disk: remove it" in done.err
                assert str(path) in done.err
        assert _tree(home) == before
        path.unlink()


def _tree(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() if p.is_file() else "" for p in sorted(folder.rglob("*"))}


def test_forged_notes_and_lists_end_nothing_of_others(attacked: Box) -> None:
    """T3: containers and processes that files of the data disk name are not the run's."""
    attack(attacked, "pass\n")
    assert attacked("run", "two").code == 1
    run = attacked.runs()[-1]
    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
    name = docker("run", "-d", "--rm", "--network=none", own("tiny"), "sleep", "600").strip()
    other = json.loads((run / "plan.json").read_text())
    try:
        started = int(Path(f"/proc/{bystander.pid}/stat").read_text().rpartition(")")[2].split()[19])
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        init = int(Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19])
        for forged, place in (("forged-1", "here"), ("forged-2", "docker")):
            folder = attacked.data / "runs" / forged
            (folder / "stages").mkdir(parents=True)
            carrier = name if place == "docker" else ""
            plan = other | {"run_id": forged, "place": place, "container": carrier}
            state = json.loads((run / "run.json").read_text()) | {"state": "running", "run_id": forged}
            lists = {"boot_id": boot, "init": init, "processes": [[bystander.pid, started]]}
            facts = {"pid": bystander.pid, "started": started, "boot_id": boot, "init": init, "uid": os.getuid()}
            texts = {"plan": plan, "run": state, "processes": lists}
            texts["supervisor"] = facts | {"host": "", "place": place, "container": carrier}
            for key, text in texts.items():
                (folder / f"{key}.json").write_text(json.dumps(text))
            notes = attacked.data / ".rlbox/containers"
            notes.mkdir(parents=True, exist_ok=True)
            note = {"run": forged, "name": name, "engine": "", "started": True, "place": "docker"}
            (notes / f"{forged}.json").write_text(json.dumps(note))
            assert attacked("runs", "--target", "tiny").code == 0
            assert attacked("stop", forged, "--target", "tiny").code in (0, 1, 2)
        assert bystander.poll() is None
        assert docker("inspect", "--format={{.State.Running}}", name) == "true\n"
    finally:
        bystander.kill()
        bystander.wait()
        docker("rm", "--force", name)


QUICK = CASES["QUICK"]


@pytest.mark.parametrize("place", ["here", pytest.param("docker", marks=pytest.mark.slow)])
def test_three_runs_that_are_started_at_once_on_three_disks(tiny: Box, tmp_path: Path, place: str) -> None:
    tiny.job("quick", QUICK)
    boxes = [Box(project=tiny.project, data=tmp_path / f"disk-{number}") for number in range(3)]
    for box in boxes:
        box.data.mkdir()
    started = [box.start("run", "quick", "--place", place) for box in boxes]
    ended = [(process.communicate(timeout=240)[1], process.returncode) for process in started]
    assert [code for _, code in ended] == [0, 0, 0], ended


SSH = """#!/bin/bash
until [ "$1" = -- ]; do
    [ "$1" = -L ] && ln -s "${2#*:}" "${2%%:*}"
    shift
done
[ $# -lt 3 ] || exec sh -c "$3"  # after `--` the host, and a command but for `-O forward`
"""


def test_beside_an_engine_over_ssh_its_host_keeps_what_is_known(tiny: Box, tmp_path: Path) -> None:
    """Each verb has a container of its own there; what one has kept, the next one knows."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ssh").write_text(SSH)
    (tmp_path / "bin/ssh").chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    extra = {"DOCKER_HOST": "ssh://me@far", "PATH": path, "XDG_STATE_HOME": str(tmp_path / "state")}
    far = Box(project=tiny.project, data=tiny.data, extra=extra)
    far.job("quick", QUICK)
    done = far("run", "quick", "--json")
    assert done.code == 0, done.err
    (kept,) = (tmp_path / "state").rglob("*.json")
    assert json.loads(kept.read_text())["verdict"] == {"attempt": 1, "state": "passed", "passed": ["only"]}
    record = far.runs()[-1] / "run.json"
    record.write_text(record.read_text().replace('"attempt": 1', '"attempt": 0'))
    found = far("runs", "--json", "--target", "tiny").data["runs"][0]
    assert (found["state"], "attempt 1 had passed" in found["cause"]) == ("failed", True)
