"""What `rlbox export` and the committed compose files say, and how values reach them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from deffile import Definition, parse_definition
from fakes import CHECKOUT, TARGET, Folder

from rlbox.app import App
from rlbox.cli.images import render_export
from rlbox.config.project import Project
from rlbox.engine.container import ContainerDefaults
from rlbox.errors import SpecError
from rlbox.image.forms import render_compose
from rlbox.target.target import load_target

SHIPPED = Project(folder=CHECKOUT)
ODD = """
[env]
ODD = '''it's "$HOME" {{ name }} \\ %s # `x`'''
[run]
user = "root"
cap_add = ["IPC_LOCK"]
ulimits = { memlock = "-1", nofile = "1024:2048" }
memory_gib = 1.5
pids = 100
"""


IMAGE = "registry.example/team/mine:v1"


def definition(folder: Folder, text: str = TARGET, image: str = IMAGE) -> Definition:
    folder.target("mine", text)  # and no lock: none is needed
    return parse_definition(render_export(App(project=folder.project), "mine", "apptainer", image))


def compose(project: Project, name: str, image: str = "") -> str:
    return render_export(App(project=project), name, "compose", image)


@pytest.mark.parametrize(("image", "agent"), [(IMAGE, "docker"), ("/data/mine.oci.tar", "oci-archive")])
def test_a_definition_starts_from_a_finished_image(folder: Folder, image: str, agent: str) -> None:
    made = definition(folder, image=image)
    assert made.header == {"bootstrap": agent, "from": image}
    assert made.sections["post"] == "    mkdir -p /data\n\n"
    assert set(made.sections) == {"help", "post", "runscript", "test"}


def test_what_no_definition_can_set_is_said(folder: Folder) -> None:
    told = definition(folder, TARGET + ODD).sections["help"]
    for words in (
        "root: --fakeroot",
        "--memory=1610612736",
        "--pids-limit=100",
        "--ulimit=memlock=-1",
        "--cap-add=IPC_LOCK",
    ):
        assert words in told


def test_compose_has_the_limits_of_the_target(folder: Folder) -> None:
    folder.target("mine", TARGET + ODD)
    lines = [line.strip() for line in compose(folder.project, "mine").splitlines()]
    for line in (
        'image: "rlbox/mine:tests"',
        "pull_policy: never",
        "cap_drop: [ALL]",
        'security_opt: ["no-new-privileges:true"]',
        "shm_size: 1073741824",
        "mem_limit: 1610612736",
        "pids_limit: 100",
        "memlock: {soft: -1, hard: -1}",
        "nofile: {soft: 1024, hard: 2048}",
        "cap_add: [CHOWN, DAC_OVERRIDE, FOWNER, IPC_LOCK]     # root's own on a data disk of somebody else",
        'source: "${RLBOX_DATA:-~/disk}"',
        "bind: {create_host_path: true}",
    ):
        assert line in lines, line
    assert not [line for line in lines if line.startswith(("user:", "deploy:", "cpus:", "network_mode:"))]
    assert "network_mode: host" in compose(SHIPPED, "cluster-2node")


def test_compose_of_a_pushed_image_pulls_it(folder: Folder) -> None:
    folder.target("mine")
    text = compose(folder.project, "mine", "registry.example/team/mine@sha256:" + "a" * 64)
    assert 'image: "registry.example/team/mine@sha256:' in text
    assert "pull_policy: missing" in text


def test_compose_gives_the_gpus_of_the_target() -> None:
    lines = [line.strip() for line in compose(SHIPPED, "vast-5090").splitlines()]
    assert "- {driver: nvidia, count: 4, capabilities: [gpu]}" in lines


def test_a_disk_without_a_place_must_be_named() -> None:
    target = load_target(SHIPPED, "local").target
    limits = ContainerDefaults(
        network="host",
        shm_gib=1,
        memory_gib=0,
        cpus=0,
        pids=0,
        user="caller",
        disk_mount="/d",
        disk_host_dir="",
        creates_disk_dir=False,
        needed_disk_gib=0,
    )
    text = render_compose(target, limits, SHIPPED.list_existing_template_dirs_except_packs())
    assert 'source: "${RLBOX_DATA:?' in text
    dollar = render_compose(
        target, replace(limits, disk_host_dir='/a$b"c'), SHIPPED.list_existing_template_dirs_except_packs()
    )
    (line,) = [line.strip() for line in dollar.splitlines() if "source:" in line]
    assert json.loads(line.partition(" ")[2]) == '${RLBOX_DATA:-/a$$b"c}'


def test_only_places_with_docker_have_a_committed_file() -> None:
    found = {path.parent.name for path in CHECKOUT.glob("images/*/compose.yaml")}
    own = {
        name
        for name in SHIPPED.own_pack_and_shipped_target_files()
        if not load_target(SHIPPED, name).target.hardware.platform
    }
    assert found == own != set()


DEVICES = TARGET + '[run.devices]\n"/dev/infiniband" = "rw"\n"/dev/fuse" = ""\n'


def test_devices_of_the_machine_are_in_the_exported_forms(folder: Folder) -> None:
    folder.target("mine", DEVICES)
    text = compose(folder.project, "mine")
    assert 'devices: ["/dev/infiniband:/dev/infiniband:rw"]' in text
    assert "--device=/dev/infiniband:/dev/infiniband:rw" in definition(folder, DEVICES).sections["help"]


@pytest.mark.parametrize("row", ['"/etc/passwd" = "rw"', '"/dev/../etc" = "rw"', '"/dev/fuse" = "x"', '"/dev/" = "r"'])
def test_what_is_no_device_is_refused(folder: Folder, row: str) -> None:
    folder.target("mine", f"{TARGET}[run.devices]\n{row}\n")
    with pytest.raises(SpecError, match=r"run\.devices"):
        load_target(folder.project, "mine")
