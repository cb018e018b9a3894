"""`rlbox apply` of a target on a framework's image: what the machine brings is adopted once proven, or refused."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from applybox import PYTHON, give, hold, lay_package
from fakes import Folder, Rlbox, Said

from rlbox.artifacts.object_store import ObjectStore
from rlbox.system.files import cache_path

pytestmark = pytest.mark.allow("processes")

TORCH = "__version__ = '2.9.1+cu129'\n"


class Foreign:
    """An environment that somebody else made, as micromamba or conda do, with packages written into it."""

    def __init__(self, root: Path) -> None:
        venv.create(root, symlinks=True)
        self.python = root / "bin/python"
        self.site = root / f"lib/python{PYTHON}/site-packages"

    def lay(self, name: str, version: str, text: str, *, editable: bool = False) -> None:
        """Put a package in the place of what there is of it; an editable one lies elsewhere, behind a `.pth`."""
        lay_package(self.site, name, version, text)
        if editable:
            module, place = name.replace("-", "_"), self.site.parents[3] / "src"
            place.mkdir(exist_ok=True)
            (self.site / module).rename(place / module)
            (self.site / f"__editable__.{module}.pth").write_text(f"{place}\n")
            (self.site / f"{module}-{version}.dist-info/top_level.txt").unlink()


@pytest.fixture
def foreign(tmp_path: Path) -> Foreign:
    """One that has all that the target takes of its base image."""
    made = Foreign(tmp_path / "envs/slime")
    made.lay("torch", "2.9.1+cu129", TORCH)
    made.lay("flash-attn", "2.8.1", "import torch\nwhere = __file__\n", editable=True)
    (made.site / "nvidia/cu12/lib").mkdir(parents=True)
    return made


@pytest.fixture
def prefix(folder: Folder, tmp_path: Path) -> Path:
    """Where the target is applied; it, its lock and the data disk are there."""
    (tmp_path / "disk").mkdir()
    store = ObjectStore(cache_path("store"))
    hold(folder.path, give(folder.path, store, {"alpha": "1.0"}, patched=False))
    return tmp_path / "place"


Apply = Callable[..., Said]


@pytest.fixture
def apply(rlbox: Rlbox, prefix: Path) -> Apply:
    def apply(*more: object) -> Said:
        words = ("--offline", "--prefix", str(prefix), "--data", str(prefix.parent / "disk"))
        return rlbox("apply", "held", *words, *map(str, more))

    return apply


def asked(prefix: Path, script: str) -> str:
    """What the environment of the place prints."""
    argv = ["sh", f"{prefix}/opt/rlbox/libexec/entrypoint.sh", "python", "-c", script]
    plain = {"PATH": "/usr/bin:/bin", "HOME": str(prefix.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(argv, env=plain, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_proven_is_adopted_and_a_second_call_changes_nothing(
    apply: Apply, foreign: Foreign, prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"PYTHONPATH": "/nowhere", "PYTHONHOME": "", "VIRTUAL_ENV": "/nowhere"}.items():
        monkeypatch.setenv(name, text) if text else monkeypatch.delenv(name, raising=False)
    before = {path: path.lstat().st_mtime_ns for path in foreign.site.parents[2].rglob("*")}
    first = apply("--python", foreign.python, "--json")
    assert first.code == 0, first.err
    assert f"importing 2 packages of {foreign.python}" in first.err
    told = asked(
        prefix, "import alpha, torch, flash_attn; print(alpha.__version__, torch.__version__, flash_attn.where)"
    )
    assert told.startswith(f"1.0 2.9.1+cu129 {foreign.site.parents[3]}/src/")
    site = prefix / f"opt/venv/lib/python{PYTHON}/site-packages"
    assert (site / "nvidia").readlink() == foreign.site / "nvidia"
    laid = {path: path.lstat().st_mtime_ns for path in prefix.rglob("*")}
    second = apply("--json")  # what was said of the interpreter is remembered
    assert (second.code, second.data["state"], second.data["steps"]) == (0, "unchanged", [])
    assert {path: path.lstat().st_mtime_ns for path in prefix.rglob("*")} == laid
    assert apply("--check").code == 0
    assert {path: path.lstat().st_mtime_ns for path in foreign.site.parents[2].rglob("*")} == before
    foreign.lay("torch", "2.10.0", TORCH)  # somebody upgrades it
    later = apply("--check")
    assert (later.code, "torch is 2.10.0, and 2.9.1+cu129 is wanted" in later.err) == (5, True)


@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--check",)])
def test_what_is_not_here_is_refused_and_named(apply: Apply, prefix: Path, more: tuple[str, ...]) -> None:
    said = apply("--python", sys.executable, *more)
    assert said.code == 5
    assert "takes of its base image: 2 of 2 packages are missing (torch 2.9.1+cu129, flash-attn 2.8.1)" in said.err
    assert f"where: {sys.executable} (Python {PYTHON})" in said.err
    assert f"rlbox apply held --prefix {prefix} --python FILE" in said.err
    assert not prefix.exists()


@pytest.mark.slow
def test_another_patch_version_is_told_and_taken_only_when_that_is_said(
    apply: Apply, foreign: Foreign, prefix: Path
) -> None:
    foreign.lay("torch", "2.9.2+cu129", TORCH)
    said = apply("--python", foreign.python)
    assert said.code == 5
    assert "base image: torch is 2.9.2+cu129, and 2.9.1+cu129 is wanted" in said.err
    told = f"rlbox apply held --prefix {prefix} --python {foreign.python} --accept torch==2.9.2+cu129"
    assert told in said.err
    assert not prefix.exists()
    assert apply("--python", foreign.python, "--accept", "torch==2.9.3").code == 5
    said = apply("--python", foreign.python, "--accept", "Torch==2.9.2+cu129", "--json")
    assert (said.code, said.data["state"]) == (0, "applied"), said.err
    assert apply("--json").data["state"] == "unchanged"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("raise ImportError('undefined symbol: _ZN3c10')\n", "flash-attn: ImportError: undefined symbol: _ZN3c10"),
        ("import os\nos._exit(139)\n", "flash-attn: its import ended the interpreter"),
    ],
)
def test_what_cannot_be_imported_is_not_adopted(
    apply: Apply, foreign: Foreign, prefix: Path, text: str, says: str
) -> None:
    foreign.lay("flash-attn", "2.8.1", text)
    (foreign.site / "__editable__.flash_attn.pth").unlink()
    said = apply("--python", foreign.python)
    assert said.code == 5
    assert f"base image on this machine do not work: {says}" in said.err
    assert not (prefix / "opt").exists()


def test_what_wants_the_driver_is_said_to_be_untested(apply: Apply, foreign: Foreign) -> None:
    foreign.lay("flash-attn", "2.8.1", "raise ImportError('libcuda.so.1: cannot open shared object file')\n")
    (foreign.site / "__editable__.flash_attn.pth").unlink()
    said = apply("--python", foreign.python)
    assert said.code == 0, said.err
    assert "flash-attn is not proven: it wants the GPU driver, which is not here" in said.err


def test_an_interpreter_that_is_none(apply: Apply, prefix: Path, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'bash: nothing here' >&2\n")
    program.chmod(0o755)
    said = apply("--python", program)
    assert (said.code, "no interpreter that answers: bash: nothing here" in said.err) == (5, True)
    assert apply("--python", "no-such-python").code == 2
    assert apply("--python", sys.executable, "--accept", "torch").code == 2
    assert not prefix.exists()
