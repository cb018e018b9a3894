"""`rlbox shell` on a real engine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from enginebox import CHECKOUT, Box, docker
from projectbox import own

from rlbox.foreign import toml_table


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


def test_memory_is_limited(tiny: Box) -> None:
    code = "x = bytearray(800 << 20); print('not limited')"
    result = tiny("shell", "tiny", "--", "python3", "-c", code)
    assert result.code == 137
    assert "not limited" not in result.out


def test_a_missing_image_is_said(tiny: Box) -> None:
    (tiny.project / "images/absent").mkdir()
    (tiny.project / "images/absent/target.toml").write_text('include = "tiny"\ntitle = "never built"\n')
    result = tiny("shell", "absent", "--", "true")
    assert result.code == 4
    assert result.err.endswith(f"rlbox: error: the engine has no image {own('absent')}\n  next:  rlbox build absent\n")


def test_a_dry_run_prints_a_line_that_can_be_copied(tiny: Box) -> None:
    line = tiny("shell", "tiny", "--dry-run", "--", "echo", "two words").out
    done = subprocess.run(line, shell=True, capture_output=True, text=True)
    assert done.stdout == "two words\n", done.stderr
    assert docker("ps", "-aq", "--filter=label=rlbox.target=tiny") == ""


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


@pytest.fixture
def adapter(tiny: Box) -> Iterator[None]:
    """A device where InfiniBand's are; those of an adapter that is there are left alone."""
    with devices(tiny, {} if Path("/dev/infiniband").exists() else {"infiniband/uverbs0": 229}):
        yield


def test_infiniband_is_in_a_container_that_gets_its_devices(tiny: Box, adapter: None) -> None:
    """B099: the fix's own check, on a node with an adapter, whose engine lets memory be locked; both are told to it."""
    fix = toml_table((CHECKOUT / "templates/fixes/infiniband-in-container.toml").read_text("utf-8"))
    told = 'ls() { [ "$1" = /sys/class/infiniband ] && echo mlx5_0 || command ls "$@"; }; ulimit() { echo unlimited; }'
    check = ("shell", "fabric", "--", "sh", "-c", f"{told}\n{fix['check']['run']}")
    folder = tiny.project / "images/fabric"
    folder.mkdir()
    spec = 'include = "tiny"\ntitle = "on a fabric"\n'
    docker("tag", own("tiny"), own("fabric"))
    try:
        (folder / "target.toml").write_text(spec)
        without = tiny(*check)
        assert (without.code, without.out) == (
            1,
            "this node has mlx5_0 but the container has no /dev/infiniband: NCCL falls back to sockets\n",
        )
        (folder / "target.toml").write_text(f'{spec}[run.devices]\n"/dev/infiniband" = "rw"\n')
        handed = tiny(*check)
        assert (handed.code, handed.out) == (0, ""), handed.err
    finally:
        docker("rmi", own("fabric"))
