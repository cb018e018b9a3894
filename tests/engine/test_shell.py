"""`rlbox shell` on a real engine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from enginebox import Box, containers, docker
from projectbox import own


@pytest.mark.core
def test_the_exit_code_is_the_commands(tiny: Box) -> None:
    assert tiny("shell", "tiny", "--", "sh", "-c", "exit 7").code == 7
    assert tiny("shell", "tiny", "--", "true").code == 0


def test_mount_environment_and_limits_are_the_targets(tiny: Box) -> None:
    script = "df -B1 --output=size /dev/shm | tail -1; touch /data/mark; echo $LANG; id -u; cat /proc/1/comm"
    lines = tiny("shell", "tiny", "--", "sh", "-c", script).out.split()
    assert lines == [str(1 << 28), "C.UTF-8", "0", "docker-init"]
    assert (tiny.data / "mark").exists()


def test_standard_input_reaches_the_command(tiny: Box) -> None:
    done = subprocess.run(
        tiny.argv("shell", "tiny", "--", "cat"),
        input="through\n",
        capture_output=True,
        text=True,
        cwd=tiny.project,
        env=tiny.env(),
        timeout=60,
    )
    assert done.stdout == "through\n"


def test_a_dry_run_prints_a_line_that_can_be_copied(tiny: Box) -> None:
    line = tiny("shell", "tiny", "--dry-run", "--", "echo", "two words").out
    done = subprocess.run(line, shell=True, capture_output=True, text=True)
    assert done.stdout == "two words\n", done.stderr
    assert containers(tiny.data) == []


MAKE = ("run", "--rm", "--privileged", "--user=0", "--volume=/dev:/machine", "--entrypoint=sh", own("tiny"))


@contextmanager
def devices(tiny: Box, numbers: Mapping[str, int]) -> Iterator[None]:
    """Devices of the driver `misc` below `/dev`; the engine makes the nodes of those that a machine has not."""
    missing = {name: number for name, number in numbers.items() if not Path("/dev", name).exists()}
    for name, number in missing.items():
        docker(*MAKE, "-c", f"mkdir -p $(dirname /machine/{name}) && mknod /machine/{name} c 10 {number}")
    yield
    for name in missing:
        docker(*MAKE, "-c", f"rm /machine/{name}; rmdir $(dirname /machine/{name}) 2>/dev/null || :")


@pytest.fixture
def plain_devices(tiny: Box) -> Iterator[None]:
    with devices(tiny, {"fuse": 229, "net/tun": 200}):
        yield


def test_devices_of_the_machine_are_there_as_the_target_says(tiny: Box, plain_devices: None) -> None:
    """A plain one, and a folder of them as that of InfiniBand is; what is not named is not there."""
    folder = tiny.project / "images/devices"
    folder.mkdir()
    spec = 'include = "tiny"\ntitle = "with devices"\n[run.devices]\n"/dev/fuse" = "r"\n"/dev/net" = "rw"\n'
    (folder / "target.toml").write_text(spec)
    docker("tag", own("tiny"), own("devices"))
    try:
        script = "test -c /dev/net/tun && : </dev/fuse && : <>/dev/net/tun && echo there; (: >/dev/fuse) || echo no"
        result = tiny("shell", "devices", "--", "sh", "-c", script)
        assert result.out == "there\nno\n", result.err  # it may be read alone
        assert "Operation not permitted" in result.err
        assert "devices: /dev/fuse, /dev/net" in result.err
        (folder / "target.toml").write_text(spec + '"/dev/no-such-adapter" = "rw"\n')
        refused = tiny("shell", "devices", "--", "true")
        assert (refused.code, "has no /dev/no-such-adapter" in refused.err) == (5, True)
    finally:
        docker("rmi", own("devices"))
    assert tiny("shell", "tiny", "--", "test", "-e", "/dev/fuse").code == 1
