"""The registry client against a real server on loopback: logins, failures that pass and that do not, wrong bytes."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mirrorbox import artifact
from registry_server import PASSWORD, USER, Fault, RegistryServer, create_image_manifest, log_in, running

from rlbox.artifacts.base_image import resume_and_verify_blob_download
from rlbox.artifacts.object_store import ObjectStore
from rlbox.engine.oci import MANIFEST_TYPE, Descriptor, create_descriptor, parse_manifest
from rlbox.engine.registry_auth import read_docker_login
from rlbox.engine.registry_client import Registry
from rlbox.errors import RegistryError

pytestmark = pytest.mark.allow("sockets", "processes")
BLOB = bytes(range(256)) * 5000


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with running() as server:
        yield server


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def registry(server: RegistryServer, pauses: list[float]) -> Iterator[Registry]:
    with Registry(server.host, pause=pauses.append) as registry:
        yield registry


def logged_in(host: str, folder: Path, monkeypatch: pytest.MonkeyPatch, password: str = PASSWORD) -> None:
    log_in(host, folder, password)
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))


def blob_of(data: bytes = BLOB) -> Descriptor:
    return create_descriptor(data, "application/octet-stream")


def refused(error: pytest.ExceptionInfo[RegistryError]) -> tuple[str, str]:
    assert error.value.exit_code == 6
    return error.value.what, error.value.next_step


# ---- logins -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["basic", "bearer"])
def test_a_login_comes_from_dockers_configuration(
    kind: str, server: RegistryServer, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    caplog.set_level(logging.DEBUG)
    server.auth = kind
    server.add_manifest("1", create_image_manifest(blob_of(), []), MANIFEST_TYPE)
    logged_in(server.host, tmp_path / "docker", monkeypatch)
    registry.require_reachable_registry()
    assert registry.require_manifest("team/x", "1").layers == ()
    before = len(server.seen)
    registry.require_manifest("team/x", "1")
    assert len(server.seen) == before + 1  # the answer to the challenge is remembered
    if kind == "bearer":
        scopes = [seen.path for seen in server.seen if seen.path.startswith("/token")]
        assert scopes[-1].endswith("service=here&scope=repository%3Ateam%2Fx%3Apull") or len(scopes) == 1
    secret = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    said = "".join(capfd.readouterr()) + "".join(record.getMessage() for record in caplog.records)
    assert PASSWORD not in said
    assert secret not in said


@pytest.mark.parametrize("kind", ["basic", "bearer"])
def test_no_login(kind: str, server: RegistryServer, registry: Registry) -> None:
    server.auth = kind
    with pytest.raises(RegistryError) as error:
        registry.require_reachable_registry()
    assert refused(error) == (f"{server.host} wants a login", f"docker login {server.host}")
    assert len(server.seen) <= 2  # a refusal is not repeated


@pytest.mark.parametrize("kind", ["basic", "bearer"])
def test_a_wrong_password(
    kind: str, server: RegistryServer, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.auth = kind
    logged_in(server.host, tmp_path / "docker", monkeypatch, password="wrong")
    with pytest.raises(RegistryError) as error:
        registry.require_reachable_registry()
    assert refused(error) == (
        f"{server.host} refused the login that docker keeps for it", f"docker login {server.host}",
    )  # fmt: skip


def test_a_credential_helper_is_asked(server: RegistryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "docker"
    folder.mkdir()
    helper = folder / "docker-credential-test"
    answer = json.dumps({"ServerURL": server.host, "Username": USER, "Secret": PASSWORD})
    helper.write_text(f"#!/bin/sh\n[ \"$1\" = get ] && echo '{answer}'\n")
    helper.chmod(0o755)
    (folder / "config.json").write_text(json.dumps({"credHelpers": {server.host: "test"}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    assert read_docker_login("other.example") == {}
    assert read_docker_login(server.host) == {
        "username": USER,
        "password": PASSWORD,
        "serveraddress": server.host,
    }


def test_an_identity_token_is_traded_for_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "docker"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"auths": {"registry.example": {"identitytoken": "long"}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    assert read_docker_login("registry.example") == {
        "identitytoken": "long",
        "serveraddress": "registry.example",
    }


def test_a_broken_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with pytest.raises(RegistryError, match="docker's configuration cannot be read") as error:
        read_docker_login("registry.example")
    assert error.value.where == str(tmp_path / "config.json")


def test_a_password_does_not_travel_to_another_machine_unencrypted(
    server: RegistryServer, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged_in(server.host, tmp_path / "docker", monkeypatch)
    challenge = {"WWW-Authenticate": 'Bearer realm="http://token.example/",service="here"'}
    server.faults = [Fault("GET", "/v2/$", 401, headers=challenge)]
    with pytest.raises(RegistryError) as error:
        registry.require_reachable_registry()
    assert error.value.what == f"{server.host} wants the password sent without encryption"


# ---- what passes, and what does not -------------------------------------------------------------------------------


def test_a_failure_that_passes_is_repeated(server: RegistryServer, registry: Registry, pauses: list[float]) -> None:
    server.faults = [Fault("GET", "/v2/", 503, b"busy", times=2)]
    registry.require_reachable_registry()
    assert pauses == [0.5, 1.0]


def test_a_registry_says_how_long_to_wait(server: RegistryServer, registry: Registry, pauses: list[float]) -> None:
    server.faults = [Fault("GET", "/v2/", 429, headers={"Retry-After": "7"}), Fault("GET", "/v2/", 0)]
    registry.require_reachable_registry()
    assert pauses == [7.0, 1.0]


def test_a_failure_that_stays(server: RegistryServer, registry: Registry, pauses: list[float]) -> None:
    server.faults = [Fault("GET", "/v2/", 503, b"down for repair", times=9)]
    with pytest.raises(RegistryError) as error:
        registry.require_reachable_registry()
    assert refused(error) == (
        f"{server.host} answered 503: down for repair (tried 4 times)",
        "try again later",
    )
    assert (pauses, server.count("GET")) == ([0.5, 1.0, 2.0], 4)


def test_no_registry_there(server: RegistryServer, pauses: list[float]) -> None:
    server.close()
    with Registry(server.host, pause=pauses.append) as registry, pytest.raises(RegistryError) as error:
        registry.require_reachable_registry()
    what, step = refused(error)
    assert what.startswith(f"{server.host} does not answer: ")
    assert what.endswith("(tried 4 times)")
    assert step == "check the address and the network"


def test_plain_http_is_for_this_machine(server: RegistryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlbox.engine.registry_client.is_loopback_host", lambda host: False)
    with Registry(server.host, pause=lambda s: None) as registry, pytest.raises(RegistryError) as error:
        registry.require_reachable_registry()
    what, step = refused(error)
    assert what.startswith(f"{server.host} does not speak TLS")
    assert "--plain-http" in step
    assert server.seen == []
    with Registry(server.host, plain_http=True) as registry:
        registry.require_reachable_registry()


def test_a_page_instead_of_a_registry(server: RegistryServer, registry: Registry) -> None:
    page = {"Content-Type": "text/html"}
    server.faults = [Fault("GET", "/", 200, b"<html>log in", headers=page, times=2)]
    with pytest.raises(RegistryError) as error:
        registry.require_reachable_registry()
    assert refused(error) == (
        f"{server.host} is not a registry: it answered 200 <html>log in",
        "check the address; a proxy or a login page may stand in front of it",
    )
    with pytest.raises(RegistryError) as error:
        registry.require_manifest("team/x", "1")
    assert refused(error) == (
        f"{server.host} answered text/html where a manifest was asked for",
        "a proxy or a login page may stand in front of the registry",
    )


def test_not_allowed(server: RegistryServer, registry: Registry) -> None:
    body = b'{"errors": [{"code": "DENIED", "message": "read only"}]}'
    server.faults = [Fault("GET", "/manifests/", 403, body)]
    with pytest.raises(RegistryError) as error:
        registry.require_manifest("team/x", "1")
    what, step = refused(error)
    assert what == f"{server.host} answered 403: DENIED read only"
    assert step == f"docker login {server.host}"


# ---- manifests ----------------------------------------------------------------------------------------------------


def test_a_manifest_by_tag_and_by_digest(server: RegistryServer, registry: Registry) -> None:
    body = create_image_manifest(blob_of(), [blob_of(b"1")])
    digest = server.add_manifest("1", body, MANIFEST_TYPE)
    assert (
        registry.require_manifest("team/x", "1") == registry.require_manifest("team/x", digest) == parse_manifest(body)
    )
    assert registry.find_manifest("team/x", "2") is None
    with pytest.raises(RegistryError) as error:
        registry.require_manifest("team/x", "2")
    assert refused(error) == (f"{server.host}/team/x has no 2", "check name and tag")


def test_other_bytes_than_the_digest_says(server: RegistryServer, registry: Registry) -> None:
    body = create_image_manifest(blob_of(), [])
    wanted = f"sha256:{hashlib.sha256(b'other').hexdigest()}"
    server.manifests[wanted] = (MANIFEST_TYPE, body)
    with pytest.raises(RegistryError) as error:
        registry.require_manifest("team/x", wanted)
    assert refused(error)[0] == (
        f"the registry gave other bytes than asked for: {parse_manifest(body).digest} instead of {wanted}"
    )


# ---- blobs down ---------------------------------------------------------------------------------------------------


def filled(registry: Registry, folder: Path, counted: Callable[[int], None] = lambda done: None) -> bytes:
    """Return the blob as the store has it; what an earlier call left is not asked for again."""
    digest = blob_of().digest.removeprefix("sha256:")
    file = artifact(BLOB, "blob", "oci")
    with ObjectStore(folder / "store").wait_for_partial(digest) as draft:
        resume_and_verify_blob_download(registry, "team/x", file, draft, lambda _, done: counted(done))
        draft.commit()
    return ObjectStore(folder / "store").path(digest).read_bytes()


def test_a_blob_that_is_cut_is_resumed(
    server: RegistryServer, registry: Registry, tmp_path: Path, pauses: list[float]
) -> None:
    server.add_blob(BLOB)
    server.faults = [Fault("GET", "/blobs/", cut=True)]
    assert filled(registry, tmp_path) == BLOB
    (first, second) = [seen for seen in server.seen if seen.method == "GET"]
    assert "Range" not in first.headers
    assert second.headers["Range"] == f"bytes={len(BLOB) // 2}-"
    assert pauses == [0.5]


def test_wrong_bytes_leave_nothing(server: RegistryServer, registry: Registry, tmp_path: Path) -> None:
    server.blobs[blob_of().digest] = BLOB[:-1] + b"!"
    with pytest.raises(RegistryError) as error:
        filled(registry, tmp_path)
    assert f"instead of {blob_of().digest}" in refused(error)[0]
    assert list(ObjectStore(tmp_path / "store").list_partials()) == []


def test_a_redirect_gets_no_login(
    server: RegistryServer, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.auth = "basic"
    server.redirect = True
    server.add_blob(BLOB)
    logged_in(server.host, tmp_path / "docker", monkeypatch)
    server.faults = [Fault("GET", "/elsewhere/", 200, BLOB)]
    assert filled(registry, tmp_path) == BLOB
    assert server.seen[-1].path.startswith("/elsewhere/")
    assert "Authorization" not in server.seen[-1].headers


# ---- TLS ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
def test_the_sites_ca_is_trusted_and_no_other(
    server: RegistryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = tmp_path / "ca.crt", tmp_path / "key"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=here -days 2"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(certificate), "-keyout", str(key)]
    subprocess.run([*make.split(), *names], check=True, capture_output=True)
    server.speak_tls(certificate, key)
    monkeypatch.setattr("rlbox.engine.registry_client.is_loopback_host", lambda host: False)
    server.add_blob(BLOB)
    with Registry(server.host, ca_bundle=str(certificate)) as registry:
        registry.require_reachable_registry()
        assert registry.find_manifest("team/x", "none") is None
    with Registry(server.host) as registry, pytest.raises(RegistryError) as error:
        registry.require_reachable_registry()
    what, step = refused(error)
    assert what.startswith(f"the certificate of {server.host} is not trusted: ")
    assert step.startswith("name the site's CA with RLBOX_CA_BUNDLE")
    with Registry(server.host, ca_bundle=str(key)) as registry, pytest.raises(RegistryError, match="cannot be read"):
        registry.require_reachable_registry()
