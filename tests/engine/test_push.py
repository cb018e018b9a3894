"""`rlbox push` on a real engine and a real registry: the same bytes, only what is missing, and every refusal said."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from enginebox import Box, docker, wait_until
from projectbox import own
from registry_server import log_in, running
from registrybox import SAID, TARGET, Proxy, build, proxied, registry_running

from rlbox.engine.registry_client import Registry
from rlbox.engine.signature import SIGNATURE_ANNOTATION, load_signing_key
from rlbox.errors import RegistryError, SpecError

MIB = 1 << 20
NAME = f"crate{os.getpid()}"
TAG = own(NAME)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a registry."""
    with registry_running(tmp_path_factory.mktemp("registry")) as host:
        yield host


@pytest.fixture
def proxy(registry: str) -> Iterator[Proxy]:
    """A registry that no engine has met before, and that counts."""
    with proxied(registry) as proxy:
        yield proxy


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Box]]:
    """Return a function that builds a small image and gives the command line for it."""

    def build_image(layers: int = 3) -> Box:
        project = tmp_path / "project"
        (project / f"images/{NAME}").mkdir(parents=True)
        (project / f"images/{NAME}/target.toml").write_text(TARGET)
        box = Box(project=project, data=tmp_path, extra={"XDG_CACHE_HOME": str(tmp_path / "cache")})
        build(TAG, project / "context", layers, 3 * MIB, dict(box.extra))
        return box

    yield build_image
    listed = docker("image", "ls", "--format={{.Repository}}:{{.Tag}}").split()
    for tag in (tag for tag in listed if f"/{NAME}:" in tag):
        docker("image", "rm", "--force", tag)


def image_facts() -> dict[str, Any]:
    return json.loads(docker("image", "inspect", TAG))[0]


def idle(proxy: Proxy) -> None:
    wait_until(lambda: not proxy.busy, "the end of the requests", 60)


@pytest.mark.core
def test_the_registry_has_the_engines_bytes(make: Callable[..., Box], proxy: Proxy) -> None:
    box = make()
    result = box("push", NAME, "--to", f"{proxy.host}/team/")
    identity = image_facts()["Id"]
    name = f"{proxy.host}/team/{NAME}"
    assert (result.code, result.out) == (0, f"{name}@{identity}\n"), result.err
    assert len([line for line in result.err.splitlines() if line.startswith("✓ ")]) == 4
    with Registry(proxy.host) as registry:
        assert registry.require_manifest(f"team/{NAME}", "latest").digest == identity
    assert image_facts()["RepoTags"] == [TAG]  # the name it was pushed under is gone again
    assert docker("run", "--rm", result.out.strip()) == SAID
    docker("image", "rm", result.out.strip())


def openssl(*words: object) -> str:
    return subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, text=True).stdout


def create_key(file: Path) -> Path:
    openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", file)
    openssl("pkey", "-in", file, "-pubout", "-out", file.with_suffix(".pub"))
    return file


def test_openssl_verifies_the_signatures_of_two_keys(make: Callable[..., Box], registry: str, tmp_path: Path) -> None:
    box, a, b = make(), create_key(tmp_path / "a.key"), create_key(tmp_path / "b.key")
    words = ("push", NAME, "--to", f"{registry}/team/", "--json", "--sign-key")
    with Registry(registry) as client:
        pushed = [box(*words, str(key)).data for key in (a, b, a)]
        digest, tag = pushed[0]["digest"], pushed[0]["signature"].rpartition(":")[2]
        assert tag == f"sha256-{digest[7:]}.sig"
        for key, layer in zip((a, b), client.require_manifest(f"team/{NAME}", tag).layers, strict=True):
            with client.open_unverified_blob(f"team/{NAME}", layer.digest) as stream:
                (tmp_path / "payload").write_bytes(b"".join(stream.chunks))
            (tmp_path / "signature").write_bytes(base64.b64decode(layer.annotations[SIGNATURE_ANNOTATION]))
            files = [key.with_suffix(".pub"), "-signature", tmp_path / "signature", tmp_path / "payload"]
            assert openssl("dgst", "-sha256", "-verify", *files) == "Verified OK\n"
            image = json.loads((tmp_path / "payload").read_bytes())["critical"]["image"]
            assert image == {"docker-manifest-digest": digest}


@pytest.mark.skipif(not shutil.which("cosign"), reason="this distribution has no cosign")
def test_cosign_verifies_beside_a_signature_of_its_own(make: Callable[..., Box], registry: str, tmp_path: Path) -> None:
    def cosign(words: str) -> str:
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "COSIGN_PASSWORD": "sesame"}
        done = subprocess.run(["cosign", *words.split()], env=env, cwd=tmp_path, capture_output=True, text=True)
        return "" if done.returncode == 0 else done.stderr

    box, key = make(), create_key(tmp_path / "a.key")
    create_key(tmp_path / "b.key")
    assert cosign("generate-key-pair") == ""
    image = box("push", NAME, "--to", f"{registry}/team/").out.strip()
    verify = f"verify --allow-http-registry --insecure-ignore-tlog {image} --key"
    assert "no signatures found" in cosign(f"{verify} a.pub")
    assert cosign(f"sign --allow-http-registry --tlog-upload=false --yes {image} --key cosign.key") == ""
    assert box("push", NAME, "--to", f"{registry}/team/", "--sign-key", str(key)).code == 0
    assert [cosign(f"{verify} {file}") for file in ("a.pub", "cosign.pub")] == ["", ""]
    assert "no matching signatures" in cosign(f"{verify} b.pub")


def test_a_token_is_for_pull_and_push(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with running() as server, Registry(server.host) as registry:
        server.auth = "bearer"
        log_in(server.host, tmp_path)
        with pytest.raises(RegistryError, match="404"):  # it takes no uploads
            registry.upload_blob("team/mine", b"x")
        assert "scope=repository%3Ateam%2Fmine%3Apull%2Cpush" in server.seen[1].path


@pytest.mark.parametrize(
    "command", ["genpkey -algorithm RSA", "pkey -pubout -in FILE", "pkcs8 -topk8 -passout pass:open-sesame -in FILE"]
)
def test_another_key_is_refused_without_a_word_of_it(tmp_path: Path, command: str) -> None:
    key, other = create_key(tmp_path / "a.key"), tmp_path / "other"
    openssl(*command.replace("FILE", str(key)).split(), "-out", other)
    with pytest.raises(SpecError, match="not an unencrypted ECDSA P-256") as refused:
        load_signing_key(other)
    assert not [line for line in other.read_text().splitlines() if line in repr(refused.value.as_json())]


def test_a_second_push_sends_nothing(make: Callable[..., Box], proxy: Proxy) -> None:
    box = make()
    first = box("push", NAME, "--to", f"{proxy.host}/{NAME}:1", "--json").data
    sizes = sum(size for size in _layer_sizes(proxy.host, NAME, "1"))
    assert (first["layers"], first["bytes"]) == ({"total": 4, "pushed": 4, "present": 0}, sizes)
    assert first["exact"] is True
    sent = proxy.bytes_up
    for tag in ("1", "2"):
        again = box("push", NAME, "--to", f"{proxy.host}/{NAME}:{tag}", "--json").data
        assert (again["layers"], again["bytes"]) == ({"total": 4, "pushed": 0, "present": 4}, 0)
        assert again["digest"] == first["digest"]
    assert proxy.bytes_up == sent


def _layer_sizes(host: str, repository: str, tag: str) -> list[int]:
    with Registry(host) as registry:
        return [layer.size for layer in registry.require_manifest(repository, tag).layers]


def test_a_name_of_the_users_stays(make: Callable[..., Box], proxy: Proxy) -> None:
    box = make()
    mine = f"{proxy.host}/{NAME}:mine"
    docker("tag", TAG, mine)
    assert box("push", NAME, "--to", mine).code == 0
    assert sorted(image_facts()["RepoTags"]) == sorted([TAG, mine])
    docker("image", "rm", mine)


@pytest.mark.parametrize("login", [False, True], ids=["no login", "a login"])
def test_after_a_kill_only_what_is_missing_is_sent(
    make: Callable[..., Box], proxy: Proxy, login: bool, tmp_path: Path
) -> None:
    box = make(layers=5)
    if login:  # the engine reads a request otherwise then, and must notice its end all the same
        auths = {proxy.host: {"auth": base64.b64encode(b"mira:sesame").decode()}}
        (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))
        box = dataclasses.replace(box, extra={**box.extra, "DOCKER_CONFIG": str(tmp_path)})
    proxy.allow = 2
    process = box.start("push", NAME, "--to", f"{proxy.host}/{NAME}:1")
    wait_until(lambda: len(proxy.uploaded) >= 2, "two whole blobs", 60)
    process.kill()
    process.communicate()
    idle(proxy)  # the engine has given up: what stalls now would be sent on otherwise
    proxy.allow = 1000
    there = list(proxy.uploaded)
    assert 2 <= len(there) <= 4  # two, and what is so small that it was on its way
    done = box("push", NAME, "--to", f"{proxy.host}/{NAME}:1", "--json")
    assert done.code == 0, done.err
    layers = done.data["layers"]
    assert layers["total"] == 6
    assert 0 < layers["pushed"] < 6
    assert len(proxy.uploaded) == len(set(proxy.uploaded)) == 7  # six layers and the configuration, each once
    assert set(there) < set(proxy.uploaded)
    assert TAG in image_facts()["RepoTags"]


def test_a_failure_that_passes(make: Callable[..., Box], proxy: Proxy) -> None:
    proxy.fail, proxy.times = ("^PUT .*/uploads/", 503, b"busy", {}), 2
    box = make()
    done = box("push", NAME, "--to", f"{proxy.host}/{NAME}:1")
    assert done.code == 0, done.err
    assert proxy.times == 0
    by_itself = int(docker("version", "--format={{.Server.Version}}").partition(".")[0]) >= 29  # it repeats a request
    assert by_itself or "attempt 1 of 4 failed: " in done.err


BASIC = {"WWW-Authenticate": 'Basic realm="x"'}
NO_PUSH = "{host} does not let this login push to crate"


@pytest.mark.parametrize(
    ("status", "headers", "what", "step"),
    [
        (507, {}, "the push failed\n", "check the network and the registry"),
        (401, BASIC, f"{NO_PUSH}\n", "docker login"),
        (403, {}, f"{NO_PUSH}\n", "docker login"),
    ],
)
def test_a_refusal_is_not_repeated(
    make: Callable[..., Box],
    proxy: Proxy,
    status: int,
    headers: dict[str, str],
    what: str,
    step: str,
) -> None:
    proxy.fail, proxy.times = ("^(PUT|POST) .*/uploads/", status, b"", headers), 1000
    box = make()
    done = box("push", NAME, "--to", f"{proxy.host}/crate:1")
    assert (done.code, done.out) == (6, ""), done.err
    assert f"rlbox: error: {what.format(host=proxy.host)}" in done.err
    assert f"  next:  {step}" in done.err
    assert "attempt" not in done.err
    assert image_facts()["RepoTags"] == [TAG]


def test_blobs_of_another_repository_are_taken_from_there(make: Callable[..., Box], proxy: Proxy) -> None:
    box = make()
    other = f"{proxy.host}/{NAME}/first:1"
    docker("tag", TAG, other)
    assert box("push", NAME, "--to", other).code == 0
    sent = list(proxy.uploaded)
    data = box("push", NAME, "--to", f"{proxy.host}/{NAME}/second:1", "--json").data
    assert data["layers"] == {"total": 4, "pushed": 0, "present": 4}
    assert proxy.uploaded == sent
    docker("image", "rm", other)


def test_other_bytes_in_the_registry_are_met(make: Callable[..., Box], proxy: Proxy) -> None:
    other = b'{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","layers":[]}'
    proxy.swap = other
    box = make(layers=1)
    done = box("push", NAME, "--to", f"{proxy.host}/{NAME}:1")
    assert (done.code, done.out) == (6, "")
    assert f"but rlbox pushed {image_facts()['Id']}" in done.err


# ---- archives -----------------------------------------------------------------------------------------------------


def test_an_archive_comes_back_as_the_same_image(make: Callable[..., Box], tmp_path: Path) -> None:
    box = make()
    identity = image_facts()["Id"]
    file = tmp_path / "x.tar"
    saved = box("save", NAME, str(file), "--json")
    assert (saved.code, saved.data["digest"]) == (0, identity), saved.err
    assert saved.data["bytes"] == file.stat().st_size
    docker("image", "rm", TAG)
    loaded = box("load", str(file), "--json")
    assert loaded.code == 0, loaded.err
    assert (loaded.data["image"], loaded.data["id"], loaded.data["layers"]) == (TAG, identity, 4)
    assert docker("run", "--rm", TAG) == SAID
    nobodys = f"rlbox/{NAME}:latest"  # docker itself reads it too, and calls it as the archive does
    docker("image", "rm", TAG)
    assert "latest" in docker("load", "--input", str(file))
    assert docker("image", "inspect", "--format={{.Id}}", nobodys).strip() == identity
    docker("image", "rm", nobodys)


def test_an_archive_takes_no_name_of_another_project(make: Callable[..., Box], tmp_path: Path) -> None:
    box = make()
    file, taken = tmp_path / "x.tar", (f"rlbox/{NAME}:latest", f"rlbox/{NAME}:theirs")
    assert box("save", NAME, str(file)).code == 0
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /\n")
    docker("build", "--quiet", *(f"--tag={tag}" for tag in taken), str(tmp_path))
    try:
        before = docker("image", "inspect", "--format={{.Id}}", *taken)
        loaded = box("load", str(file), "--json", RLBOX_PROJECT_NAME="mine")
        assert loaded.data["image"] == f"rlbox/{NAME}:mine"
        assert docker("image", "inspect", "--format={{.Id}}", *taken) == before
        assert docker("image", "inspect", "--format={{.Id}}", f"rlbox/{NAME}:mine").strip() == image_facts()["Id"]
    finally:
        docker("image", "rm", *taken, f"rlbox/{NAME}:mine")


def test_a_damaged_archive_loads_nothing(make: Callable[..., Box], tmp_path: Path) -> None:
    box = make()
    file = tmp_path / "x.tar"
    assert box("save", NAME, str(file)).code == 0
    docker("image", "rm", TAG)
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for data, words in ((bytes(flipped), "is damaged"), (whole[: len(whole) // 2], "truncated")):
        file.write_bytes(data)
        done = box("load", str(file))
        assert (done.code, done.out) == (1, "")
        assert words in done.err
        assert "nothing was loaded" in done.err
        assert docker("image", "ls", "--quiet", TAG) == ""
