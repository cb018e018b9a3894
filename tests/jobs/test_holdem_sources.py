"""slime's patch over Megatron: laid over a copy, found where it is already, refused where it does not belong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from holdem.sources import ADAM, SourcesError, mend_adam, patch_megatron

JOBS = Path(__file__).parents[2] / "jobs"
PATCH = """\
diff --git a/megatron/core/a.py b/megatron/core/a.py
--- a/megatron/core/a.py
+++ b/megatron/core/a.py
@@ -1,3 +1,3 @@
 one = 1
-two = 2
+two = 22
 three = 3
"""


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    megatron, patch = tmp_path / "megatron-lm", tmp_path / "slime/docker/patch/latest/megatron.patch"
    (megatron / "megatron/core").mkdir(parents=True)
    (megatron / "megatron/core/a.py").write_text("one = 1\ntwo = 2\nthree = 3\n")
    patch.parent.mkdir(parents=True)
    patch.write_text(PATCH)
    patch.with_name("sglang.patch").write_text(PATCH)
    return megatron, patch


def test_the_copy_gets_the_patch_and_the_tree_stays(trees: tuple[Path, Path], tmp_path: Path) -> None:
    megatron, patch = trees
    subprocess.run(("git", "init", "-q", tmp_path), check=True)  # as on a disk that lies in a repository
    for _ in range(2):
        assert patch_megatron(megatron, patch, tmp_path / "out") == f"slime's patch is in {tmp_path}/out/megatron"
        assert "two = 22" in (tmp_path / "out/megatron/core/a.py").read_text()
    assert "two = 2\n" in (megatron / "megatron/core/a.py").read_text()


def test_a_tree_that_has_it_is_used_as_it_is(trees: tuple[Path, Path], tmp_path: Path) -> None:
    megatron, patch = trees
    (megatron / "megatron/core/a.py").write_text("one = 1\ntwo = 22\nthree = 3\n")
    assert patch_megatron(megatron, patch, tmp_path / "out") == f"{megatron} has slime's patch"
    assert list((tmp_path / "out").iterdir()) == []


def test_another_megatron_is_refused(trees: tuple[Path, Path], tmp_path: Path) -> None:
    megatron, patch = trees
    (megatron / "megatron/core/a.py").write_text("one = 1\n")
    with pytest.raises(SourcesError, match=r"does not fit .*MEGATRON_COMMIT"):
        patch_megatron(megatron, patch, tmp_path / "out")
    patch.unlink()
    with pytest.raises(SourcesError, match="must name slime's whole tree"):
        patch_megatron(megatron, patch, tmp_path / "out")


def test_the_program_says_what_it_did(trees: tuple[Path, Path], tmp_path: Path) -> None:
    megatron, _ = trees
    argv = (sys.executable, "-m", "holdem.sources", "--slime", tmp_path / "slime", "--megatron", megatron)
    environment = {**os.environ, "PYTHONPATH": str(JOBS)}
    ended = subprocess.run(
        (*argv, "--out", tmp_path / "out"), capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert ended.stdout.splitlines() == [
        f"[holdem][sources] slime's patch is in {tmp_path}/out/megatron",
        f"[holdem][sources] torch_adam.patch does not fit {tmp_path}/out: no resume with the optimizer's state",
        "[holdem][sources] SGLang is not installed",
        "[holdem][sources] passed",
    ], ended.stderr


def lay_optimizer(megatron: Path) -> Path:
    """Write the lines that the patch is for, at other places, and return their file."""
    hunks = [hunk.split("\n", 1)[1] for hunk in ADAM.read_text().split("\n@@ ")[1:]]
    before = ["".join(f"{line[1:]}\n" for line in hunk.splitlines() if line[:1] in " -") for hunk in hunks]
    path = megatron / "megatron/core/optimizer/distrib_optimizer.py"
    path.parent.mkdir(parents=True)
    path.write_text("# elsewhere\n" * 3 + "\n".join(f"{'#' * 40}\n{text}" for text in before))
    return path


@pytest.mark.parametrize("own", [False, True])
def test_what_torchs_adam_saved_can_be_loaded(trees: tuple[Path, Path], tmp_path: Path, own: bool) -> None:
    megatron, patch = trees
    path = lay_optimizer(megatron)
    if own:  # the tree has slime's patch: no copy was made for it
        (megatron / "megatron/core/a.py").write_text("one = 1\ntwo = 22\nthree = 3\n")
    said, before = f"{tmp_path}/out/megatron loads what torch's AdamW saved", path.read_text()
    for _ in range(2):
        patch_megatron(megatron, patch, tmp_path / "out")
        assert mend_adam(megatron, tmp_path / "out") == said
    assert mend_adam(megatron, tmp_path / "out") == said.replace("/megatron ", " ")  # it has it
    text = (tmp_path / "out" / path.relative_to(megatron)).read_text()
    assert [words in text for words in ("or [0.0]", "step.clone()", "& tensors.keys()")] == [True] * 3
    assert path.read_text() == before


def test_an_adam_of_another_library_is_left_alone(
    trees: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdem.sources.find_spec", lambda name: name == "apex" or None)
    lay_optimizer(trees[0])
    assert mend_adam(trees[0], tmp_path / "out") == "Adam is Transformer Engine's or Apex's"
    assert not (tmp_path / "out").exists()
