"""Packs: targets, jobs, fixes and sources profiles of installed Python packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import CASES, CHECKOUT, JOB, UV_WHEEL, Folder, Rlbox, hold
from venvbox import create_venv, run_uv

LOG = "Traceback (most recent call last):\nRuntimeError: acme_loader: license 0x1f has ended\n"
GUIDE = (CHECKOUT / "docs/packs.md").read_text(encoding="utf-8")


def install(site: Path, distribution: str, name: str, package: str) -> None:
    """Write the metadata of an installed distribution with one pack."""
    info = Folder(site / f"{distribution}-1.0.dist-info")
    info.write("METADATA", f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    info.write("entry_points.txt", f"[rlbox.packs]\n{name} = {package}\n")


def write_pack(site: Path) -> Folder:
    """Write the Python package `acme_rlbox` with one target, job, fix and sources profile."""
    pack = Folder(shutil.copytree(CASES / "packs/acme_rlbox", site / "acme_rlbox"))
    pack.write("__init__.py", "raise RuntimeError('rlbox runs no code of a pack')\n")
    pack.lock("acme-h100")
    return pack


@pytest.fixture
def pack(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """The pack `acme`, installed in an environment inside of the project folder."""
    site = folder.path / ".venv/site-packages"
    monkeypatch.syspath_prepend(str(site))
    install(site, "acme_rlbox", "acme", "acme_rlbox")
    return write_pack(site)


@pytest.mark.usefixtures("pack", "unasked")
@pytest.mark.allow("processes")
def test_commands_see_targets_jobs_fixes_and_sources_of_a_pack(rlbox: Rlbox, folder: Folder) -> None:
    hold(UV_WHEEL)
    rows = {row["name"]: (row["source"], row["pack"]) for row in rlbox("targets", "--json").data["found"]}
    assert rows["acme-h100"] == rows["acme-train"] == ("pack", "acme")
    assert rows["smoke"] == ("shipped", None)
    assert "H100 node of Acme [pack acme]\n" in rlbox("targets").out
    names = ("show acme-h100", "show acme-train", "render acme-h100", "run acme-train --dry-run")
    for command in (*names, "build acme-h100 --dry-run --sources acme"):
        assert rlbox(*command.split()).code == 0, command
    assert "acme-license" in rlbox("fixes").out
    assert "acme-license renew" in rlbox("fixes", "show", "acme-license").out
    folder.write("train.log", LOG)
    said = rlbox("diagnose", "train.log")
    assert (said.code, "acme-license renew" in said.out) == (1, True), said.out
    folder.write("x.sh", "ray shutdown\n")
    assert rlbox("lint", "x.sh", "--target", "acme-h100").code == 1
    assert rlbox("lint").err == ""  # the files of a pack are not the user's own
    assert rlbox.offers("rlbox build acme") == ["plain,acme-h100"]


def test_project_overrides_pack_and_pack_overrides_shipped(rlbox: Rlbox, folder: Folder, pack: Folder) -> None:
    for place, title in ((pack, "job of a pack"), (folder, "own job")):
        place.job("smoke", JOB.replace("smallest job", title))
        assert rlbox("show", "smoke", "--json").data["job"]["title"] == title


def test_same_name_in_two_packs_is_one_error(rlbox: Rlbox, folder: Folder, pack: Folder) -> None:
    site = pack.path.parent
    install(site, "other", "other", "other")
    Folder(site / "other").job("acme-train")
    rlbox("show", "acme-train").check_error(2, "jobs/acme-train.toml is in two packs: other and acme", "next: ")
    folder.job("acme-train")
    assert rlbox("show", "acme-train").code == 0
    install(site, "other", "acme", "other")
    rlbox("targets").check_error(2, "two installed packages have a pack named acme", "acme_rlbox 1.0, other 1.0")


@pytest.mark.parametrize("package", ["nowhere", "acme_rlbox.nowhere", "empty"])
def test_pack_without_folders_is_one_error(rlbox: Rlbox, pack: Folder, package: str) -> None:
    pack.write("../empty/__init__.py", "")
    install(pack.path.parent, "acme_rlbox", "acme", package)
    rlbox("targets").check_error(2, f"pack acme: the Python package {package} has none of the folders images/, ")


def test_wrong_toml_of_a_pack_is_an_error_with_its_name(rlbox: Rlbox, pack: Folder) -> None:
    pack.target("acme-h100", "title = [")
    rlbox("show", "acme-h100").check_error(2, "pack acme: images/acme-h100/target.toml: broken TOML")
    pack.write("templates/fixes/acme-license.toml", "title = \n")
    rlbox("fixes").check_error(2, "pack acme: templates/fixes/acme-license.toml: broken TOML")
    rlbox("diagnose", "-").check_error(2, "broken TOML", "where: pack acme: templates/fixes/acme-license.toml")


@pytest.mark.slow
@pytest.mark.allow("processes")
def test_pack_is_installed_from_its_wheel_and_removed_again(
    tmp_path: Path, folder: Folder, index: dict[str, str]
) -> None:
    folder.write("train.log", LOG)
    source = Folder(tmp_path / "source")
    source.write("pyproject.toml", GUIDE.partition("```toml\n")[2].partition("```")[0])
    write_pack(source.path)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    for project in (CHECKOUT, source.path):
        subprocess.run(build, cwd=project, capture_output=True, check=True)
    programs = create_venv(tmp_path, index, *map(str, tmp_path.glob("*.whl")))
    env = {"PATH": os.defpath, "HOME": str(tmp_path), "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}

    def run(command: str) -> tuple[int, str]:
        argv = [programs / "rlbox", *command.split()]
        done = subprocess.run(argv, cwd=folder.path, env=env, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    names = ("show acme-h100", "show acme-train", "run acme-train --dry-run", "fixes show acme-license")
    for command in (*names, "targets", "fixes", "diagnose train.log"):
        code, answer = run(command)
        assert (code, "acme-" in answer) == (int(command.startswith("diagnose")), True), (command, answer)
    assert run("build acme-h100 --dry-run")[0] in (0, 4)  # 4: this machine has no docker client
    run_uv(tmp_path, index, "pip", "uninstall", "acme-rlbox")
    assert [command for command in (*names, "build acme-h100") if run(command)[0] != 2] == []
    assert "acme-" not in run("targets")[1] + run("fixes")[1] + run("diagnose train.log")[1]
