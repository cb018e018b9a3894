"""The proof of `rlbox egress`: a build in a network that has the listed hosts alone passes, and needs each of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
def listed(project: Box) -> dict[str, Any]:
    """What `rlbox egress` says."""
    result = project("egress", "tiny", "--json")
    assert result.code == 0, result.err
    return result.data


@pytest.fixture(scope="module")
def declared(listed: dict[str, Any]) -> list[str]:
    """The hosts that are listed for locking, fetching and building."""
    hosts = listed["hosts"]
    return sorted({*hosts["lock"], *hosts["fetch"], *hosts["build"]})


@pytest.fixture(scope="module")
def network(declared: list[str]) -> Iterator[NetBox]:
    """A network with the declared hosts, and an engine that has nothing yet."""
    if os.geteuid() or not all(map(shutil.which, ("ip", "nsenter", "unshare"))):
        pytest.skip("network namespaces need root, iproute2 and util-linux")
    with netbox(declared) as box:
        yield box


@pytest.fixture(scope="module")
def inside(network: NetBox, project: Box, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Result]:
    """Run rlbox in the network, with caches of the tests' own or of one command's."""
    shared = tmp_path_factory.mktemp("cache")

    def run(*words: str, cache: Path = shared) -> Result:
        folders = {f"XDG_{name}_HOME": str(cache / name.lower()) for name in ("CACHE", "DATA")}
        env = project.env(DOCKER_HOST=network.engine, **folders)
        done = subprocess.run(
            network.wrap(project.argv(*words)),
            cwd=project.project,
            env=env,
            capture_output=True,
            text=True,
            timeout=600,
        )
        return Result(code=done.returncode, out=done.stdout, err=done.stderr)

    return run


def hosts_of(listed: dict[str, Any], kind: str) -> list[str]:
    return [one["host"] for one in listed["contacts"] if one["kind"] == kind]


def check_refusal(network: NetBox, failed: Result, host: str) -> None:
    assert failed.code == 1, failed.err
    assert network.refused == [host]
    assert host in failed.err


def test_an_undeclared_archive_fails_the_build(
    network: NetBox, inside: Callable[..., Result], listed: dict[str, Any], declared: list[str], tmp_path: Path
) -> None:
    for host in hosts_of(listed, "apt"):
        network.forget(declared, host)
        check_refusal(network, inside("build", "tiny", cache=tmp_path), host)


def test_the_declared_hosts_are_enough(
    network: NetBox, inside: Callable[..., Result], listed: dict[str, Any], declared: list[str]
) -> None:
    network.forget(declared)
    locked = inside("lock", "tiny", "--check")
    assert locked.code == 0, locked.err
    built = inside("build", "tiny")
    assert built.code == 0, built.err
    assert network.refused == []
    assert network.reached == set(declared)


def test_an_undeclared_host_in_a_step_fails_the_build(
    network: NetBox, inside: Callable[..., Result], listed: dict[str, Any], declared: list[str]
) -> None:
    """Take away, one after the other, what the Python packages come from; a step asks, and the build names it."""
    for host in hosts_of(listed, "python"):
        network.forget(declared, host)
        prune = ["docker", "--host", network.engine, "builder", "prune", "--all", "--force"]
        subprocess.run(prune, check=True, capture_output=True, timeout=120)
        check_refusal(network, inside("build", "tiny", "--no-cache"), host)
