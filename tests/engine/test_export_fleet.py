"""What `rlbox export` writes for schedulers: read by their own parsers, and run by Slurm and in containers.

Slurm's daemons are Debian's, in two containers of a network without a way out. The commands for dstack, SkyPilot and
KubeRay run as these would start them, in two such containers; no cloud and no Kubernetes is there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from clusterstand import RAYS, TARGET
from enginebox import Box, docker, wait_until
from projectbox import own

from rlbox.config.toml_files import parse_toml

pytestmark = [pytest.mark.slow, pytest.mark.allow("sockets")]
HERE = Path(__file__).parent / "fleet"
IMAGE = f"registry.example/team/pair@sha256:{'0' * 64}"
CA = "/etc/ssl/certs/ca-certificates.crt"
SECRET = "planted-for-an-export-5ecret"
PROGRAMS = parse_toml((HERE / "programs.toml").read_text(), "programs.toml")
PARSERS = {"skypilot": "skypilot==0.14.1", "dstack": "dstack==0.22.5"}


@dataclass(frozen=True, kw_only=True)
class TwoNodes:
    """A network without a way out for two containers."""

    name: str
    box: Box

    def start(self, node: str, image: str, disk: Path, argv: list[str], **env: str) -> None:
        disk.mkdir(exist_ok=True)
        place = (
            f"--name={self.name}-{node}",
            f"--hostname={node}",
            f"--network={self.name}",
            f"--network-alias={node}",
        )
        volumes = (f"--volume={disk}:/data", f"--volume={self.box.project}:/mnt/project")
        variables = [f"--env={name}={value}" for name, value in env.items()]
        words = (*place, *volumes, *variables, f"--entrypoint={argv[0]}", image, *argv[1:])
        docker("run", "--detach", "--init", "--shm-size=512m", *words)

    def on(self, node: str, *argv: str) -> subprocess.CompletedProcess[str]:
        words = ("docker", "exec", "--workdir=/mnt/project", f"{self.name}-{node}", *argv)
        return subprocess.run(words, capture_output=True, text=True, timeout=600)


class NodeCommand(NamedTuple):
    """What a tool starts on a node, and the variables that it sets there."""

    argv: list[str]
    env: dict[str, str]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Box:
    """A project with a built target that has Ray, and a job of two nodes."""
    project = tmp_path_factory.mktemp("project")
    (project / "images/pair").mkdir(parents=True)
    (project / "images/pair/target.toml").write_text(TARGET.replace("RAY", RAYS["pair"]))
    shutil.copytree(HERE, project, dirs_exist_ok=True)
    box = Box(project=project, data=tmp_path_factory.mktemp("disk"))
    for words in (("lock", "pair"), ("build", "pair")):
        done = box(*words)
        assert done.code == 0, done.err
    return box


@pytest.fixture
def nodes(pair: Box) -> Iterator[TwoNodes]:
    name = f"rlbox-fleet-{uuid.uuid4().hex[:8]}"
    docker("network", "create", "--internal", name)
    yield TwoNodes(name=name, box=pair)
    docker("rm", "--force", "--volumes", f"{name}-node0", f"{name}-node1")
    docker("network", "rm", name)


@pytest.fixture
def slurm_image(pair: Box) -> Iterator[str]:
    """The target's image with Debian's Slurm: nodes of a site without pyxis, to which the target was brought."""
    listing = ("apt-get", "indextargets", "--format=deb $(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages")
    found = subprocess.run([*listing, "Label: Debian"], capture_output=True, text=True).stdout
    sources = [line for line in found.splitlines() if " bookworm" in line]
    if not sources:
        pytest.skip("this machine has no apt source of Debian 12")
    (pair.project / "debian.list").write_text("\n".join([*sources, ""]))
    name = f"rlbox-slurm-{uuid.uuid4().hex[:8]}"
    place = (
        f"--name={name}",
        "--network=host",
        f"--volume={CA}:/run/ca.crt:ro",
        f"--volume={pair.project}:/mnt/project",
    )
    words = ["docker", "run", *place, "--entrypoint=sh", own("pair"), "/mnt/project/install.sh"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    try:
        assert done.returncode == 0, done.stderr
        docker("commit", name, name)
        yield name
    finally:
        docker("rm", "--force", name)
        docker("image", "rm", "--force", name)


def export(box: Box, form: str, name: str = "two") -> str:
    done = box("export", name, "--format", form, "--image", IMAGE, HF_TOKEN=SECRET)
    assert done.code == 0, done.err
    assert SECRET not in done.out
    return done.out


def require_passed_run(disk: Path, box: Box) -> None:
    """Look that `rlbox runs` calls the only run of a data disk passed, and that both nodes took part."""
    (run,) = (disk / "runs").iterdir()
    rows = box("runs", "--data", str(disk), "--json").data["runs"]
    assert [(row["run"], row["state"]) for row in rows] == [(run.name, "passed")]
    assert json.loads((run / "nodes.json").read_text()) == ["node0", "node1"]
    assert "nodes node0 node1" in (run / "stages/1-count/stage.log").read_text()


def test_slurm_runs_the_job_with_its_gates_on_two_nodes(nodes: TwoNodes, slurm_image: str, tmp_path: Path) -> None:
    project = nodes.box.project
    (project / "munge.key").write_bytes(os.urandom(1024))
    (project / "two.sh").write_text(export(nodes.box, "slurm"))
    for node in ("node0", "node1"):
        nodes.start(node, slurm_image, tmp_path, ["sh", "/mnt/project/daemons.sh"])
    wait_until(lambda: "2   idle" in nodes.on("node0", "sinfo").stdout, "two nodes that wait for work", 60)
    tested = nodes.on("node0", "sbatch", "--test-only", "two.sh")
    assert "on nodes node[0-1]" in tested.stderr
    refused = nodes.on("node0", "env", "RLBOX_DATA=/mnt/none", "sbatch", "--wait", "--output=refused.log", "two.sh")
    assert refused.returncode == 5  # that of the run
    assert "there is no such data disk" in (project / "refused.log").read_text()
    done = nodes.on("node0", "env", "RLBOX_DATA=/data", "sbatch", "--wait", "--output=two.log", "two.sh")
    assert done.returncode == 0, (project / "two.log").read_text()
    require_passed_run(tmp_path, nodes.box)
    wait_until(lambda: "2   idle" in nodes.on("node0", "sinfo").stdout, "the end of both nodes' work", 60)
    assert "raylet" not in nodes.on("node1", "ps", "ax").stdout


def commands_of_nodes(form: str, text: str) -> list[NodeCommand]:
    data, both = yaml.safe_load(text), {"RLBOX_DATA": "/data", "RLBOX_PROJECT": "/mnt/project"}
    if form == "kuberay":
        spec = data["spec"]["rayClusterSpec"]
        options = [f"--{name}={value}" for name, value in spec["headGroupSpec"]["rayStartParams"].items()]
        worker = spec["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]
        head = ["bash", "-c", f"ulimit -n 65536; ray start --head {' '.join(options)} --block"]
        rows = [(head, {"RLBOX_HEAD": "node0"}), ([*worker["command"], *worker["args"]], {"FQ_RAY_IP": "node0"})]
        return [NodeCommand(argv, {**both, "RAY_ADDRESS": "", **env}) for argv, env in rows]
    script = data["commands"][0] if form == "dstack" else data["run"]
    both |= {"RAY_AUTH_TOKEN": "f00d" * 16, "DSTACK_MASTER_NODE_IP": "node0", "SKYPILOT_NODE_IPS": "node0\nnode1"}
    ranks = [{"DSTACK_NODE_RANK": rank, "SKYPILOT_NODE_RANK": rank} for rank in "01"]
    return [NodeCommand(["bash", "-c", script], {**both, **rank}) for rank in ranks]


@pytest.mark.parametrize("form", ["dstack", "skypilot", "kuberay"])
def test_the_commands_of_a_file_run_the_job_on_two_nodes(form: str, nodes: TwoNodes, tmp_path: Path) -> None:
    text, head_disk = export(nodes.box, form), tmp_path / "node0"
    for node, command in zip(("node0", "node1"), commands_of_nodes(form, text), strict=True):
        disk = head_disk if form == "kuberay" else tmp_path / node  # its nodes share a volume
        nodes.start(node, own("pair"), disk, command.argv, **command.env)
    if form == "kuberay":
        submit = ("python", "-c", PROGRAMS[form], yaml.safe_load(text)["spec"]["entrypoint"])
        wait_until(lambda: nodes.on("node0", *submit).returncode == 0, "KubeRay's Ray", 90)
    ends = ('"passed"', '"failed"')
    states = lambda: [path.read_text() for path in head_disk.glob("runs/*/run.json")]  # noqa: E731
    wait_until(lambda: any(f'"state": {end}' in text for text in states() for end in ends), "the end of the run", 300)
    require_passed_run(head_disk, nodes.box)


@pytest.mark.parametrize("form", [*PARSERS])
def test_the_tools_own_parser_reads_the_file(form: str, tmp_path: Path) -> None:
    box = Box(project=tmp_path, data=tmp_path)
    uv, python = Path(sys.executable).with_name("uv"), tmp_path / "venv/bin/python"
    for words in (("venv", tmp_path / "venv"), ("pip", "install", f"--python={python}", PARSERS[form])):
        subprocess.run([uv, "--quiet", *words], check=True, timeout=600)
    for name, count, gpus in (("xdan", 2, 8), ("holdem", 1, 4), ("hopper", 1, 8)):
        (tmp_path / "file.yaml").write_text(export(box, form, name))
        argv, env = [python, "-c", PROGRAMS[form], "file.yaml"], {**os.environ, "HOME": str(tmp_path)}
        done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        nodes, gpu, image, variables = json.loads(done.stdout.splitlines()[-1])
        assert (nodes, gpu) == (count, {"H100": gpus} if form == "skypilot" else [gpus, 80.0])
        assert image.removeprefix("docker:") == IMAGE
        assert ("RAY_AUTH_TOKEN" in variables) is (count == 2)


@pytest.mark.skipif(not shutil.which("npm"), reason="this machine has no npm")
def test_the_dev_containers_tool_starts_the_image_and_a_run_passes(tiny: Box, tmp_path: Path) -> None:
    words = ["npm", "install", "--silent", f"--prefix={tmp_path / 'npm'}", "@devcontainers/cli@0.89.0"]
    subprocess.run(words, check=True, timeout=300)
    tool, place = tmp_path / "npm/node_modules/.bin/devcontainer", f"--workspace-folder={tiny.project}"
    tiny.job("version", (HERE / "jobs/version.toml").read_text())
    file = tiny.project / ".devcontainer/devcontainer.json"
    file.parent.mkdir()
    file.write_text(tiny("export", "version", "--format", "devcontainer").out)
    try:
        subprocess.run([tool, "up", place], check=True, env=tiny.env(), timeout=300)
        argv = [tool, "exec", place, "rlbox", "run", "version", "--place", "here"]
        ran = subprocess.run(argv, env=tiny.env(), capture_output=True, text=True, timeout=300)
    finally:
        label = f"--filter=label=devcontainer.local_folder={tiny.project}"
        docker("rm", "--force", *docker("ps", "--all", "--quiet", label).split())
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert tiny.state()["state"] == "passed"
