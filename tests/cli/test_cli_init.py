"""`rlbox init`: the first files of somebody's own, which fit at once."""

from __future__ import annotations

import json
import subprocess

import pytest
from fakes import CHECKOUT, Folder, Rlbox
from venvbox import create_venv

from rlbox.cli.init import load_machine_presets
from rlbox.target.target import load_target

FILES = [".rlbox/job.schema.json", ".rlbox/target.schema.json", "images/mine/target.toml", "jobs/mine.toml"]


@pytest.mark.parametrize("machine", [*load_machine_presets()])
def test_what_it_writes_fits(rlbox: Rlbox, folder: Folder, machine: str) -> None:
    said = rlbox("init", "mine", "--machine", machine)
    assert said.code == 0
    assert said.err == "next: rlbox lock mine && rlbox build mine && rlbox run mine\n"
    assert folder.files() == [*FILES, "jobs/mine/train.py"]
    assert rlbox("show", "mine", "--json").code == 0
    assert rlbox("targets").code == 0
    locked = rlbox("lock", "mine")  # nobody is asked: the included target's lock fits
    assert locked.code == 0, locked.err
    assert "begins with that of" in locked.err
    assert rlbox("stack", "mine").code == 0


def test_every_shipped_target_can_be_begun_with(folder: Folder) -> None:
    offered = {machine["target"] for machine in load_machine_presets().values()}
    variants = ("-flash", "-te", "-cu12")  # of a target that is offered
    assert {
        name for name in folder.project.own_pack_and_shipped_target_files() if not name.endswith(variants)
    } == offered


@pytest.mark.parametrize(
    ("machine", "arch", "grade", "gib", "gpus"),
    [
        ("h100", "sm_90", "datacenter", 79.6, 8),
        ("h200", "sm_90", "datacenter", 140.4, 8),
        ("a100", "sm_80", "datacenter", 80.0, 8),
        ("b200", "sm_100", "datacenter", 179.0, 8),
        ("4090", "sm_89", "consumer", 23.9, 4),
        ("pro6000", "sm_120", "workstation", 95.5, 4),
        ("5090", "sm_120", "consumer", 32.0, 4),
    ],
)
def test_hardware_of_machine_is_written(
    rlbox: Rlbox, folder: Folder, machine: str, arch: str, grade: str, gib: float, gpus: int
) -> None:
    rlbox("init", "mine", "--machine", machine)
    hardware = load_target(folder.project, "mine").target.hardware
    assert (hardware.arch, hardware.grade, hardware.gpu_memory_gib, hardware.gpus) == (arch, grade, gib, gpus)
    assert hardware.cuda_driver == "13.0"


def test_hardware_options_override_known_machine(rlbox: Rlbox, folder: Folder) -> None:
    rlbox("init", "mine", "--machine", "a100", "--memory-gib", "40", "--gpus", "2")
    hardware = load_target(folder.project, "mine").target.hardware
    assert (hardware.arch, hardware.gpu_memory_gib, hardware.gpus) == ("sm_80", 40.0, 2)


def test_unknown_machine_with_arch_and_memory_is_written(rlbox: Rlbox, folder: Folder) -> None:
    said = rlbox("init", "mine", "--machine", 'an "L40S"', "--arch", "sm_89", "--memory-gib", "48")
    assert said.code == 0, said.err
    hardware = load_target(folder.project, "mine").target.hardware
    assert (hardware.gpu, hardware.arch, hardware.grade, hardware.gpu_memory_gib) == ('an "L40S"', "sm_89", "", 48.0)
    assert rlbox("lock", "mine").code == 0


def test_arm64_is_refused(rlbox: Rlbox, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GH200", "gb200", "gb300-nvl72"):
        said = rlbox("init", "mine", "--machine", name, "--arch", "sm_90", "--memory-gib", "96")
        assert (said.code, "no targets for arm64" in said.err) == (2, True)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    said = rlbox("init", "mine", "--machine", "h100")
    assert (said.code, "no targets for arm64" in said.err, folder.files()) == (2, True, [])


def test_again(rlbox: Rlbox, folder: Folder) -> None:
    """What is there stays, whatever is in it."""
    rlbox("init", "mine", "--machine", "cpu")
    folder.write("jobs/mine/train.py", "print('mine')\n")
    said = rlbox("init", "mine", "--machine", "cpu", "--json")
    assert said.data["files"]["jobs/mine/train.py"] == "already there, left as it is"
    assert said.data["files"]["jobs/mine.toml"] == "unchanged"
    assert (folder.path / "jobs/mine/train.py").read_text() == "print('mine')\n"


def test_an_editor_is_told_of_every_key(rlbox: Rlbox, folder: Folder) -> None:
    rlbox("init", "mine", "--machine", "cpu")
    for path, kind in (("images/mine/target.toml", "target"), ("jobs/mine.toml", "job")):
        first = (folder.path / path).read_text().splitlines()[0]
        schema = (folder.path / path).parent / first.removeprefix("#:schema ")
        assert json.loads(schema.read_text()) == json.loads(rlbox("show", "--schema", kind).out)
        assert json.loads(schema.read_text())["$id"] == f"https://json.schemastore.org/rlbox-{kind}.json"


@pytest.mark.slow
@pytest.mark.allow("processes")
def test_taplo_accepts_files_and_finds_unknown_keys(rlbox: Rlbox, folder: Folder, index: dict[str, str]) -> None:
    taplo = create_venv(folder.path, index, "taplo") / "taplo"

    def lint(*words: str) -> tuple[int, str]:
        argv = [taplo, "lint", *words]
        done = subprocess.run(argv, cwd=folder.path, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    assert rlbox("init", "mine", "--machine", "h200").code == 0
    assert lint("images/mine/target.toml", "jobs/mine.toml")[0] == 0
    folder.job("mine", (folder.path / "jobs/mine.toml").read_text() + "x = 1\n")
    code, errors = lint("jobs/mine.toml")
    assert (code, "'x' was unexpected" in errors) == (1, True), errors
    shipped = {"target": "images/*/target.toml", "job": "jobs/*.toml", "fix": "templates/fixes/*.toml"}
    for kind, pattern in shipped.items():
        schema = folder.write(f"{kind}.json", rlbox("show", "--schema", kind).out)
        code, errors = lint("--schema", schema.as_uri(), *map(str, CHECKOUT.glob(pattern)))
        assert code == 0, errors
