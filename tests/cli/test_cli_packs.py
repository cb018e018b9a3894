"""Packs: targets, jobs, fixes and sources profiles of installed Python packages."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from fakes import CHECKOUT, JOB, ON_IMAGE, UV_WHEEL, Folder, Rlbox, hold
from venvbox import build_wheel, index_environment, run_uv

from rlbox.config.packs import find_installed_packs
from rlbox.config.project import SHIPPED_PROFILES, Project
from rlbox.engine.remote_helper import HelperContainerSpec, create_helper_start_archive

FIX = """
title = "the loader of Acme finds its license"
failure = "the loader of Acme finds no license"
remedy = "acme-license renew"
why = "Acme's loader stops without a license."
heals = ["acme-license"]
[[signature]]
pattern = "acme_loader: license 0x[0-9a-f]+ has ended"
example = "RuntimeError: acme_loader: license 0x1f has ended"
anchor = ["acme_loader:"]
"""
LOG = "Traceback (most recent call last):\nRuntimeError: acme_loader: license 0x1f has ended\n"
GUIDE = (CHECKOUT / "docs/packs.md").read_text(encoding="utf-8")
PYPROJECT = GUIDE.partition("```toml\n")[2].partition("```")[0]


def write_pack(folder: Path) -> Folder:
    """Write a Python package with one target, job, fix and sources profile."""
    pack = Folder(folder)
    pack.write("__init__.py", "raise RuntimeError('rlbox runs no code of a pack')\n")
    pack.target("acme-h100", ON_IMAGE)
    pack.lock("acme-h100")
    pack.job("acme-train", JOB.replace('"mine"', '"acme-h100"'))
    pack.write("templates/fixes/acme-license.toml", FIX)
    pack.write("sources/acme.toml", (SHIPPED_PROFILES / "direct.toml").read_text())
    return pack


def install(site: Path, distribution: str, name: str, package: str) -> None:
    """Write the metadata of an installed distribution with one pack."""
    info = Folder(site / f"{distribution}-1.0.dist-info")
    info.write("METADATA", f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    info.write("entry_points.txt", f"[rlbox.packs]\n{name} = {package}\n")


@pytest.fixture(scope="module")
def index() -> dict[str, str]:
    """The environment of uv, read before a test has a home of its own."""
    return index_environment()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages on Python's path."""
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return tmp_path / "site"


@pytest.fixture
def pack(site: Path) -> Folder:
    """The installed pack `acme`."""
    install(site, "acme_rlbox", "acme", "acme_rlbox")
    return write_pack(site / "acme_rlbox")


@pytest.mark.usefixtures("pack", "unasked")
@pytest.mark.allow("processes")
def test_commands_see_targets_jobs_fixes_and_sources_of_a_pack(rlbox: Rlbox, folder: Folder) -> None:
    hold(UV_WHEEL)
    rows = {row["name"]: (row["source"], row["pack"]) for row in rlbox("targets", "--json").data["found"]}
    assert rows["acme-h100"] == rows["acme-train"] == ("pack", "acme")
    assert rows["smoke"] == ("shipped", None)
    assert "smallest target on an image [pack acme]\n" in rlbox("targets").out
    assert rlbox("show", "acme-h100").code == rlbox("show", "acme-train").code == 0
    assert rlbox("build", "acme-h100", "--dry-run", "--sources", "acme").code == 0
    assert "images/acme-h100/Dockerfile" in rlbox("render", "acme-h100", "--dry-run").out
    assert rlbox("run", "acme-train", "--dry-run").code == 0
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
    pack.job("smoke", JOB.replace('"mine"', '"acme-h100"'))
    assert rlbox("show", "smoke", "--json").data["job"]["title"] == "smallest job"
    folder.job("smoke", JOB.replace("smallest job", "own job"))
    assert rlbox("show", "smoke", "--json").data["job"]["title"] == "own job"


def test_pack_inside_the_project_folder_is_not_own(
    rlbox: Rlbox, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = folder.path / ".venv/site-packages"
    monkeypatch.syspath_prepend(str(site))
    install(site, "acme_rlbox", "acme", "acme_rlbox")
    write_pack(site / "acme_rlbox")
    rows = {row["name"]: row["source"] for row in rlbox("targets", "--json").data["found"]}
    assert (rows["acme-h100"], rows["smoke"]) == ("pack", "shipped")


def test_same_file_in_two_packs_is_one_error(rlbox: Rlbox, folder: Folder, site: Path, pack: Folder) -> None:
    install(site, "other", "other", "other")
    Folder(site / "other").job("acme-train")
    rlbox("show", "acme-train").check_error(2, "jobs/acme-train.toml is in two packs: other and acme", "next: ")
    folder.job("acme-train")
    assert rlbox("show", "acme-train").code == 0


def test_two_packs_of_one_name_are_one_error(rlbox: Rlbox, site: Path, pack: Folder) -> None:
    install(site, "other", "acme", "other")
    said = rlbox("targets")
    said.check_error(2, "two installed packages have a pack named acme", "acme_rlbox 1.0", "other 1.0")


@pytest.mark.parametrize("package", ["nowhere", "acme_rlbox.nowhere", "empty"])
def test_pack_without_folders_is_one_error(rlbox: Rlbox, site: Path, package: str) -> None:
    Folder(site / "empty").write("__init__.py", "")
    install(site, "acme_rlbox", "acme", package)
    rlbox("targets").check_error(2, f"pack acme: the Python package {package} has none of the folders images/, ")


def test_wrong_toml_of_a_pack_is_an_error_with_its_name(rlbox: Rlbox, pack: Folder) -> None:
    pack.target("acme-h100", "title = [")
    rlbox("show", "acme-h100").check_error(2, "pack acme: images/acme-h100/target.toml: broken TOML")
    pack.job("acme-train", "nothing = 1\n")
    rlbox("show", "acme-train").check_error(2, "pack acme: jobs/acme-train.toml: nothing: unknown key")
    pack.write("templates/fixes/acme-license.toml", "title = \n")
    rlbox("fixes").check_error(2, "pack acme: templates/fixes/acme-license.toml: broken TOML")


def test_helper_on_a_remote_host_gets_files_of_a_pack_below_those_of_the_project(folder: Folder, pack: Folder) -> None:
    folder.job("acme-train", "own = 1\n")
    project = Project(folder=folder.path, packs=find_installed_packs())
    helper = HelperContainerSpec(
        image="i", data_dir="/d", create_data_dir=True, rlbox_args=(), target="local", env={}, terminal=False
    )
    archive = io.BytesIO(create_helper_start_archive(project, helper, owner_uid=7, owner_gid=8))
    with tarfile.open(fileobj=archive) as tar:
        texts = {info.name: tar.extractfile(info).read() for info in tar if info.isfile()}  # type: ignore[union-attr]
    assert texts["rlbox-remote/project/images/acme-h100/target.toml"] == ON_IMAGE.encode()
    assert texts["rlbox-remote/project/jobs/acme-train.toml"] == b"own = 1\n"  # a later file of the archive wins
    assert "rlbox-remote/project/__init__.py" not in texts


@pytest.mark.slow
@pytest.mark.allow("processes")
def test_pack_is_installed_from_its_wheel_and_removed_again(tmp_path: Path, index: dict[str, str]) -> None:
    source = Folder(tmp_path / "source")
    source.write("pyproject.toml", PYPROJECT)
    write_pack(source.path / "acme_rlbox")
    wheels = [str(build_wheel(CHECKOUT, tmp_path / "rlbox")), str(build_wheel(source.path, tmp_path / "acme"))]
    run_uv(tmp_path, index, "venv", "--python", sys.executable, str(tmp_path / "venv"))
    run_uv(tmp_path, index, "pip", "install", *wheels)
    project = Folder(tmp_path / "project")
    project.write("train.log", LOG)
    env = {"PATH": os.defpath, "HOME": str(tmp_path), "COLUMNS": "80", "LANG": "C.UTF-8"}
    env |= {"DOCKER_HOST": f"unix://{tmp_path}/none.sock", "RLBOX_DATA": str(tmp_path)}

    def run(*words: str) -> tuple[int, str]:
        argv = [tmp_path / "venv/bin/rlbox", *words]
        done = subprocess.run(argv, cwd=project.path, env=env, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    commands = {
        ("targets",): (0, "[pack acme]"),
        ("show", "acme-h100"): (0, "# target acme-h100"),
        ("show", "acme-train"): (0, "# job acme-train"),
        ("run", "acme-train", "--dry-run"): (0, "acme-train"),
        ("fixes", "show", "acme-license"): (0, "acme-license renew"),
        ("fixes",): (0, "acme-license"),
        ("diagnose", "train.log"): (1, "acme-license renew"),
    }
    for words, (code, text) in commands.items():
        answer = run(*words)
        assert (answer[0], text in answer[1]) == (code, True), (words, answer)
    assert run("build", "acme-h100", "--dry-run")[0] in (0, 4)  # 4: this machine has no docker client
    run_uv(tmp_path, index, "pip", "uninstall", "acme-rlbox")
    assert "acme" not in run("targets")[1] + run("fixes")[1]
    assert "acme-license" not in run("diagnose", "train.log")[1]
    names = ("show", "acme-h100"), ("build", "acme-h100"), ("run", "acme-train"), ("fixes", "show", "acme-license")
    for words in names:
        assert run(*words)[0] == 2, words
