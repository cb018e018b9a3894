"""A patch whose diff lies in a git part of the image: slime's own changes to Megatron."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from fakes import CHECKOUT, Folder, load_cases

from rlbox.config.project import Project
from rlbox.errors import SpecError
from rlbox.fixes.patches import render_patch_manifest_json, resolve_patches_with_skipped
from rlbox.system.command import run_command
from rlbox.target.target import load_target
from rlbox.values import Command, Outcome

CASES = load_cases("fixes", "test_patch_of_part")
DIFF = "--- a/core/x.py\n+++ b/core/x.py\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
SPEC = CASES["SPEC"]


def apply(tmp_path: Path, diff: str | None) -> tuple[Outcome, Path]:
    """Apply a manifest as the build step does, over layers as BuildKit mounts them."""
    parts, out = tmp_path / "in/rlbox.parts", tmp_path / "out"
    mine, slime = parts / "mine/opt/megatron/core", parts / "slime/opt/slime/docker/patch"
    for folder in (mine, slime, out):
        folder.mkdir(parents=True)
    (mine / "x.py").write_text("one\ntwo\nthree\n")
    if diff is not None:
        (slime / "x.patch").write_text(diff)
    project = Folder(tmp_path / "project")
    project.target("mine", SPEC.replace("PART", "slime"))
    target = load_target(project.project, "mine").target
    manifest = tmp_path / "manifest.json"
    layers = ("rlbox.parts/mine", "rlbox.parts/slime")
    manifest.write_text(render_patch_manifest_json("mine", resolve_patches_with_skipped((), target, {}, {}), layers))
    words = ("--layers", str(tmp_path / "in"), "--out", str(out), str(manifest))
    script = str(CHECKOUT / "templates/scripts/apply_patches.py")
    return run_command(Command(argv=(sys.executable, script, *words), timeout_s=30)), out


@pytest.mark.allow("processes")
def test_the_diff_of_a_part_is_applied(tmp_path: Path) -> None:
    done, out = apply(tmp_path, DIFF)
    assert done.stdout == "docker/patch/x.patch: opt/megatron/core/x.py: applied, 1 hunk\n"
    assert (out / "opt/megatron/core/x.py").read_text() == "one\n2\nthree\n"


@pytest.mark.allow("processes")
def test_a_part_without_the_diff_ends_the_build(tmp_path: Path) -> None:
    done, _ = apply(tmp_path, None)
    assert done.exit_code == 1
    assert "there is no diff /opt/slime/docker/patch/x.patch" in done.stdout + done.stderr


def test_it_is_pinned_with_its_part() -> None:
    target = load_target(Project(folder=CHECKOUT), "a800-cn").target
    assert [patch.part for patch in target.patches] == ["slime"]
    assert target.patches_folder_file_names == ()
    (row,) = resolve_patches_with_skipped((), target, {}, {})
    assert (row.diff, row.diff_file_in_image) == ("", "/opt/slime/docker/patch/v0.5.15.post1/megatron.patch")
    assert json.loads(render_patch_manifest_json("t", [row]))["patches"][0]["diff_from"] == row.diff_file_in_image


@pytest.mark.parametrize(("part", "says"), [("nowhere", "there is no git part 'nowhere'"), ("", "set part")])
def test_what_is_refused(folder: Folder, part: str, says: str) -> None:
    folder.target("mine", SPEC.replace("PART", part))
    with pytest.raises(SpecError, match=says):
        load_target(folder.project, "mine")
