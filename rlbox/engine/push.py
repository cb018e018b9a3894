"""Push an image with the engine, verify the registry's copy, attach its SBOM."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rlbox.amounts import decimal_size_text
from rlbox.app import App
from rlbox.engine.address import find_engine_url, is_engine_local
from rlbox.engine.connection import connect_engine
from rlbox.engine.oci import (
    EMPTY_BLOB,
    EMPTY_TYPE,
    MANIFEST_TYPE,
    TITLE_ANNOTATION,
    Descriptor,
    Manifest,
    create_artifact_manifest,
    create_descriptor,
    find_manifest_digest,
)
from rlbox.engine.reference import ImageReference, is_loopback_host
from rlbox.engine.registry_auth import read_docker_login
from rlbox.engine.registry_client import Registry
from rlbox.errors import RegistryError, RlboxError
from rlbox.i18n import _
from rlbox.system.files import cache_path
from rlbox.system.http import ATTEMPTS, retry
from rlbox.system.network_settings import find_custom_ca_bundle
from rlbox.system.progress import ProgressItem, show_progress

LayerState = Literal["waiting", "pushing", "pushed", "present"]
ExitCode = int
SPDX_TYPE = "application/spdx+json"

_DIGEST = re.compile(r"digest: (sha256:[0-9a-f]{64}) ")
_STATES: Mapping[str, LayerState] = {"Pushing": "pushing", "Pushed": "pushed", "Layer already exists": "present"}
_MARKS = {"pushed": "✓", "present": "="}
# What an engine, or the registry that it quotes, says of failures that stay.
_LOGIN = re.compile(r"unauthorized|no basic auth|authentication required|denied|insufficient_scope|\b40[13]\b", re.I)
_TLS = re.compile(r"server gave HTTP response to HTTPS client|x509:|certificate", re.I)
_LASTING = re.compile(r"no space left|quota|insufficient storage|status:? 507|status:? 413|no such host|invalid", re.I)


@dataclass(frozen=True, kw_only=True)
class LayerProgress:
    """One layer of a push; `layer_id` is the engine's short id, `done_bytes` and `total_bytes` are bytes."""

    layer_id: str
    state: LayerState = "waiting"
    done_bytes: int = 0
    total_bytes: int = 0


@dataclass
class PushState:
    """What the engine has said of one push: layers by their id, the digest at the end, or the error."""

    layers: dict[str, LayerProgress] = field(default_factory=dict)
    digest: str = ""
    error: str = ""

    def record_message_or_error(self, message: Mapping[str, Any]) -> LayerProgress | None:
        """Return the layer that a message of the engine is about; None for any other message."""
        self.error = str(message.get("error", ""))
        status = str(message.get("status", ""))
        if digest := _DIGEST.search(status):
            self.digest = digest.group(1)
        layer_id = str(message.get("id", ""))
        if not layer_id:
            return None
        layer = self.layers.get(layer_id, LayerProgress(layer_id=layer_id))
        state = "present" if status.startswith("Mounted from") else _STATES.get(status, layer.state)
        if layer.state == "pushed":  # a repeated attempt finds it there
            state = "pushed"
        detail = message.get("progressDetail") or {}
        done, total = detail.get("current", layer.done_bytes), detail.get("total", layer.total_bytes)
        self.layers[layer_id] = replace(layer, state=state, done_bytes=done, total_bytes=total)
        return self.layers[layer_id]


@dataclass(frozen=True, kw_only=True)
class PushCount:
    """How many layers a push had to send, and their bytes as stored in the registry."""

    total_layers: int
    pushed_layers: int
    pushed_bytes: int


def count_newly_pushed_layers(
    layer_progress: Mapping[str, LayerProgress], registry_layers: Sequence[Descriptor], diff_ids: Sequence[str]
) -> PushCount:
    """Return what was sent.

    `layer_progress`: By the engine's id: the first 12 digits of the digest of the stored blob, or, in an engine without
      the containerd store, of the layer's unpacked content.
    `diff_ids`: The digests of the layers' unpacked contents, in the order of `registry_layers`.
    """
    pushed = {layer_id for layer_id, layer in layer_progress.items() if layer.state == "pushed"}
    sent = {
        blob.digest: blob.size
        for blob, diff_id in zip(registry_layers, diff_ids, strict=False)
        if pushed & {blob.digest[7:19], diff_id[7:19]}
    }
    total = len({blob.digest for blob in registry_layers})
    return PushCount(total_layers=total, pushed_layers=len(sent), pushed_bytes=sum(sent.values()))


def is_transient_push_error(engine_error: str) -> bool:
    return not any(lasting.search(engine_error) for lasting in (_LOGIN, _TLS, _LASTING))


def create_push_error(engine_error: str, reference: ImageReference) -> RegistryError:
    """Return the error with the engine's words, and what to do about it where that is known."""
    host, step = (
        reference.host,
        _("check the network and the registry, then repeat: content that the registry has is not sent again"),
    )
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
    elif is_transient_push_error(engine_error):
        what = _("the push failed {attempts} times").format(attempts=ATTEMPTS)
    else:
        what = _("the push failed")
    return RegistryError(
        _("{what}\n  | {words}").format(what=what, words=engine_error[:500]), where=str(reference), next_step=step
    )


@dataclass(frozen=True, kw_only=True)
class _PushResult:
    """What the registry holds after a push.

    `is_engine_manifest`: These are the bytes that the engine stores; one without the containerd store keeps no manifest
    and packs the layers as it pushes, so that a push of its own is the first time that a digest exists.
    """

    manifest: Manifest
    count: PushCount
    is_engine_manifest: bool


def push_image_and_attach_sbom(
    app: App,
    image: Mapping[str, Any],
    target_name: str,
    tag: str,
    reference: ImageReference,
    *,
    plain_http: bool,
    overridden_stack_conflict: str = "",
) -> ExitCode:
    """Push a target's image `tag`, verify that the registry has it, attach what explains it, and report.

    `image`: The engine's description of `tag`; empty in a dry run without an engine.
    `overridden_stack_conflict`: The contradiction of the stack that `--force` overrode.
    """
    if app.dry_run:
        app.record_as_unchecked("a dry run asks no registry", f"whether {reference.host} takes it")
        data = {"target": target_name, "image": tag, "reference": str(reference)}
        return app.planned(data, f"push {tag} to {reference}", f"push {tag}")
    with (
        Registry(
            reference.host,
            write=True,
            plain_http=plain_http,
            ca_bundle=find_custom_ca_bundle(),
            on_retry=app.print_status,
        ) as registry,
        show_progress(app) as show,
    ):
        result = _push_and_verify_image(
            image,
            tag,
            reference,
            registry,
            on_layer=lambda layer: show(_create_progress_item(layer)),
            on_retry=app.print_status,
        )
        attached = _attach_sbom(app, target_name, result.manifest, reference, registry)
    digest, count = result.manifest.digest, result.count
    if not result.is_engine_manifest:
        app.print_status(
            "note: this engine packs layers as it pushes and keeps no digest of its own; the registry's is printed"
        )
    if any(layer.media_type.endswith("zstd") for layer in result.manifest.layers):
        app.print_status("note: its layers are zstd; an engine before Docker 23 cannot unpack them")
    present = count.total_layers - count.pushed_layers
    facts: dict[str, Any] = {
        "target": target_name,
        "reference": str(reference),
        "digest": digest,
        "layers": {"total": count.total_layers, "pushed": count.pushed_layers, "present": present},
        "bytes": count.pushed_bytes,
        "exact": result.is_engine_manifest,
        "attached": [attached] if attached else [],
        **({"forced": overridden_stack_conflict} if overridden_stack_conflict else {}),
    }
    app.result(facts, reference.with_digest(digest))
    app.print_status(f"next: docker pull {reference.with_digest(digest)}")
    return 0


def _push_and_verify_image(
    engine_image: Mapping[str, Any],
    local_tag: str,
    reference: ImageReference,
    registry: Registry,
    *,
    on_layer: Callable[[LayerProgress], None],
    on_retry: Callable[[str], None],
) -> _PushResult:
    """Have the engine push its image `local_tag`, and verify what the registry holds then.

    Raises RegistryError: the registry does not answer, refused, failed four times, or holds something else than was
      pushed; or its address means this machine, and the engine is on another.
    """
    if is_loopback_host(reference.host) and not is_engine_local():
        raise RegistryError(
            _("{host} is another machine for the engine than for rlbox").format(host=reference.host),
            where=find_engine_url(),
            next_step=_("name the registry by an address that means the same on both"),
        )
    registry.require_registry()
    diff_ids = (engine_image.get("RootFS") or {}).get("Layers") or []
    stored, log = find_manifest_digest(engine_image), PushState()
    manifest = registry.find_manifest(reference.repository, reference.tag) if stored else None
    if manifest is None or manifest.digest != stored:
        with _tag_temporarily(engine_image["Id"], local_tag, reference):
            _push(reference, log, on_layer, on_retry)
        manifest = registry.get_manifest(reference.repository, reference.tag)
        if manifest.digest != (stored or log.digest):
            raise RegistryError(
                _("{reference} is {digest} in the registry, but rlbox pushed {wanted}").format(
                    reference=reference, digest=manifest.digest, wanted=stored or log.digest
                ),
                where=reference.name_without_tag,
                next_step=_("another user may push to this tag; choose another tag, or repeat"),
            )
    count = count_newly_pushed_layers(log.layers, manifest.layers, diff_ids)
    return _PushResult(manifest=manifest, count=count, is_engine_manifest=bool(stored))


@contextmanager
def _tag_temporarily(image_id: str, tag: str, reference: ImageReference) -> Iterator[None]:
    """Give the image the name it is pushed under, and restore the previous state of that name afterwards."""
    engine, name = connect_engine(), f"{reference.name_without_tag}:{reference.tag}"
    before = engine.find_image(name)
    engine.tag_image(tag, reference)
    try:
        yield
    finally:
        with contextlib.suppress(RlboxError):  # what went wrong in between is the news
            if before is None:
                engine.try_untag_image(name)
            elif before["Id"] != image_id:
                engine.tag_image(before["Id"], reference)


class _TransientError(Exception):
    """The engine gave up for a reason that may pass by itself."""


def _push(
    reference: ImageReference,
    log: PushState,
    on_layer: Callable[[LayerProgress], None],
    on_retry: Callable[[str], None],
) -> None:
    login = read_docker_login(reference.host)

    def push() -> None:
        for message in connect_engine().push_image(reference, login):
            if layer := log.record_message_or_error(message):
                on_layer(layer)
            if log.error and is_transient_push_error(log.error):
                raise _TransientError(log.error[:200])
            if log.error:
                raise create_push_error(log.error, reference)

    try:
        retry(push, _TransientError, on_retry=on_retry)
    except _TransientError as failure:
        raise create_push_error(log.error, reference) from failure


def _create_progress_item(layer: LayerProgress) -> ProgressItem:
    mark, total = _MARKS.get(layer.state, ""), max(layer.total_bytes, layer.done_bytes)
    word = "already there" if layer.state == "present" else layer.state
    return ProgressItem(
        key=layer.layer_id,
        title=layer.layer_id if mark else f"{layer.layer_id}  {word}",
        mark=mark,
        status_text=word + (f"  {decimal_size_text(layer.total_bytes)}" if layer.total_bytes else ""),
        done_bytes=total if mark else layer.done_bytes,
        total_bytes=total,
    )


def _find_sboms(directory: Path) -> list[Path]:
    """Return the SBOMs that builds of a target left below `directory`, a folder an image."""
    return sorted((*directory.glob("sbom.spdx.json"), *directory.glob("*/sbom.spdx.json")))


def _attach_sbom(
    app: App, target_name: str, manifest: Manifest, reference: ImageReference, registry: Registry
) -> str | None:
    """Attach the SBOM that names the image's digest, or that of its configuration; return the digest of what is.

    Another engine, or an archive that was loaded, may have given its tag to an image that no SBOM here is of.
    """
    folder = cache_path("images", target_name)
    names = [manifest.digest[7:], *([manifest.config.digest[7:]] if manifest.config else [])]
    sboms = _find_sboms(folder)
    for path in sboms:
        if any(name in path.read_text(encoding="utf-8") for name in names):
            return attach_sbom(registry, reference.repository, manifest.descriptor, path)
    if sboms:
        next_step = f"`rlbox build {target_name} --rebuild` writes this one's"
        app.print_status(f"note: the SBOM in {folder} is of another build; {next_step}")
    return None


def attach_sbom(registry: Registry, repository: str, subject: Descriptor, path: Path) -> str:
    """Attach an SBOM to the image `subject` and return the digest of what refers to it.

    Raises RegistryError: the registry refused, or does not have the image.
    """
    data, title = path.read_bytes(), {TITLE_ANNOTATION: path.name}
    content = create_descriptor(data, SPDX_TYPE, annotations=title)
    registry.put_blob(repository, content, data)
    registry.put_blob(repository, create_descriptor(EMPTY_BLOB, EMPTY_TYPE), EMPTY_BLOB)
    body = create_artifact_manifest(subject, content, SPDX_TYPE)
    listed = create_descriptor(body, MANIFEST_TYPE, artifact_type=SPDX_TYPE, annotations=title)
    registry.put_referrer(repository, subject.digest, body, listed)
    return listed.digest
