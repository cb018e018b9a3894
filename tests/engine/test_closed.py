"""Containers are closed: a network of their own, no capability, no way out of either; and nothing listens unseen."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from enginebox import Box, containers, docker, wait_until
from projectbox import own

TRY = """
import ctypes, os, shutil, socket, subprocess, sys, time

def deed(name, act):
    try:
        act()
        print(name, "done", flush=True)
    except OSError as error:
        print(name, "refused:", type(error).__name__, flush=True)

def mount():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", b"/mnt", b"tmpfs", 0, None):
        raise OSError(ctypes.get_errno(), "mount")

def gateway():
    for line in open("/proc/net/route").read().splitlines()[1:]:
        words = line.split()
        if words[1] == "00000000":
            return socket.inet_ntoa(bytes.fromhex(words[2])[::-1])

def borrow():
    # a program of another user's that takes on its owner: without no-new-privileges it does
    program = "/tmp/borrowed"
    shutil.copy("/usr/bin/id", program)
    os.chown(program, 12345, 12345)
    os.chmod(program, 0o4755)
    if subprocess.run([program, "-u"], capture_output=True, text=True).stdout.strip() != "12345":
        raise PermissionError("setuid binary")

port = int(sys.argv[1])
deed("borrow", borrow)
deed("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
deed("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
deed("mount", mount)
deed("setuid", lambda: os.setuid(12345))
deed("chroot", lambda: os.chroot("/tmp"))
deed("node", lambda: os.mknod("/tmp/disk", 0o60600, os.makedev(8, 0)))
deed("loopback", lambda: socket.create_connection(("127.0.0.1", port), 3))
deed("gateway", lambda: socket.create_connection((gateway(), port), 3))
deed("disk", lambda: open("/data/mark", "w").close())
for line in open("/proc/self/status"):
    if line.startswith(("NoNewPrivs", "CapEff", "CapBnd", "Seccomp:")):
        print(*line.split(), flush=True)
while not os.path.exists("/data/go"):
    time.sleep(0.05)
"""
JOB = """
title = "tries what it must not"
target = "tiny"
[params]
port = { default = 1024, help = "a port that listens on the host's loopback" }
[[stages]]
name = "try"
title = "tries"
command = ["python3", "{job}/closed/deeds.py", "{param.port}"]
limits = { total_s = 120, silence_s = 60 }
"""
HANG = """
import os

def wait_for_weights():
    os.read(os.pipe()[0], 1)

print("hangs", flush=True)
wait_for_weights()
"""
PLANT = 'import socket, time; s = socket.create_server(("", 4444)); print("planted", flush=True); time.sleep(60)'
_DISK_RIGHTS = 1 << 0 | 1 << 1 | 1 << 3  # CHOWN, DAC_OVERRIDE, FOWNER


def programs(box: Box, job: str, **texts: str) -> None:
    box.job("closed", job)
    folder = box.project / "jobs/closed"
    folder.mkdir()
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)


def networks() -> str:
    return docker("network", "ls", "--filter=label=rlbox.network", "--format={{.Name}}")


def check_closed(said: Mapping[str, str]) -> None:
    for deed in ("borrow", "raw", "packet", "mount", "setuid", "chroot", "node"):
        assert said[deed] == "refused: PermissionError", deed
    assert said["loopback"] == "refused: ConnectionRefusedError"
    assert said["gateway"].startswith("refused: ")
    assert said["disk"] == "done"
    assert (said["NoNewPrivs:"], said["Seccomp:"]) == ("1", "2")
    assert int(said["CapBnd:"], 16) == int(said["CapEff:"], 16) == (_DISK_RIGHTS if os.getuid() == 0 else 0)


def stage_log(box: Box) -> str:
    logs = list((box.data / "runs").glob("*/stages/1-try/stage.log"))
    return logs[0].read_text() if logs else ""


def test_a_program_in_a_run_reaches_nothing_outside_it(tiny: Box) -> None:
    programs(tiny, JOB, deeds=TRY)
    os.chown(tiny.data, 12345, 12345)  # the usual disk: an ordinary user's
    with socket.create_server(("127.0.0.1", 0)) as host:
        process = tiny.start("run", "closed", "--set", f"port={host.getsockname()[1]}")
        wait_until(lambda: "Seccomp:" in stage_log(tiny), "the deeds", 60)
        name = f"rlbox-{tiny.runs()[-1].name}"
        facts = json.loads(docker("inspect", name))[0]["HostConfig"]
        (tiny.data / "go").touch()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    said = dict(line.split(" ", 1) for line in stage_log(tiny).splitlines())
    check_closed(said)
    assert (facts["NetworkMode"], facts["CapDrop"]) == (name, ["ALL"])
    assert facts["SecurityOpt"] == ["no-new-privileges"]
    assert not facts["Privileged"]
    assert name not in networks()


def test_a_shell_is_as_closed_as_a_run(tiny: Box) -> None:
    with socket.create_server(("127.0.0.1", 0)) as host:
        words = ("shell", "tiny", "--", "python3", "-c", TRY, str(host.getsockname()[1]))
        process = tiny.start(*words)
        wait_until(lambda: process.poll() is not None or (tiny.data / "mark").exists(), "the deeds", 60)
        (name,) = containers(tiny.data)
        facts = json.loads(docker("inspect", name))[0]["HostConfig"]
        others = json.loads(docker("network", "inspect", name))[0]["Containers"].values()
        (tiny.data / "go").touch()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    check_closed(dict(line.split(" ", 1) for line in out.splitlines()))
    assert (facts["NetworkMode"], facts["CapDrop"]) == (name, ["ALL"])
    assert facts["SecurityOpt"] == ["no-new-privileges"]
    assert [other["Name"] for other in others] == [name]
    assert name not in networks()


def test_a_target_opens_its_shell_as_its_runs(tiny: Box) -> None:
    spec = tiny.project / "images/open/target.toml"
    spec.parent.mkdir()
    spec.write_text('include = "tiny"\ntitle = "on the network of its host"\n[run]\nnetwork = "host"\n')
    docker("tag", own("tiny"), own("open"))
    code = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 3); print('reached')"
    try:
        with socket.create_server(("127.0.0.1", 0)) as host:
            result = tiny("shell", "open", "--", "python3", "-c", code, str(host.getsockname()[1]))
    finally:
        docker("rmi", "--no-prune", own("open"))
    assert (result.code, result.out) == (0, "reached\n"), result.err


def test_stacks_of_a_hung_run_are_read_without_a_capability(tiny: Box) -> None:
    programs(tiny, JOB.replace("silence_s = 60", "silence_s = 5"), deeds=HANG)
    result = tiny("run", "closed")
    assert result.code == 7, result.err
    evidence = tiny.runs()[-1] / "stages/1-try/evidence"
    (process,) = json.loads((evidence / "hang.json").read_text())["processes"]
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if scope.exists() and scope.read_text().strip() != "0":
        assert "SYS_PTRACE" in process["trouble"]
        return
    assert "wait_for_weights" in (evidence / "stacks" / f"{process['pid']}.txt").read_text()
    assert (process["trouble"], "wait_for_weights" in str(process["stack"])) == ("", True)


def test_a_planted_listener_ends_the_stage(tiny: Box) -> None:
    programs(tiny, JOB, deeds=PLANT)
    result = tiny("run", "closed")
    assert result.code == 1, result.err
    assert "of stage try listens on 0.0.0.0:4444, which the job does not declare" in result.err
    assert 'next: have it listen on 127.0.0.1; if others are to reach it: listens = ["4444"] of stage try' in result.err


def test_what_was_left_of_a_network_goes(tiny: Box) -> None:
    owner = f"--label=rlbox.owner={os.getuid()}"
    for name, made in (("rlbox-left-old", "1700000000"), ("rlbox-left-others", "1700000000")):
        docker("network", "rm", "--force", name)
        mine = owner if name.endswith("old") else "--label=rlbox.owner=4242"
        docker("network", "create", mine, f"--label=rlbox.network={name}", f"--label=rlbox.made={made}", name)
    try:
        programs(tiny, JOB.replace('"{job}/closed/deeds.py", "{param.port}"', '"-c", "print(1)"'))
        assert tiny("run", "closed").code == 0
        assert networks().split() == ["rlbox-left-others"]
    finally:
        docker("network", "rm", "rlbox-left-others")
