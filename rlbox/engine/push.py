"""Push an image with the engine, and verify the registry's copy."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rlbox.amounts import decimal_size_text
from rlbox.app import App
from rlbox.engine.address import find_engine_url, is_engine_on_unix_socket
from rlbox.engine.connection import connect_engine
from rlbox.engine.oci import Descriptor, Manifest, find_manifest_digest_or_empty
from rlbox.engine.reference import ImageReference, is_loopback_host
from rlbox.engine.registry_auth import read_docker_login
from rlbox.engine.registry_client import Registry
from rlbox.engine.signature import SigningKey, push_signature_return_signature_tag
from rlbox.errors import RegistryError, RlboxError
from rlbox.i18n import _, translate
from rlbox.system.http import ATTEMPTS, retry
from rlbox.system.network_settings import find_env_or_pip_ca_bundle_or_empty
from rlbox.system.progress import ProgressItem, show_progress

_DIGEST = re.compile(r"digest: (sha256:[0-9a-f]{64}) ")
_PRESENT = re.compile(r"Layer already exists|Mounted from")
# What an engine, or the registry that it quotes, says of failures that stay.
_LOGIN = re.compile(r"unauthorized|no basic auth|authentication required|denied|insufficient_scope|\b40[13]\b", re.I)
_TLS = re.compile(r"server gave HTTP response to HTTPS client|x509:|certificate", re.I)
_LASTING = re.compile(r"no space left|quota|insufficient storage|status:? 507|status:? 413|no such host|invalid", re.I)


@dataclass
class PushLog:
    """What the engine has said of one push: layers by the engine's short id, the digest at the end, or the error."""

    layers: dict[str, ProgressItem] = field(default_factory=dict)
    pushed_layer_ids: set[str] = field(default_factory=set)
    digest: str = ""
    error: str = ""

    def record_message(self, message: Mapping[str, Any]) -> ProgressItem | None:
        """Return the state of the layer that a message of the engine is about; None for any other message."""
        self.error = str(message.get("error", ""))
        status = str(message.get("status", ""))
        if digest := _DIGEST.search(status):
            self.digest = digest.group(1)
        if not (layer_id := str(message.get("id", ""))):
            return None
        if status == "Pushed":
            self.pushed_layer_ids.add(layer_id)
        before = self.layers.get(layer_id, ProgressItem(key=layer_id, title=layer_id))
        detail = message.get("progressDetail") or {}
        done = detail.get("current", before.done_bytes)
        total = max(detail.get("total", before.total_bytes), done)
        if layer_id in self.pushed_layer_ids:  # a repeated attempt finds it there
            mark, state = "✓", "pushed"
        elif _PRESENT.match(status) or before.mark:
            mark, state = "=", "already there"
        else:
            mark, state = "", status.lower()
        self.layers[layer_id] = ProgressItem(
            key=layer_id,
            title=layer_id if mark else f"{layer_id}  {state}",
            mark=mark,
            status_text=state + (f"  {decimal_size_text(total)}" if total else ""),
            done_bytes=total if mark else done,
            total_bytes=total,
        )
        return self.layers[layer_id]


def find_pushed_blob_bytes_by_digest(
    pushed_layer_ids: Collection[str], registry_layers: Sequence[Descriptor], diff_ids: Sequence[str]
) -> dict[str, int]:
    """Return digest and size, as stored in the registry, of the layers that were sent.

    `pushed_layer_ids` are the first 12 digits of the digest of the stored blob, or, in an engine without the containerd
    store, of the layer's unpacked content, which `diff_ids` has in the order of `registry_layers`.
    """
    return {
        blob.digest: blob.size
        for blob, diff_id in zip(registry_layers, diff_ids, strict=False)
        if blob.digest[7:19] in pushed_layer_ids or diff_id[7:19] in pushed_layer_ids
    }


def is_push_error_retryable(engine_error: str) -> bool:
    return not any(lasting.search(engine_error) for lasting in (_LOGIN, _TLS, _LASTING))


def create_push_error(engine_error: str, reference: ImageReference) -> RegistryError:
    host = reference.host
    step = _("check the network and the registry, then repeat: content that the registry has is not sent again")
    if _TLS.search(engine_error):
        what = _("the engine cannot speak TLS with {host}").format(host=host)
        step = _(
            "put the site's CA at /etc/docker/certs.d/{host}/ca.crt on the engine's machine, "
            "or for plain http add {host} to insecure-registries in its /etc/docker/daemon.json"
        ).format(host=host)
    elif _LOGIN.search(engine_error):
        what = _("{host} does not let this login push to {repository}").format(
            host=host, repository=reference.repository
        )
        step = f"docker login {host}"
    elif is_push_error_retryable(engine_error):
        what = _("the push failed {attempts} times").format(attempts=ATTEMPTS)
    else:
        what = _("the push failed")
    return RegistryError(
        _("{what}\n  | {words}").format(what=what, words=engine_error[:500]), where=str(reference), next_step=step
    )


def push_and_verify_image(
    app: App,
    image: Mapping[str, Any],
    target_name: str,
    tag: str,
    reference: ImageReference,
    *,
    plain_http: bool,
    forced_stack_conflict: str = "",
    signing_key: SigningKey | None = None,
) -> int:
    """Push the image `tag`, verify that the registry has it, sign it, report, and return the exit code.

    `image`: The engine's description of `tag`; empty in a dry run without an engine.
    """
    if app.dry_run:
        app.add_dry_run_unchecked(
            _("a dry run asks no registry"), _("whether {host} takes it").format(host=reference.host)
        )
        data = {"target": target_name, "image": tag, "reference": str(reference)}
        text = translate(_("push {tag} to {reference}").format(tag=tag, reference=reference))
        return app.print_dry_run(data, text, _("push {tag}").format(tag=tag))
    log, ca_bundle = PushLog(), find_env_or_pip_ca_bundle_or_empty()
    with (
        Registry(reference.host, plain_http=plain_http, ca_bundle=ca_bundle, on_retry=app.print_status) as registry,
        show_progress(app) as show,
    ):
        manifest = _push_and_verify_image(image, tag, reference, registry, log, show, app.print_status)
        signature_tag = (
            push_signature_return_signature_tag(registry, reference, manifest.digest, signing_key)
            if signing_key
            else ""
        )
    if any(layer.media_type.endswith("zstd") for layer in manifest.layers):
        app.print_status(_("note: its layers are zstd; an engine before Docker 23 cannot unpack them"))
    diff_ids = (image.get("RootFS") or {}).get("Layers") or ()
    pushed = find_pushed_blob_bytes_by_digest(log.pushed_layer_ids, manifest.layers, diff_ids)
    total = len({blob.digest for blob in manifest.layers})
    facts: dict[str, Any] = {
        "target": target_name,
        "reference": str(reference),
        "digest": manifest.digest,
        "layers": {"total": total, "pushed": len(pushed), "present": total - len(pushed)},
        "bytes": sum(pushed.values()),
        "exact": bool(find_manifest_digest_or_empty(image)),
        **({"forced": forced_stack_conflict} if forced_stack_conflict else {}),
        **({"signature": f"{reference.name_without_tag}:{signature_tag}"} if signature_tag else {}),
    }
    app.output(facts, reference.format_name_with_digest(manifest.digest))
    if signature_tag:
        app.print_status(_("signed: {signature}").format(signature=facts["signature"]))
    app.print_next(f"docker pull {reference.format_name_with_digest(manifest.digest)}")
    return 0


def _push_and_verify_image(
    engine_image: Mapping[str, Any],
    local_tag: str,
    reference: ImageReference,
    registry: Registry,
    log: PushLog,
    on_layer: Callable[[ProgressItem], None],
    on_retry: Callable[[str], None],
) -> Manifest:
    """Have the engine push its image `local_tag` unless the registry has it, and return what the registry has then.

    An engine without the containerd store keeps no manifest and packs the layers as it pushes, so that a push of its
    own is the first time that a digest exists.

    """
    if is_loopback_host(reference.host) and not is_engine_on_unix_socket():
        raise RegistryError(
            _("{host} is another machine for the engine than for rlbox").format(host=reference.host),
            where=find_engine_url(),
            next_step=_("name the registry by an address that means the same on both"),
        )
    registry.require_reachable_registry()
    stored = find_manifest_digest_or_empty(engine_image)
    manifest = registry.find_manifest(reference.repository, reference.tag) if stored else None
    if manifest and manifest.digest == stored:
        return manifest
    with _tag_temporarily(engine_image["Id"], local_tag, reference):
        _push(reference, log, on_layer, on_retry)
    manifest = registry.require_manifest(reference.repository, reference.tag)
    if manifest.digest != (stored or log.digest):
        raise RegistryError(
            _("{reference} is {digest} in the registry, but rlbox pushed {wanted}").format(
                reference=reference, digest=manifest.digest, wanted=stored or log.digest
            ),
            where=reference.name_without_tag,
            next_step=_("another user may push to this tag; choose another tag, or repeat"),
        )
    return manifest


@contextmanager
def _tag_temporarily(image_id: str, tag: str, reference: ImageReference) -> Iterator[None]:
    engine, name = connect_engine(), f"{reference.name_without_tag}:{reference.tag}"
    before = engine.find_image(name)
    engine.tag_image(tag, reference)
    try:
        yield
    finally:
        with contextlib.suppress(RlboxError):  # what went wrong in between is the news
            if before is None:
                engine.try_remove_image_by_tag(name)
            elif before["Id"] != image_id:
                engine.tag_image(before["Id"], reference)


class _TransientError(Exception):
    """The engine gave up for a reason that may pass by itself."""


def _push(
    reference: ImageReference, log: PushLog, on_layer: Callable[[ProgressItem], None], on_retry: Callable[[str], None]
) -> None:
    login = read_docker_login(reference.host)

    def push() -> None:
        for message in connect_engine().push_image(reference, login):
            if layer := log.record_message(message):
                on_layer(layer)
            if log.error and is_push_error_retryable(log.error):
                raise _TransientError(log.error[:200])
            if log.error:
                raise create_push_error(log.error, reference)

    try:
        retry(push, _TransientError, on_retry=on_retry)
    except _TransientError as failure:
        raise create_push_error(log.error, reference) from failure
