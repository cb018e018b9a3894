"""Names of images in registries: `HOST[:PORT]/PATH[:TAG][@DIGEST]`, as docker reads them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from rlbox.errors import SpecError
from rlbox.i18n import _

DOCKER_HUB = "docker.io"
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?")
_PART = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LOOPBACK = re.compile(r"127(?:\.(?:25[0-5]|2[0-4]\d|1?\d?\d)){3}", re.ASCII)
_LONGEST = 255


@dataclass(frozen=True, kw_only=True)
class ImageReference:
    host: str
    repository: str
    tag: str = ""
    digest: str = ""

    @property
    def name_without_tag(self) -> str:
        return f"{self.host}/{self.repository}"

    def format_name_with_digest(self, digest: str) -> str:
        return f"{self.name_without_tag}@{digest}"

    def __str__(self) -> str:
        return self.name_without_tag + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")


def parse_reference(image_name: str) -> ImageReference:
    """Return the parts of an image's name; without a registry it is Docker Hub's, as docker has it."""
    rest, at, digest = image_name.partition("@")
    before, colon, tag = rest.rpartition(":")
    if not colon or "/" in tag:
        before, colon, tag = rest, "", ""
    host, path = _split_host(before)
    is_valid = (
        (not at or _DIGEST.fullmatch(digest))
        and (not colon or _TAG.fullmatch(tag))
        and _HOST.fullmatch(host)
        and all(map(_PART.fullmatch, path.split("/")))
        and len(path) <= _LONGEST
    )
    if not is_valid:
        raise SpecError(
            _("{text!r} is not a valid image name").format(text=image_name),
            next_step=_("write it as HOST/NAMESPACE/NAME:TAG or HOST/NAMESPACE/NAME@sha256:DIGEST, in lower case"),
        )
    return ImageReference(host=host, repository=path, tag=tag, digest=digest)


def parse_push_destination_default_latest(destination: str, name_after_trailing_slash: str) -> ImageReference:
    """Return where a push goes: the tag `latest` unless one is named; a destination that ends in '/' is a namespace."""
    reference = parse_reference(destination + name_after_trailing_slash if destination.endswith("/") else destination)
    if reference.digest:
        raise SpecError(
            _("{text!r} names a digest; a push chooses a tag").format(text=destination),
            next_step="--to REGISTRY/NAMESPACE/NAME:TAG",
        )
    return replace(reference, tag=reference.tag or "latest")


def is_loopback_host(host: str) -> bool:
    name = strip_port_and_brackets(host)
    return name in ("localhost", "::1") or bool(_LOOPBACK.fullmatch(name))


def strip_port_and_brackets(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def format_docker_login_command(host: str) -> str:
    return "docker login" if host == DOCKER_HUB else f"docker login {host}"


def strip_docker_hub_prefix(image_name: str) -> str:
    return image_name.removeprefix(f"{DOCKER_HUB}/").removeprefix("library/")


def _split_host(name: str) -> tuple[str, str]:
    first, slash, rest = name.partition("/")
    if slash and (any(sign in first for sign in ".:[") or first == "localhost"):
        host = DOCKER_HUB if first == f"index.{DOCKER_HUB}" else first
        return host, f"library/{rest}" if host == DOCKER_HUB and "/" not in rest else rest
    return DOCKER_HUB, name if slash else f"library/{name}"
