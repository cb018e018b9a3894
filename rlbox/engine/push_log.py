"""What the engine says while it pushes: layers as they stand, digests and causes; and how much had to be sent."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_network
from typing import Any, Literal

from rlbox.engine.oci import Descriptor
from rlbox.engine.reference import Reference, host_name, is_loopback
from rlbox.errors import RegistryError
from rlbox.i18n import _

LayerState = Literal["waiting", "pushing", "pushed", "present"]


@dataclass(frozen=True, kw_only=True)
class PushedLayer:
    """One layer of a push; `key` is the engine's short id, `done` and `total` are bytes."""

    key: str
    state: LayerState = "waiting"
    done: int = 0
    total: int = 0


_DIGEST = re.compile(r"digest: (sha256:[0-9a-f]{64}) ")
_STATES: Mapping[str, LayerState] = {"Pushing": "pushing", "Pushed": "pushed", "Layer already exists": "present"}
# Causes by the words of the engine or the registry it quotes, the first that matches; what is named last may pass.
_FULL = re.compile(r"no space left|quota|insufficient storage|status:? 507|status:? 413", re.I)
_LOGIN = re.compile(r"unauthorized|no basic auth|authentication required|denied|insufficient_scope|\b40[13]\b", re.I)
_PLAIN = re.compile(r"server gave HTTP response to HTTPS client", re.I)
_CERTIFICATE = re.compile(r"x509:|certificate", re.I)
_NAME = re.compile(r"no such host", re.I)
_MAY_PASS = re.compile(
    r"connection (refused|reset)|broken pipe|\bEOF\b|i/o timeout|timed? ?out|deadline exceeded|handshake"
    r"|no route to host|network is unreachable|too ?many ?requests|temporar|\b(429|500|502|503|504)\b"
    r"|internal server error|bad gateway|service unavailable",
    re.I,
)


class PushLog:
    """Follows the engine's messages of one push: layers by their id, the digest at the end, or the error."""

    def __init__(self) -> None:
        self.layers: dict[str, PushedLayer] = {}
        self.digest = ""
        self.error = ""

    def feed(self, message: Mapping[str, Any]) -> PushedLayer | None:
        if "error" in message:
            self.error = str(message["error"])
            return None
        status = str(message.get("status", ""))
        if found := _DIGEST.search(status):
            self.digest = found.group(1)
        key = str(message.get("id", ""))
        if not key:
            return None
        layer = self.layers.get(key, PushedLayer(key=key))
        state = "present" if status.startswith("Mounted from") else _STATES.get(status, layer.state)
        if layer.state == "pushed":  # a repeated attempt finds it there
            state = "pushed"
        detail = message.get("progressDetail") or {}
        layer = replace(
            layer, state=state, done=detail.get("current", layer.done), total=detail.get("total", layer.total)
        )
        self.layers[key] = layer
        return layer


def may_pass(words: str) -> bool:
    return not any(lasting.search(words) for lasting in (_FULL, _LOGIN, _PLAIN, _CERTIFICATE, _NAME)) and bool(
        _MAY_PASS.search(words)
    )


def push_error(words: str, reference: Reference, attempts: int) -> RegistryError:
    """Return the error for a push that the engine gave up with `words`."""
    host, kept = reference.host, _("what it has already is not sent again")
    if _FULL.search(words):
        what, step = (
            _("{host} has no room left").format(host=host),
            _("free space in the registry, then repeat: {kept}").format(kept=kept),
        )
    elif _PLAIN.search(words):
        what = _("the engine insists on TLS, and {host} does not speak it").format(host=host)
        step = _("add {host} to insecure-registries in the engine's /etc/docker/daemon.json").format(host=host)
    elif _CERTIFICATE.search(words):
        what = _("the engine does not trust the certificate of {host}").format(host=host)
        step = _("put the site's CA at /etc/docker/certs.d/{host}/ca.crt on the engine's machine").format(host=host)
    elif _NAME.search(words):
        what, step = _("the engine finds no host {host_name}").format(host_name=host_name(host)), _("check the address")
    elif _LOGIN.search(words):
        what, step = (
            _("{host} does not let this login push to {repository}").format(host=host, repository=reference.repository),
            f"docker login {host}",
        )
    elif may_pass(words):
        what, step = (
            _("the push failed {attempts} times").format(attempts=attempts),
            _("check the network and the registry, then repeat: {kept}").format(kept=kept),
        )
    else:
        what, step = _("the push failed"), ""
    return RegistryError(
        _("{what}\n  | {words}").format(what=what, words=words[:500]), where=str(reference), next_step=step
    )


def engine_takes_plain(host: str, settings: Mapping[str, Any]) -> bool:
    """Return whether an engine speaks plain http to a registry.

    Parameters
    ----------
    settings
        `RegistryConfig` of the engine's /info; an engine that does not say counts as one that does.
    """
    if is_loopback(host) or not settings:
        return True
    listed = (settings.get("IndexConfigs") or {}).get(host) or {}
    if listed.get("Secure") is False:
        return True
    try:
        address = ip_address(host_name(host))
    except ValueError:
        return False
    return any(address in ip_network(net, strict=False) for net in settings.get("InsecureRegistryCIDRs") or ())


@dataclass(frozen=True, kw_only=True)
class PushCount:
    """How many layers a push had to send, and their bytes as stored in the registry."""

    total: int
    pushed: int
    present: int
    size: int


def count_push(layers: Mapping[str, PushedLayer], stored: Sequence[Descriptor], contents: Sequence[str]) -> PushCount:
    """Return what was sent.

    Parameters
    ----------
    layers
        By the engine's id: the first 12 digits of the digest of the stored blob, or, in an engine without the
        containerd store, of the layer's unpacked content.
    stored, contents
        The image's layers in the registry and the digests of their contents, in the same order.
    """
    pushed = {key for key, layer in layers.items() if layer.state == "pushed"}
    sizes = {blob.digest: blob.size for blob in stored}
    sent = {
        blob.digest
        for blob, content in zip(stored, contents, strict=False)
        if pushed & {layer_key(blob.digest), layer_key(content)}
    }
    size = sum(sizes[digest] for digest in sent)
    return PushCount(total=len(sizes), pushed=len(sent), present=len(sizes) - len(sent), size=size)


def layer_key(digest: str) -> str:
    return digest.partition(":")[2][:12]
