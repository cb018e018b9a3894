"""The hook of Ray's token: with several nodes the head makes the one that the others get a copy of."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from fakes import CHECKOUT

from rlbox.config.project import Project
from rlbox.fixes.catalogue import load_fix_catalogue
from rlbox.fixes.render import render_fixes_or_raise_refusal
from rlbox.target.target import load_target

SHIPPED = Project(folder=CHECKOUT)


def modes(disk: Path, target: str, **environment: str) -> str:
    """Return the variables of Ray's token after the hook."""
    fixes = tuple(fix for fix in load_fix_catalogue(SHIPPED) if fix.id == "ray-token")
    spec = load_target(SHIPPED, target).target
    (text,) = (
        file.text
        for file in render_fixes_or_raise_refusal(fixes, spec, {"ray": "2.55.0"}).files
        if "/hooks/" in file.path
    )
    show = '. "$0"; echo "${RAY_AUTH_MODE:-} ${RAY_AUTH_TOKEN:-} ${RAY_AUTH_TOKEN_PATH:-}"'
    hook = disk.parent / "hook.sh"
    hook.write_text(text.replace(spec.disk.mount, str(disk)))
    env = {"PATH": "/usr/bin:/bin", **environment}
    argv = ["sh", "-eu", "-c", show, str(hook)]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


@pytest.mark.allow("processes")
def test_several_nodes_share_the_token_of_the_disk(disk: Path) -> None:
    file = disk / "ray/auth_token"
    assert modes(disk, "cluster-2node") == f"token  {file}"
    token = file.read_text()
    assert (len(token), file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (64, 0o600, 0o700)
    assert modes(disk, "cluster-2node") == f"token  {file}"
    assert file.read_text() == token


@pytest.mark.allow("processes")
@pytest.mark.parametrize("given", [{"RAY_AUTH_TOKEN": "mine"}, {"RAY_AUTH_MODE": "disabled"}])
def test_a_given_token_or_mode_stays(disk: Path, given: dict[str, str]) -> None:
    modes(disk, "cluster-2node", **given)
    assert list(disk.iterdir()) == []


@pytest.mark.allow("processes")
def test_a_planted_link_gets_nothing(disk: Path) -> None:
    (disk.parent / "elsewhere").mkdir()
    (disk / "ray").symlink_to(disk.parent / "elsewhere")
    assert modes(disk, "cluster-2node") == ""
    assert list((disk.parent / "elsewhere").iterdir()) == []


@pytest.mark.allow("processes")
def test_one_node_has_a_token_for_one_start(disk: Path) -> None:
    first, second = modes(disk, "vast-5090"), modes(disk, "vast-5090")
    assert first.startswith("token ")
    assert first != second
    assert list(disk.iterdir()) == []
