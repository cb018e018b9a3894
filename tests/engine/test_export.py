"""What `rlbox export` makes, used: a service of Compose, and the steps of a definition carried out in a container."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from deffile import Definition, parse_definition
from enginebox import Box
from projectbox import own

# What `apptainer build` does around the scripts: the root of the container is a folder, %setup sees it from outside.
BUILD = """
set -eu
export APPTAINER_ROOTFS=/rootfs
mkdir /rootfs
cd /context
sh -ex /scripts/setup
mkdir -p /rootfs/scripts /rootfs/proc /rootfs/dev
cp /scripts/* /rootfs/scripts/
cp /etc/resolv.conf /rootfs/etc/ 2>/dev/null || :
cp -a /dev/null /dev/urandom /dev/zero /rootfs/dev/
env -i PATH="$PATH" /usr/sbin/chroot /rootfs sh -ex /scripts/post
printf '#!/bin/sh\\n. /scripts/environment\\n. "$@"\\n' >/rootfs/scripts/in
env -i /usr/sbin/chroot /rootfs sh /scripts/in /scripts/test
printf '#!/bin/sh\\n. /scripts/environment\\n. /scripts/runscript\\n' >/rootfs/scripts/run
env -i FOREIGN=1 /usr/sbin/chroot /rootfs sh /scripts/run python -c "$1"
"""
LOOK = "import json, os, six, sys; print(json.dumps([six.__version__, sys.prefix, dict(os.environ)]))"


def docker(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *words], capture_output=True, text=True, timeout=300, **options)


def scripts_of(definition: Definition, folder: Path) -> Path:
    folder.mkdir()
    for name, text in definition.sections.items():
        (folder / name).write_text(text)
    return folder


def test_a_service_of_compose_is_a_container_of_the_target(tiny: Box, tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    assert tiny("export", "tiny", "--format", "compose", "--output", str(file)).code == 0
    env = {**tiny.env(), "RLBOX_USER": "1234:1234"}
    tiny.data.chmod(0o777)
    assert docker("compose", "-f", str(file), "config", "--quiet", env=env).returncode == 0
    look = "import os, shutil, six; open('/data/made', 'w'); print(os.getuid(), shutil.disk_usage('/dev/shm').total)"
    command = ("run", "--rm", "-T", "tiny", "python", "-c", look)
    project = f"rlbox-test-{tmp_path.name.replace('_', '-')}"
    done = docker("compose", "-p", project, "-f", str(file), *command, env=env, stdin=subprocess.DEVNULL)
    assert done.stdout.split() == ["1234", str(1 << 28)], done.stderr
    assert (tiny.data / "made").stat().st_uid == 1234
    labels = ("ps", "-a", "-q", "--filter", f"label=com.docker.compose.project={project}")
    assert docker(*labels).stdout == ""


def test_the_committed_file_asks_for_the_projects_name(tiny: Box) -> None:
    assert tiny("render", "tiny").code == 0
    words = ("compose", "-f", str(tiny.project / "images/tiny/compose.yaml"), "config")
    env = tiny.env()
    assert f"image: {own('tiny')}\n" in docker(*words, env=env).stdout
    del env["RLBOX_PROJECT_NAME"]
    refused = docker(*words, env=env)
    assert refused.returncode != 0
    assert "RLBOX_PROJECT_NAME is missing a value: as `rlbox images` says it" in refused.stderr


@pytest.mark.slow
def test_the_steps_of_a_definition_make_the_target(tiny: Box, tmp_path: Path) -> None:
    """Without registry and network; the container here is only the machine that `apptainer build` would run on."""
    context, file = tmp_path / "context", tmp_path / "Apptainer"
    assert tiny("fetch", "tiny").code == 0
    assert tiny("render", "tiny", "--context", str(context), "--hermetic").code == 0
    assert tiny("export", "tiny", "--format", "apptainer", "--output", str(file)).code == 0
    folder = scripts_of(parse_definition(file.read_text()), tmp_path / "scripts")
    mounts = (f"--volume={context}:/context:ro", f"--volume={folder}:/scripts:ro")
    words = ("--rm", "--network=none", "--label=rlbox.target=tiny", "--entrypoint=sh", *mounts, own("tiny"))
    done = docker("run", *words, "-c", BUILD, "sh", LOOK)
    assert done.returncode == 0, done.stderr[-3000:]
    version, prefix, env = json.loads(done.stdout.splitlines()[-1])
    assert (version, prefix) == ("1.16.0", "/opt/venv")
    image = docker("image", "inspect", "--format={{json .Config.Env}}", own("tiny"))
    want = dict(line.partition("=")[::2] for line in json.loads(image.stdout))
    assert {key: env.get(key) for key in want} == want
    assert "FOREIGN" in env  # without --cleanenv the host's variables come too
