"""What `rlbox export` makes, used: a service of Compose."""

from __future__ import annotations

import subprocess
from pathlib import Path

from enginebox import Box
from projectbox import own


def docker(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *words], capture_output=True, text=True, timeout=300, **options)


def test_a_service_of_compose_is_a_container_of_the_target(tiny: Box, tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    file.write_text(tiny("export", "tiny", "--format", "compose").out)
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
