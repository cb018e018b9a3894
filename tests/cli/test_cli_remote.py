"""A verb about runs whose engine is reached over SSH; the way there and back is a slow engine test."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import CASES

from rlbox.cli import main
from rlbox.config.packs import Pack
from rlbox.config.project import Project
from rlbox.engine.address import find_engine_url, is_engine_on_unix_socket
from rlbox.engine.remote_helper import HelperContainerSpec, create_helper_start_archive
from rlbox.errors import EngineError
from rlbox.ssh.tunnel import open_engine_tunnel

pytestmark = pytest.mark.allow("processes", "sockets")


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program `ssh` that a test writes; it stands first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("DOCKER_HOST", "ssh://me@far:2222")
    open_engine_tunnel.cache_clear()
    return folder / "ssh"


def write(program: Path, text: str) -> None:
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)


def test_the_tunnel_knows_the_other_side(ssh: Path) -> None:
    facts = "1000\\n1001\\n998\\n/srv/me\\n/srv/me/s\\n"
    answers = f'*" -M "*) echo ready; exec cat >/dev/null ;; *" -O "*) ;; *) printf "{facts}" ;;'
    write(ssh, f'echo "$*" >>{ssh.parent}/words; case "$*" in {answers} esac')
    found = open_engine_tunnel("ssh://me@far:2222")
    assert (
        found.remote_uid,
        found.remote_gid,
        found.remote_socket_gid,
        found.remote_home,
        found.remote_state_directory,
    ) == (
        1000,
        1001,
        998,
        "/srv/me",
        "/srv/me/s",
    )
    words = (ssh.parent / "words").read_text().split()
    assert {"BatchMode=yes", "StreamLocalBindMask=0177", "me@far", "2222"} <= set(words)
    assert words[words.index("-L") + 1].endswith(":/var/run/docker.sock")


MASTER = 'case "$*" in *" -M "*) echo ready; exec cat >/dev/null ;; *" -O "*) exit 0 ;; esac'


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("echo 'me@far: Permission denied.' >&2; exit 255", "ssh to me@far failed: me@far: Permission denied."),
        (f"{MASTER}; echo 'no file' >&2; exit 1", "the engine's socket is not found: no file"),
        ("exit 1", "ssh to me@far failed: ssh ended without output"),
    ],
)
def test_no_way_there(ssh: Path, text: str, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    write(ssh, text)
    assert main(["runs"]) == EngineError.exit_code
    assert (
        f"error: the engine cannot be reached over ssh: {what}\n  where: ssh://me@far:2222" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("url", "reason"), [("ssh://far:abc", "Port"), ("ssh://", "names no host"), ("ssh://me@:22", "names no host")]
)
def test_engine_at_malformed_ssh_url_is_one_error(
    url: str, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", url)
    assert main(["runs"]) == EngineError.exit_code
    error = capsys.readouterr().err
    assert (reason in error, f"where: {url}" in error, "DOCKER_HOST=ssh://USER@HOST" in error) == (True, True, True)


def test_an_engine_elsewhere_without_ssh_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://far:2375")
    assert (find_engine_url(), is_engine_on_unix_socket()) == ("tcp://far:2375", False)
    assert main(["runs"]) == EngineError.exit_code
    assert "DOCKER_HOST=ssh://USER@HOST" in capsys.readouterr().err


def test_what_is_sent_is_the_users_over_there(tmp_path: Path) -> None:
    import io
    import json
    import tarfile

    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "mine.toml").write_text("x")
    own = {"A": "planted"}
    pack = Pack(name="acme", folder=CASES / "packs/acme_rlbox")
    (tmp_path / "jobs" / "acme-train.toml").write_text("x")
    helper = HelperContainerSpec(
        image="i", data_dir="/d", create_data_dir=True, rlbox_args=("runs",), target="local", env=own, terminal=False
    )
    project = Project(folder=tmp_path, packs=(pack,))
    archive = create_helper_start_archive(project, helper, owner_uid=7, owner_gid=8)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = {info.name: info for info in tar}
        start = json.loads(tar.extractfile("rlbox-remote/start.json").read())  # type: ignore[union-attr]
    assert {(info.uid, info.gid) for info in members.values()} == {(7, 8)}
    assert members["rlbox-remote/start.json"].mode == 0o600
    assert {"rlbox-remote/lib/rlbox/cli/__init__.py", "rlbox-remote/lib/jobs/smoke.toml"} <= set(members)
    assert "rlbox-remote/project/jobs/mine.toml" in members
    assert "rlbox-remote/project/templates/fixes/acme-license.toml" in members
    assert members["rlbox-remote/project/jobs/acme-train.toml"].size == 1  # the last one counts: that of the project
    assert start["words"] == ["runs"]
    assert start["env"]["A"] == "planted"
    assert not any("__pycache__" in name for name in members)
