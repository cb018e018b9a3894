"""Names of images in registries, and the documents that registries keep."""

from __future__ import annotations

import json

import pytest
from fakes import load_cases
from registry_server import create_image_manifest, descriptor_to_json

from rlbox.engine.oci import (
    INDEX_TYPE,
    MANIFEST_TYPE,
    create_descriptor,
    parse_manifest,
)
from rlbox.engine.reference import (
    ImageReference,
    is_loopback_host,
    parse_push_destination_default_latest,
    parse_reference,
    strip_port_and_brackets,
)
from rlbox.errors import SpecError

CASES = load_cases("engine", "test_reference")
DIGEST = "sha256:" + "0123456789abcdef" * 4


def ref(host: str, repository: str, tag: str = "", digest: str = "") -> ImageReference:
    return ImageReference(host=host, repository=repository, tag=tag, digest=digest)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("debian", ref("docker.io", "library/debian")),
        ("debian:bookworm", ref("docker.io", "library/debian", "bookworm")),
        ("vllm/vllm-openai:v0.12.0", ref("docker.io", "vllm/vllm-openai", "v0.12.0")),
        ("docker.io/debian", ref("docker.io", "library/debian")),
        ("index.docker.io/team/x", ref("docker.io", "team/x")),
        ("localhost/x", ref("localhost", "x")),
        ("localhost:5000/x:1", ref("localhost:5000", "x", "1")),
        ("127.0.0.1:5000/team/x", ref("127.0.0.1:5000", "team/x")),
        ("[::1]:5000/x", ref("[::1]:5000", "x")),
        ("registry.example/a/b/c_d/e__f/g-h.i:T_1.x-y", ref("registry.example", "a/b/c_d/e__f/g-h.i", "T_1.x-y")),
        (f"registry.example/x@{DIGEST}", ref("registry.example", "x", digest=DIGEST)),
        (f"registry.example:443/x:1@{DIGEST}", ref("registry.example:443", "x", "1", DIGEST)),
    ],
)
def test_a_name_is_read_as_docker_does(text: str, wanted: ImageReference) -> None:
    assert parse_reference(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        *("", "registry.example/Team/x", "registry.example/", "registry.example/a..b"),
        *("registry.example/x:", "registry.example/x:-1", "registry.example/x@sha256:0"),
        *("registry.example:port/x", "https://registry.example/x", "registry.example/" + "a" * 256),
    ],
)
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(SpecError) as error:
        parse_reference(text)
    assert error.value.what == f"{text!r} is not a valid image name"
    assert error.value.next_step.startswith("write it as HOST/NAMESPACE/NAME:TAG")


@pytest.mark.parametrize(("text", "wanted"), CASES["where_a_push_goes"])
def test_where_a_push_goes(text: str, wanted: str) -> None:
    assert str(parse_push_destination_default_latest(text, "local")) == wanted


def test_a_push_cannot_choose_a_digest() -> None:
    with pytest.raises(SpecError, match="names a digest; a push chooses a tag"):
        parse_push_destination_default_latest(f"registry.example/x@{DIGEST}", "local")


@pytest.mark.parametrize(("host", "name", "local"), CASES["what_is_this_machine"])
def test_what_is_this_machine(host: str, name: str, local: bool) -> None:
    assert (strip_port_and_brackets(host), is_loopback_host(host)) == (name, local)


def test_a_manifest_is_read_again() -> None:
    config, layer = (
        create_descriptor(b"{}", "application/c"),
        create_descriptor(b"layer", "application/l", annotations={"a": "b"}),
    )
    read = parse_manifest(create_image_manifest(config, [layer]))
    assert (read.config, read.layers) == (config, (layer,))
    assert read.descriptor == create_descriptor(read.body, MANIFEST_TYPE)
    index = {"schemaVersion": 2, "manifests": [descriptor_to_json(read.descriptor)]}
    listed = parse_manifest(json.dumps(index).encode())
    assert (listed.manifests, listed.descriptor.media_type) == ((read.descriptor,), INDEX_TYPE)


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"schemaVersion": 1}', b'{"schemaVersion": 2, "config": {}}'])
def test_what_is_no_manifest(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_manifest(body)
