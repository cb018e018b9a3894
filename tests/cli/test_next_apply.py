"""What `rlbox apply`, and what stands on a place that it laid, advise is done: real places below a prefix."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from another_user import MAY_READ
from applybox import PYTHON, give
from fakes import CHECKOUT, Folder, Said
from following import Follow
from test_cli_apply import FIRST, prefix, store, words

from rlbox.app import own_requirements
from rlbox.artifacts.object_store import Store
from rlbox.fixes.catalogue import load_fixed_target
from rlbox.provision import base_probe as base
from rlbox.system.files import cache_path
from rlbox.target.lock import lock_checksum

pytestmark = pytest.mark.allow("processes")
__all__ = ["prefix", "store"]


@pytest.fixture
def ordinary(monkeypatch: pytest.MonkeyPatch, prefix: Path) -> None:
    """A user who is not root, whose places are in the cache folder."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("RLBOX_DATA", str(prefix.parent / "disk"))


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder in which everybody may write, below none that is root's alone."""
    with tempfile.TemporaryDirectory(prefix="rlbox-next-") as made:
        Path(made).chmod(0o777)
        yield Path(made)


def as_another(folder: Folder, *typed: str) -> Said:
    """Type a line as another user, who has a home of his own."""
    home = folder.path.parent / "home"
    home.mkdir(exist_ok=True, mode=0o777)
    home.chmod(0o777)
    env = {"HOME": str(home), "RLBOX_STORE": str(cache_path("store")), "PYTHONPATH": str(CHECKOUT)}
    env |= {"PATH": os.environ["PATH"], "RLBOX_PROJECT_NAME": "tests"}
    argv = [*MAY_READ, sys.executable, "-m", "rlbox", *typed]
    done = subprocess.run(argv, cwd=folder.path, env=env, capture_output=True, text=True, timeout=120)
    return Said(code=done.returncode, out=done.stdout, err=done.stderr)


def test_the_target_that_was_laid_is_removed(
    follow: Follow, folder: Folder, prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLBOX_DATA", str(prefix.parent / "disk"))
    folder.target("other", 'include = "small"\npatches = []\n')
    assert follow.rlbox(*words(prefix)).code == 0
    step = follow("apply", "other", "--prefix", str(prefix), "--remove")
    follow.types(step)
    assert not (prefix / "opt").exists()
    follow.again(step)


def test_a_folder_of_ones_own_is_named(follow: Follow, folder: Folder, prefix: Path, open_folder: Path) -> None:
    follow.rlbox = lambda *typed: as_another(folder, *typed)
    for where in ("", str(prefix)):
        step = follow(*words(prefix, "--prefix", where, "--data", str(open_folder), "--yes"))
        follow.again(step, *step.options({"DIR": str(open_folder / "place")}))


def test_a_disk_that_is_full_is_freed(follow: Follow, prefix: Path) -> None:
    prefix.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m,exec", "tmpfs", str(prefix)], check=True)
    try:
        assert follow.rlbox(*words(prefix)).code == 0
        (prefix / "opt/rlbox/libexec/entrypoint.sh").unlink()
        subprocess.run(["sh", "-c", f"cat /dev/zero > {prefix}/old 2>/dev/null"], check=False)
        step = follow(*words(prefix))
        (prefix / "old").unlink()
        follow.again(step)
    finally:
        subprocess.run(["umount", "-l", str(prefix)], check=True)


def test_another_interpreter_is_named(follow: Follow, folder: Folder, store: Store, prefix: Path) -> None:
    lock = give(folder.path, store, FIRST)
    spec = folder.path / "images/small/target.toml"
    spec.write_text(spec.read_text().replace("[python]\n", '[python]\ninterpreter = "/nowhere/python3"\n'))
    target, path = load_fixed_target(folder.project, "small").target, folder.path / "images/small/lock.json"
    path.write_text(replace(lock, spec=lock_checksum(target, own_requirements())).text())
    step = follow(*words(prefix, "--check"))
    follow.again(step, *step.options({"FILE": sys.executable}), code=1)


def test_python_is_installed(follow: Follow, prefix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine whose system has another one."""
    bare, python = tmp_path / "bin", Path(sys.base_prefix, f"bin/python{PYTHON}")
    bare.mkdir()
    for path in Path("/usr/bin").iterdir():
        if not path.name.startswith(("python", "pypy")):
            (bare / path.name).symlink_to(path)
    monkeypatch.setenv("PATH", str(bare))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    probe = base.probe_python
    system = replace(probe(str(python)), version="3.2")
    monkeypatch.setattr(base, "probe_python", lambda path: system if path == "/usr/bin/python3" else probe(path))
    step = follow(*words(prefix))
    follow.again(step, *step.options({"FILE": str(python)}), "--dry-run")
    (version,) = re.findall(r"install Python ([0-9.]+),", step.text)
    (bare / f"python{version}").symlink_to(python)
    follow.again(step)


@pytest.mark.usefixtures("ordinary")
def test_a_target_that_was_not_applied_is(follow: Follow, prefix: Path) -> None:
    step = follow("components", "small", "--place", "here")
    follow.changed(step, [*step.commands({})[0], "--offline"], 0)
    follow.again(step)


@pytest.mark.usefixtures("ordinary")
def test_what_was_fetched_is_applied(follow: Follow, prefix: Path) -> None:
    follow.types(follow("fetch", "small", "--place", "here"))


def test_the_target_of_a_place_is_examined(follow: Follow, prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert follow.rlbox(*words(prefix)).code == 0
    monkeypatch.setenv("RLBOX_PLACE", f"{prefix}/opt/rlbox")
    step = follow("doctor", "local")
    assert "was applied here" in step.said.err
    follow.types(step)
