"""Where the engine is, what it answers, what is said when it does not."""

from __future__ import annotations

import errno
import hashlib
import socket
from pathlib import Path

import pytest
from fakes import EngineSocket

from rlbox.engine.address import find_engine_url, resolve_engine_address_opening_tunnel
from rlbox.engine.connection import find_image
from rlbox.errors import EngineError

IMAGE = {"Id": "sha256:1", "Config": {"Labels": {"rlbox.build": "d"}}}


def context(folder: Path, name: str, text: str) -> Path:
    path = folder / "contexts/meta" / hashlib.sha256(name.encode()).hexdigest() / "meta.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_engine_address_opening_tunnel() == "unix:///var/run/docker.sock"
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert resolve_engine_address_opening_tunnel() == "unix:///var/run/docker.sock"
    (tmp_path / "config.json").write_text('{"currentContext": "far"}')
    context(tmp_path, "far", '{"Endpoints": {"docker": {"Host": "ssh://far"}}}')
    assert find_engine_url() == "ssh://far"
    context(tmp_path, "near", '{"Endpoints": {"docker": {"Host": "unix:///near"}}}')
    monkeypatch.setenv("DOCKER_CONTEXT", "near")
    assert resolve_engine_address_opening_tunnel() == "unix:///near"
    monkeypatch.setenv("DOCKER_CONTEXT", "default")
    assert resolve_engine_address_opening_tunnel() == "unix:///var/run/docker.sock"
    monkeypatch.setenv("DOCKER_HOST", "tcp://h:1")
    assert resolve_engine_address_opening_tunnel() == "tcp://h:1"


@pytest.mark.parametrize("text", [None, "", "{}", '{"Endpoints": {}}'])
def test_a_context_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONTEXT", "far")
    path = context(tmp_path, "far", text or "")
    if text is None:
        path.unlink()
    with pytest.raises(EngineError) as caught:
        resolve_engine_address_opening_tunnel()
    assert str(caught.value) == f"docker context 'far' cannot be read\n  where: {path}\n  next:  docker context ls"


def test_a_config_that_is_torn_names_no_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    assert resolve_engine_address_opening_tunnel() == "unix:///var/run/docker.sock"


@pytest.mark.allow("sockets")
def test_images(engine: EngineSocket) -> None:
    engine.images["rlbox/mine:latest"] = IMAGE
    engine.answers["/images/odd/json"] = (500, b'{"message": "disk full"}')
    engine.answers["/images/html/json"] = (200, b"<html>")
    assert find_image("rlbox/mine:latest") == IMAGE
    assert find_image("none") is None
    with pytest.raises(EngineError) as odd:
        find_image("odd")
    assert str(odd.value) == (f"""the engine refused: disk full\n  where: {engine.address}""")
    with pytest.raises(EngineError) as page:
        find_image("html")
    assert str(page.value) == f"this is not a Docker engine: it answered '<html>'\n  where: {engine.address}"


@pytest.mark.parametrize(
    ("error", "what", "step"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file"), "cannot connect to Docker", "rlbox engine up"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), "cannot connect to Docker", "rlbox engine up"),
        (TimeoutError("timed out"), "cannot connect to Docker", "rlbox engine up"),
        (
            PermissionError(errno.EACCES, "Permission denied"),
            "this user has no permission to use Docker",
            "sudo usermod",
        ),
    ],
    ids=["absent", "refused", "silent", "not permitted"],
)
@pytest.mark.allow("sockets")
def test_an_engine_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, error: OSError, what: str, step: str) -> None:
    def refuse(self: socket.socket, address: object) -> None:
        raise error

    monkeypatch.setattr(socket.socket, "connect", refuse)
    with pytest.raises(EngineError) as caught:
        find_image("x")
    assert caught.value.what.startswith(what)
    assert (caught.value.where, caught.value.exit_code) == ("unix:///var/run/docker.sock", 4)
    assert caught.value.next_step.startswith(step)
