"""The proof of `rlbox egress`: a build in a network that has the listed hosts alone passes, and needs each of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from enginebox import TINY, Box, Result
from netbox import NetBox, netbox

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Box:
    """A project with the locked target `tiny`; nothing of it has been fetched or built."""
    folder = tmp_path_factory.mktemp("egress")
    (folder / "images/tiny").mkdir(parents=True)
    (folder / "images/tiny/target.toml").write_text(TINY)
    box = Box(project=folder, data=tmp_path_factory.mktemp("disk"))
    result = box("lock", "tiny")
    assert result.code == 0, result.err
    return box


@pytest.fixture(scope="module")
def declared(project: Box) -> list[str]:
    """The hosts that `rlbox egress` lists for getting files and building."""
    result = project("egress", "tiny", "--json")
    assert result.code == 0, result.err
    hosts = result.data["hosts"]
    return sorted({*hosts["lock"], *hosts["fetch"], *hosts["build"]})


@pytest.fixture
def network(declared: list[str]) -> Iterator[NetBox]:
    """A network with the declared hosts, and an engine that has nothing yet."""
    if os.geteuid() or not all(map(shutil.which, ("ip", "nsenter", "unshare"))):
        pytest.skip("network namespaces need root, iproute2 and util-linux")
    with netbox(declared) as box:
        yield box


def inside(network: NetBox, project: Box, tmp_path: Path, *words: str) -> Result:
    """Run rlbox in the network, with caches of its own: everything is fetched anew."""
    done = subprocess.run(
        network.wrap(project.argv(*words)),
        cwd=project.project,
        env=project.env(
            DOCKER_HOST=network.engine, XDG_CACHE_HOME=str(tmp_path / "cache"), XDG_DATA_HOME=str(tmp_path / "data")
        ),
        capture_output=True,
        text=True,
        timeout=600,
    )
    return Result(code=done.returncode, out=done.stdout, err=done.stderr)


def test_the_declared_hosts_are_enough(network: NetBox, project: Box, declared: list[str], tmp_path: Path) -> None:
    locked = inside(network, project, tmp_path, "lock", "tiny", "--check")
    assert locked.code == 0, locked.err
    built = inside(network, project, tmp_path, "build", "tiny")
    assert built.code == 0, built.err
    assert network.refused == []
    assert network.reached == set(declared)


def test_an_undeclared_host_fails_the_build_with_the_rule_to_add(
    network: NetBox, project: Box, declared: list[str], tmp_path: Path
) -> None:
    """Take away, one after the other, each host; the build names it."""
    for host in declared:
        network.declared = {*declared} - {host}
        network.refused.clear()
        failed = inside(network, project, tmp_path, "build", "tiny", "--no-cache")
        assert failed.code == 1, failed.err
        assert network.refused == [host]
        assert f"{host} is not reached from here" in failed.err
        assert f'sources/direct.toml:\n           [[egress]]\n           host = "{host}"\n' in failed.err
