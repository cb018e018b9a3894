"""What a refused `rlbox push` says is done, at a registry in this process and an engine that answers as told."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes import EngineSocket, Folder
from following import Follow
from registry_server import Fault, RegistryServer, log_in, running
from vastbox import KEY, Platform, serving

from rlbox.engine.oci import CONFIG, LAYER, MANIFEST, describe, image_manifest, sha256_of
from rlbox.system.files import cache_path

pytestmark = pytest.mark.allow("sockets", "processes")
TAG = "rlbox/mine:tests"
MAKE = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=here -days 2"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RegistryServer]:
    monkeypatch.setattr("rlbox.system.http.retry_delay_s", lambda *words: 0)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    with running() as server:
        yield server


@pytest.fixture
def put(folder: Folder, engine: EngineSocket, server: RegistryServer) -> Callable[[], str]:
    """Give the engine an image, and return what puts it into the registry, as team/mine:1, as a push would."""
    folder.target("mine")
    body = image_manifest(describe(b"{}", CONFIG), [describe(b"layer", f"{LAYER}+gzip")])
    digest = sha256_of(body)
    layers = {"Layers": [sha256_of(b"plain")]}
    engine.images[TAG] = {"Id": digest, "RepoDigests": [f"rlbox/mine@{digest}"], "RootFS": layers}
    return lambda: server.add_manifest("1", body, MANIFEST)


@pytest.fixture
def explained(put: Callable[[], str]) -> None:
    """The image is there, and what explains it is still to be sent."""
    cache_path("images", "mine").mkdir(parents=True)
    (cache_path("images", "mine") / "sbom.spdx.json").write_text(json.dumps({"about": put()}))


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry counts as one of another machine."""
    for module in ("push", "registry_wire", "push_log"):
        monkeypatch.setattr(f"rlbox.engine.{module}.is_loopback", lambda host: False)


def push(server: RegistryServer, name: str = "team/mine") -> tuple[str, ...]:
    return ("push", "mine", "--to", f"{server.host}/{name}:1")


@pytest.mark.usefixtures("explained")
@pytest.mark.parametrize("status", [507, 503, 403])
def test_what_a_registry_had_against_it_is_gone(follow: Follow, server: RegistryServer, status: int) -> None:
    """Room is made, time passes, or an account is taken that may."""
    server.faults = [Fault("POST", "/uploads/", status, b"no", times=99)]
    step = follow(*push(server))
    server.faults.clear()
    follow.again(step)


@pytest.mark.usefixtures("explained")
def test_the_name_is_checked(follow: Follow, server: RegistryServer) -> None:
    server.faults = [Fault("POST", "/v2/wrong/", 404, times=4)]
    follow.instead(follow(*push(server, "wrong/mine")), "wrong", "team")


@pytest.mark.usefixtures("explained")
@pytest.mark.parametrize("known", [False, True])
def test_it_is_logged_in(follow: Follow, server: RegistryServer, tmp_path: Path, known: bool) -> None:
    server.auth = "basic"
    if known:
        log_in(server.host, tmp_path / "docker", "a wrong one")
    step = follow(*push(server))
    assert step.text == f"docker login {server.host}"
    log_in(step.text.split()[-1], tmp_path / "docker")
    follow.again(step)


@pytest.mark.usefixtures("explained")
def test_the_address_is_checked(follow: Follow, server: RegistryServer) -> None:
    """Nobody is there, or a page to log in."""
    with running() as gone:
        page = Fault("GET", "/", 200, b"<html>log in", headers={"Content-Type": "text/html"}, times=9)
        gone.faults = [page]
        follow.instead(follow(*push(gone)), gone.host, server.host)
    follow.instead(follow(*push(gone)), gone.host, server.host)


@pytest.mark.usefixtures("explained")
def test_a_page_in_the_place_of_a_manifest(follow: Follow, server: RegistryServer) -> None:
    page = {"Content-Type": "text/html"}
    server.faults = [
        Fault(verb, "/manifests/", 200, b"<html>log in", headers=page, times=9) for verb in ("GET", "HEAD")
    ]
    step = follow(*push(server))
    server.faults.clear()
    follow.again(step)


@pytest.mark.usefixtures("explained")
def test_a_network_that_is_slow(follow: Follow, server: RegistryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlbox.engine.registry_client._SILENCE_S", 0.1)
    server.faults = [Fault("GET", "/v2/", times=4, late_s=0.3)]
    step = follow(*push(server))
    monkeypatch.setattr("rlbox.engine.registry_client._SILENCE_S", 60.0)
    server.faults.clear()
    follow.again(step)


@pytest.mark.usefixtures("explained", "elsewhere")
def test_the_sites_ca_is_named(
    follow: Follow, server: RegistryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = tmp_path / "ca.crt", tmp_path / "key"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(certificate), "-keyout", str(key)]
    subprocess.run([*MAKE.split(), *names], check=True, capture_output=True)
    server.speak_tls(certificate, key)
    step = follow(*push(server))
    monkeypatch.setenv(step.setting(), str(certificate))
    follow.again(step)


@pytest.mark.usefixtures("explained", "elsewhere")
def test_the_engine_is_told_of_it(follow: Follow, server: RegistryServer, engine: EngineSocket) -> None:
    settings: dict[str, object] = {"InsecureRegistryCIDRs": ["10.0.0.0/8"]}
    engine.answers["/info"] = (200, json.dumps({"RegistryConfig": settings}).encode())
    step = follow(*push(server), "--plain-http")
    settings["IndexConfigs"] = {step.text.split()[1]: {"Secure": False}}  # what its daemon.json makes of it
    engine.answers["/info"] = (200, json.dumps({"RegistryConfig": settings}).encode())
    follow.again(step)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param("500 Internal Server Error: no space left on device", id="room"),
        pytest.param("http: server gave HTTP response to HTTPS client", id="tls"),
        pytest.param("x509: certificate signed by unknown authority", id="trust"),
        pytest.param("dial tcp: lookup h: no such host", id="host"),
        pytest.param("denied: requested access to the resource is denied", id="login"),
        pytest.param("connection reset by peer", id="network"),
    ],
)
def test_what_the_engine_could_not_push_it_can(
    follow: Follow, server: RegistryServer, engine: EngineSocket, put: Callable[[], str], words: str
) -> None:
    """What the engine said is mended at the registry or at the engine, and then it pushes."""
    engine.answers[f"/images/{TAG}/tag"] = (201, b"")
    said = json.dumps({"errorDetail": {"message": words}, "error": words}).encode() + b"\n"
    engine.answers[f"/images/{server.host}/team/mine/push"] = (200, said)
    step = follow(*push(server))
    put()
    follow.again(step)


@pytest.mark.usefixtures("explained")
def test_an_image_that_no_registry_has_is_pushed(
    follow: Follow, folder: Folder, server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is rented, and in its dry run: a machine that cannot pull it costs money in vain."""
    folder.target("mine", 'include = "vast-5090"\n')
    monkeypatch.setattr("rlbox.fixes.catalogue.load_fixes", lambda project: ())
    with serving(Platform()) as platform:
        monkeypatch.setenv("VAST_API_KEY", KEY)
        monkeypatch.setenv("VAST_URL", platform.url)
        step = follow("vast", "create", "mine", "--image", f"{server.host}/team/mine:2", "--dry-run")
        assert step.said.code == 6
        (push, *_) = step.commands({"TARGET": "mine", "REGISTRY": server.host, "NAME": "team/mine", "TAG": "1"})
        follow.changed(step, [*push[:-1], f"{push[-1]}:1"], 0)
        follow.instead(step, "mine:2", "mine:1")
        wants = follow.rlbox("vast", "create", "mine", "--image", f"{server.host}/team/mine:2", "--yes", "--json")
        assert (wants.code, platform.calls("PUT")) == (6, [])


@pytest.mark.usefixtures("explained")
def test_what_a_registry_does_not_tell_is_not_checked(
    follow: Follow, folder: Folder, server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wants a login: the platform has its own."""
    folder.target("mine", 'include = "vast-5090"\n')
    monkeypatch.setattr("rlbox.fixes.catalogue.load_fixes", lambda project: ())
    server.auth = "basic"
    with serving(Platform()) as platform:
        monkeypatch.setenv("VAST_API_KEY", KEY)
        monkeypatch.setenv("VAST_URL", platform.url)
        said = follow.rlbox("vast", "create", "mine", "--image", f"{server.host}/team/mine:2", "--dry-run", "--json")
    assert (said.code, said.data["verdict"]["not_checked"][0]["what"]) == (0, [f"image {server.host}/team/mine:2"])


def test_another_pushed_to_the_tag(
    follow: Follow, server: RegistryServer, engine: EngineSocket, put: Callable[[], str]
) -> None:
    """In the moment between the engine's push and the look at it."""
    engine.answers[f"/images/{TAG}/tag"] = (201, b"")
    digest = engine.images[TAG]["Id"]
    pushed = {"progressDetail": {}, "aux": {"Tag": "1", "Digest": digest, "Size": 1}}
    engine.answers[f"/images/{server.host}/team/mine/push"] = (200, json.dumps(pushed).encode() + b"\n")
    other = image_manifest(describe(b"{}", CONFIG), [describe(b"other", f"{LAYER}+gzip")])
    server.add_manifest("1", other, MANIFEST)
    step = follow(*push(server))
    put()
    follow.again(step)


@pytest.mark.usefixtures("explained")
def test_an_address_that_means_the_same_on_both(
    follow: Follow, server: RegistryServer, engine: EngineSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.answers["/info"] = 200, b'{"RegistryConfig": {"InsecureRegistryCIDRs": ["0.0.0.0/0"]}}'
    monkeypatch.setattr("rlbox.engine.push.engine_is_here", lambda: False)
    monkeypatch.setattr("rlbox.engine.push.engine_place", lambda: "ssh://gpu001")
    step = follow(*push(server), "--plain-http")
    follow.instead(step, "127.0.0.1", "0.0.0.0")
