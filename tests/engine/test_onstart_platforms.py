"""The start script of each platform, in containers that imitate how the platform calls it; cloud-init is real."""

from __future__ import annotations

import shlex
import subprocess
import uuid
from collections.abc import Callable, Iterator
from importlib.metadata import version

import pytest
from enginebox import Box, wait_until
from test_vast_plain_image import CA, plain_image
from vastmachine import Instance, docker

from rlbox.image.context import write_rlbox_wheel

__all__ = ["plain_image"]
pytestmark = [pytest.mark.allow("sockets"), pytest.mark.slow]
SPEC = """
title = "a small target with a data disk at another path than the platforms have"
[base]
bootstrap = "debian:bookworm"
packages = ["ca-certificates", "python3", "python3-venv"]
[[stack]]
name = "tools"
packages = ["six==1.16.0"]
[disk]
mount = "/data"
need_gib = 8.0
[run]
shm_gib = 0.05
[hardware]
platform = "{platform}"
"""
APT = "apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends"
# What vast.ai's own images do at a boot, in the order of their README: the variable until it succeeds, then the folder.
VAST_BOOT = """
[ -e /.provisioning_complete ] || { chmod +x /provisioning.sh && /provisioning.sh && touch /.provisioning_complete; }
for hook in /etc/vast_boot.d/*.sh; do . "$hook"; done
"""
# The units of cloud-init in the order of a boot, with the environment that systemd gives them; each is started whatever
# became of the others (the module `locale` fails in a container).
CLOUD_BOOT = "".join(
    f"env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin SSL_CERT_FILE={CA}.site PIP_CERT={CA}.site cloud-init {words} 2>&1\n"
    for words in ("init --local", "init", "modules --mode=config", "modules --mode=final")
)
WHEEL = (f"RLBOX_WHEEL=/srv/rlbox-{version('rlbox')}-py3-none-any.whl", "RLBOX_PROJECT=/srv/project")
SEED = "/var/lib/cloud/seed/nocloud"
# Every file but logs, caches and what the kernel and cloud-init keep; RLBOX_INIT is the start of the first process.
FILES = r"""
set -- /proc /sys /dev /tmp /run /srv /var/log /var/cache /var/lib/cloud "$HOME/.cache"
for path; do shift; set -- "$@" -o -path "$path"; done
shift
find / \( "$@" \) -prune -o -type f ! -name onstart.log ! -name environment.sh ! -path /etc/environment \
    -exec sha256sum {} + -o -type l -printf '%l %p\n'
sed '/RLBOX_INIT/d' /etc/environment /etc/rlbox/environment.sh || true
"""


class Machine(Instance):
    def wait_and_list_files(self) -> set[str]:
        """Wait for the end of the start script, check the stack, and return a line of each file with its checksum."""
        status = "cat /data/onstart.status || true"
        wait_until(lambda: self.sh(status).startswith(("ready", "failed")), "the end of the start script", 400)
        assert self.sh(status) == "ready\n", self.sh("tail -n 40 /data/onstart.log")
        shell = "env -i HOME=/root bash -lc 'command -v python; python -c \"import six; print(six.__version__)\"'"
        assert self.sh(shell) == "/opt/venv/bin/python\n1.16.0\n"
        self.sh("rm /data/onstart.status")
        return set(self.sh(FILES).splitlines())


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Box:
    home = tmp_path_factory.mktemp("platforms")
    box = Box(project=home / "project", data=home / "disk")
    for name, platform in (("rented", "runpod"), ("own", "")):
        (home / f"project/images/{name}").mkdir(parents=True)
        (home / f"project/images/{name}/target.toml").write_text(SPEC.format(platform=platform))
        done = box("lock", name)
        assert done.code == 0, done.err
    write_rlbox_wheel(home)
    return box


@pytest.fixture
def start_machine(plain_image: str, box: Box) -> Iterator[Callable[..., Machine]]:
    machine = Machine(f"rlbox-platform-{uuid.uuid4().hex[:12]}")

    def start(*options: str, command: tuple[str, ...] = ("sleep", "infinity")) -> Machine:
        trust = (f"--volume={CA}:{CA}.site:ro", f"--env=SSL_CERT_FILE={CA}.site", f"--env=PIP_CERT={CA}.site")
        common = (f"--name={machine.name}", "--label=rlbox.test=platform", "--pids-limit=1000", *trust)
        docker("create", *common, *options, plain_image, *command)
        docker("cp", f"{box.project.parent}/.", f"{machine.name}:/srv")
        docker("start", machine.name)
        return machine

    yield start
    subprocess.run(["docker", "rm", "--force", "--volumes", machine.name], capture_output=True)


def render(box: Box, target: str, platform: str, *words: str) -> str:
    done = box("onstart", target, "--platform", platform, *words)
    assert done.code == 0, done.err
    return done.out


def test_runpod_pod(start_machine: Callable[..., Machine], box: Box) -> None:
    """The start command is the first process, starts sshd for the account's key, and puts data on the volume."""
    command = tuple(shlex.split(render(box, "rented", "runpod")))
    options = ("--volume=/workspace", "--env=PUBLIC_KEY=ssh-ed25519 AAAA me", *(f"--env={row}" for row in WHEEL))
    machine = start_machine(*options, command=command)
    files = machine.wait_and_list_files()
    assert machine.sh("readlink /data") == "/workspace\n"
    docker("restart", "--time=5", machine.name)  # which here keeps more than the platform does
    assert machine.wait_and_list_files() ^ files == set()
    assert machine.sh("cat ~/.ssh/authorized_keys") == "ssh-ed25519 AAAA me\n"
    assert machine.sh("grep -l '^sshd' /proc/[0-9]*/comm | wc -l") == "1\n"


def test_runpod_keeps_the_command_of_its_own_images(start_machine: Callable[..., Machine], box: Box) -> None:
    machine = start_machine("--network=none", "--volume=/workspace")
    machine.put("/start.sh", "#!/bin/sh\necho own >/started\nexec sleep infinity\n")
    machine.sh("chmod 755 /start.sh")
    docker("exec", "--detach", machine.name, *shlex.split(render(box, "rented", "runpod")))
    wait_until(lambda: machine.sh("cat /started || true") == "own\n", "the image's own command", 30)
    wait_until(lambda: machine.sh("cat /data/onstart.status || true") == "failed: lock\n", "the status", 30)
    assert "set RLBOX_WHEEL" in machine.sh("cat /workspace/onstart.log")


def test_autodl_script_run_by_hand(start_machine: Callable[..., Machine], box: Box) -> None:
    machine = start_machine("--volume=/root/autodl-tmp")
    machine.put("/srv/onstart.sh", render(box, "rented", "autodl"))
    machine.sh(f"{' '.join(WHEEL)} sh /srv/onstart.sh")
    files = machine.wait_and_list_files()
    docker("restart", "--time=1", machine.name)
    machine.sh("sh /srv/onstart.sh")
    assert machine.wait_and_list_files() ^ files == set()
    assert machine.sh("readlink /data") == "/root/autodl-tmp\n"


def test_vast_runs_provisioning_script_then_its_hook(start_machine: Callable[..., Machine], box: Box) -> None:
    machine = start_machine("--init", *(f"--env={row}" for row in WHEEL))
    machine.sh(f"{APT} python3-venv ca-certificates")  # vast.ai's images have it
    machine.put("/provisioning.sh", render(box, "rented", "vast", "--provisioning"))
    machine.sh(VAST_BOOT)
    files = machine.wait_and_list_files()
    docker("restart", "--time=1", machine.name)
    machine.sh(VAST_BOOT)
    assert machine.wait_and_list_files() ^ files == set()


def test_cloud_init_user_data(start_machine: Callable[..., Machine], box: Box) -> None:
    """The real cloud-init accepts the user data, and runs the script at every boot of one instance."""
    machine = start_machine()
    machine.sh(f"{APT} cloud-init && mkdir -p {SEED} && touch {SEED}/meta-data")
    text = render(box, "own", "cloud-init").replace("# - {path", "- {path")
    machine.put(f"{SEED}/user-data", text.replace("RLBOX_WHEEL=the address of rlbox's wheel", "\\n".join(WHEEL)))
    assert "Valid cloud-config" in machine.sh(f"cloud-init schema -c {SEED}/user-data")
    machine.sh(CLOUD_BOOT)
    files = machine.wait_and_list_files()
    machine.sh(CLOUD_BOOT)
    assert machine.wait_and_list_files() ^ files == set()
