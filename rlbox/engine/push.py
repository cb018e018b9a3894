"""Push an image with the engine, verify the registry's copy, attach its SBOM."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Literal

from rlbox.amounts import size_text
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
    compute_digest,
    create_artifact_manifest,
    create_descriptor,
    find_manifest_digest,
    format_referrers_tag,
)
from rlbox.engine.reference import ImageReference, is_loopback_host, strip_port
from rlbox.engine.registry_auth import read_docker_login
from rlbox.engine.registry_client import PushDestination, Registry
from rlbox.errors import EngineError, RegistryError, RlboxError
from rlbox.i18n import _
from rlbox.system.files import cache_path
from rlbox.system.http import ATTEMPTS, retry
from rlbox.system.network_settings import find_ca_bundle
from rlbox.system.progress import ProgressItem, show_progress

LayerState = Literal["waiting", "pushing", "pushed", "present"]


@dataclass(frozen=True, kw_only=True)
class LayerProgress:
    """One layer of a push; `layer_id` is the engine's short id, `done_bytes` and `total_bytes` are bytes."""

    layer_id: str
    state: LayerState = "waiting"
    done_bytes: int = 0
    total_bytes: int = 0


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


class PushMessageParser:
    """Follows the engine's messages of one push: layers by their id, the digest at the end, or the error."""

    def __init__(self) -> None:
        self.layers: dict[str, LayerProgress] = {}
        self.digest = ""
        self.error = ""

    def feed_message(self, message: Mapping[str, Any]) -> LayerProgress | None:
        if "error" in message:
            self.error = str(message["error"])
            return None
        status = str(message.get("status", ""))
        if found := _DIGEST.search(status):
            self.digest = found.group(1)
        key = str(message.get("id", ""))
        if not key:
            return None
        layer = self.layers.get(key, LayerProgress(layer_id=key))
        state = "present" if status.startswith("Mounted from") else _STATES.get(status, layer.state)
        if layer.state == "pushed":  # a repeated attempt finds it there
            state = "pushed"
        detail = message.get("progressDetail") or {}
        layer = replace(
            layer,
            state=state,
            done_bytes=detail.get("current", layer.done_bytes),
            total_bytes=detail.get("total", layer.total_bytes),
        )
        self.layers[key] = layer
        return layer


def is_transient_push_error(engine_error: str) -> bool:
    return not any(lasting.search(engine_error) for lasting in (_FULL, _LOGIN, _PLAIN, _CERTIFICATE, _NAME)) and bool(
        _MAY_PASS.search(engine_error)
    )


def create_push_error(engine_error: str, reference: ImageReference, attempts: int) -> RegistryError:
    host, kept = reference.host, _("what it has already is not sent again")
    if _FULL.search(engine_error):
        what, step = (
            _("{host} has no room left").format(host=host),
            _("free space in the registry, then repeat: {kept}").format(kept=kept),
        )
    elif _PLAIN.search(engine_error):
        what = _("the engine insists on TLS, and {host} does not speak it").format(host=host)
        step = _("add {host} to insecure-registries in the engine's /etc/docker/daemon.json").format(host=host)
    elif _CERTIFICATE.search(engine_error):
        what = _("the engine does not trust the certificate of {host}").format(host=host)
        step = _("put the site's CA at /etc/docker/certs.d/{host}/ca.crt on the engine's machine").format(host=host)
    elif _NAME.search(engine_error):
        what, step = (
            _("the engine finds no host {host_name}").format(host_name=strip_port(host)),
            _("check the address"),
        )
    elif _LOGIN.search(engine_error):
        what, step = (
            _("{host} does not let this login push to {repository}").format(host=host, repository=reference.repository),
            f"docker login {host}",
        )
    elif is_transient_push_error(engine_error):
        what, step = (
            _("the push failed {attempts} times").format(attempts=attempts),
            _("check the network and the registry, then repeat: {kept}").format(kept=kept),
        )
    else:
        what, step = _("the push failed"), ""
    return RegistryError(
        _("{what}\n  | {words}").format(what=what, words=engine_error[:500]), where=str(reference), next_step=step
    )


def engine_allows_plain_http(registry_host: str, registry_config: Mapping[str, Any]) -> bool:
    """Return whether an engine speaks plain http to a registry.

    `registry_config`: `RegistryConfig` of the engine's /info; an engine that does not say counts as one that does.
    """
    if is_loopback_host(registry_host) or not registry_config:
        return True
    listed = (registry_config.get("IndexConfigs") or {}).get(registry_host) or {}
    if listed.get("Secure") is False:
        return True
    try:
        address = ip_address(strip_port(registry_host))
    except ValueError:
        return False
    return any(address in ip_network(net, strict=False) for net in registry_config.get("InsecureRegistryCIDRs") or ())


@dataclass(frozen=True, kw_only=True)
class PushCount:
    """How many layers a push had to send, and their bytes as stored in the registry."""

    total_layers: int
    pushed_layers: int
    present_layers: int
    pushed_bytes: int


def count_pushed_layers(
    layer_progress: Mapping[str, LayerProgress], registry_layers: Sequence[Descriptor], diff_ids: Sequence[str]
) -> PushCount:
    """Return what was sent.

    `layer_progress`: By the engine's id: the first 12 digits of the digest of the stored blob, or, in an engine without
      the containerd store, of the layer's unpacked content.
    `diff_ids`: The digests of the layers' unpacked contents, in the order of `registry_layers`.
    """
    pushed = {key for key, layer in layer_progress.items() if layer.state == "pushed"}
    sizes = {blob.digest: blob.size for blob in registry_layers}
    sent = {
        blob.digest
        for blob, content in zip(registry_layers, diff_ids, strict=False)
        if pushed & {shorten_digest(blob.digest), shorten_digest(content)}
    }
    size = sum(sizes[digest] for digest in sent)
    return PushCount(
        total_layers=len(sizes), pushed_layers=len(sent), present_layers=len(sizes) - len(sent), pushed_bytes=size
    )


def shorten_digest(digest: str) -> str:
    return digest.partition(":")[2][:12]


@dataclass(frozen=True, kw_only=True)
class PushResult:
    """What the registry holds after a push.

    `is_engine_manifest`: These are the bytes that the engine stores; one without the containerd store keeps no manifest
    and packs the layers as it pushes, so that a push of its own is the first time that a digest exists.
    """

    manifest: Manifest
    count: PushCount
    is_engine_manifest: bool


def push_and_verify_image(
    engine_image: dict[str, Any],
    local_tag: str,
    destination: PushDestination,
    *,
    on_layer: Callable[[LayerProgress], None],
    on_retry: Callable[[str], None],
) -> PushResult:
    """Have the engine push its image `local_tag` to `destination`, and verify what the registry holds then.

    `engine_image`: The engine's description of `local_tag`.
    `on_retry`: Told why, and how long from now, the engine's push is repeated.
    Raises RegistryError: the registry does not answer, refused, failed four times, or holds something else than was
      pushed; or its address means this machine, and the engine is on another.
    Raises EngineError: plain http was allowed here, but the engine insists on TLS.
    """
    contents = (engine_image.get("RootFS") or {}).get("Layers") or []
    stored = find_manifest_digest(engine_image)
    _check_route(destination)
    there = destination.find_manifest() if stored else None
    if there and there.digest == stored:
        return PushResult(
            manifest=there, count=count_pushed_layers({}, there.layers, contents), is_engine_manifest=True
        )
    with _tagged(engine_image["Id"], local_tag, destination.reference):
        log = _push(destination.reference, on_layer, on_retry)
    manifest = _verified(destination, stored or log.digest)
    return PushResult(
        manifest=manifest,
        count=count_pushed_layers(log.layers, manifest.layers, contents),
        is_engine_manifest=bool(stored),
    )


def _check_route(destination: PushDestination) -> None:
    """Make sure before the engine begins that the registry answers, and that the engine will speak to it."""
    host = destination.reference.host
    if is_loopback_host(host) and not is_engine_local():
        raise RegistryError(
            _("{host} is another machine for the engine than for rlbox").format(host=host),
            where=find_engine_url(),
            next_step=_("name the registry by an address that means the same on both"),
        )
    destination.registry.require_registry()
    if destination.plain_http and not engine_allows_plain_http(
        host, connect_engine().info().get("RegistryConfig") or {}
    ):
        raise EngineError(
            _("the engine insists on TLS for {host}").format(host=host),
            next_step=_("add {host} to insecure-registries in the engine's /etc/docker/daemon.json").format(host=host),
        )


@contextmanager
def _tagged(identity: str, tag: str, reference: ImageReference) -> Iterator[None]:
    """Give the image the name it is pushed under, and restore the previous state of that name afterwards."""
    name = f"{reference.name}:{reference.tag}"
    before = connect_engine().find_image(name)
    connect_engine().tag_image(tag, reference)
    try:
        yield
    finally:
        with contextlib.suppress(RlboxError):  # what went wrong in between is the news
            if before is None:
                connect_engine().remove_tag(name)
            elif before["Id"] != identity:
                connect_engine().tag_image(before["Id"], reference)


class _TransientError(Exception):
    """The engine gave up for a reason that may pass by itself."""


def _push(
    reference: ImageReference, on_layer: Callable[[LayerProgress], None], on_retry: Callable[[str], None]
) -> PushMessageParser:
    login = read_docker_login(reference.host)
    log = PushMessageParser()

    def push() -> None:
        log.error = ""
        for message in connect_engine().push_image(reference, login):
            if layer := log.feed_message(message):
                on_layer(layer)
        if log.error:
            raise (
                _TransientError(log.error[:200])
                if is_transient_push_error(log.error)
                else create_push_error(log.error, reference, ATTEMPTS)
            )

    try:
        retry(push, _TransientError, on_retry=on_retry)
    except _TransientError as failure:
        raise create_push_error(log.error, reference, ATTEMPTS) from failure
    return log


def _verified(destination: PushDestination, wanted: str) -> Manifest:
    manifest, reference = destination.get_manifest(), destination.reference
    if manifest.digest != wanted:
        raise RegistryError(
            _("{reference} is {digest} in the registry; what was pushed is {wanted}").format(
                reference=reference, digest=manifest.digest, wanted=wanted
            ),
            where=reference.name,
            next_step=_("somebody else may push to this tag; choose another, or repeat"),
        )
    return manifest


SPDX = "application/spdx+json"
ATTACHMENT_TYPES = {"sbom.spdx.json": SPDX}


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """A file that explains an image; `artifact_type` is what others look for."""

    path: Path
    artifact_type: str


def find_attachments(directory: Path) -> tuple[Attachment, ...]:
    """Return the SBOMs that builds of a target left below `directory`, a folder an image."""
    return tuple(
        Attachment(path=path, artifact_type=kind)
        for name, kind in ATTACHMENT_TYPES.items()
        for path in sorted((*directory.glob(name), *directory.glob(f"*/{name}")))
    )


def select_attachments(files: Sequence[Attachment], manifest: Manifest) -> tuple[Attachment, ...]:
    """Return those of `files` that name the image: its digest, or that of its configuration.

    Another engine, or an archive that was loaded, may have given its tag to an image that they say nothing of.
    """
    digests = [manifest.digest, *([manifest.config.digest] if manifest.config else [])]
    names = [digest.partition(":")[2] for digest in digests]
    return tuple(item for item in files if any(name in item.path.read_text(encoding="utf-8") for name in names))


def attach_files(destination: PushDestination, subject: Descriptor, files: Sequence[Attachment]) -> tuple[str, ...]:
    """Attach `files` to the image `subject` and return the digests of what now refers to it, in order.

    The same files again change nothing; a changed file takes the place of the older one in the list.

    Raises RegistryError: the registry refused, or does not have the image.
    """
    if not files:
        return ()
    artifacts = [_artifact(subject, item) for item in files]
    registry, repository = destination.registry, destination.reference.repository
    there = registry.find_manifest(repository, format_referrers_tag(subject.digest))
    if there is None or any(artifact.listed not in there.manifests for artifact in artifacts):
        _upload_artifacts(registry, repository, subject, artifacts)
    return tuple(artifact.listed.digest for artifact in artifacts)


@dataclass(frozen=True, kw_only=True)
class _Artifact:
    content: Descriptor
    data: bytes
    body: bytes
    listed: Descriptor


def _artifact(subject: Descriptor, item: Attachment) -> _Artifact:
    data = item.path.read_bytes()
    title = {TITLE_ANNOTATION: item.path.name}
    content = Descriptor(media_type=item.artifact_type, digest=compute_digest(data), size=len(data), annotations=title)
    body = create_artifact_manifest(subject, content, item.artifact_type)
    listed = create_descriptor(body, MANIFEST_TYPE, artifact_type=item.artifact_type, annotations=title)
    return _Artifact(content=content, data=data, body=body, listed=listed)


def _upload_artifacts(registry: Registry, repository: str, subject: Descriptor, artifacts: Sequence[_Artifact]) -> None:
    blobs = [
        (create_descriptor(EMPTY_BLOB, EMPTY_TYPE), EMPTY_BLOB),
        *((artifact.content, artifact.data) for artifact in artifacts),
    ]
    with ThreadPoolExecutor() as pool:  # each takes three answers of a registry that may be far away
        list(pool.map(lambda blob: registry.put_blob(repository, *blob), blobs))
    registry.put_referrers(repository, subject.digest, [(artifact.body, artifact.listed) for artifact in artifacts])


_MARKS = {"pushed": "✓", "present": "="}


class ImagePush:
    """The push of one target's image `tag`: where it goes, and the steps in their order."""

    def __init__(
        self,
        app: App,
        target_name: str,
        tag: str,
        reference: ImageReference,
        *,
        plain_http: bool,
        forced_conflict: str = "",
    ) -> None:
        self._app, self._name, self._tag, self._reference = app, target_name, tag, reference
        self._plain_http, self._forced = plain_http, forced_conflict

    def push(self, image: dict[str, Any]) -> int:
        """Push the image that the engine describes so, prove that the registry has it, attach what explains it."""
        if self._app.dry_run:
            return self._look()
        host, plain = self._reference.host, self._plain_http
        with Registry(host, write=True, plain_http=plain, ca_bundle=find_ca_bundle, on_retry=self._app.say) as registry:
            destination = PushDestination(reference=self._reference, registry=registry, plain_http=plain)
            pushed = self._push(image, destination)
            attached = self._attach(pushed, destination)
        self._report(pushed, attached)
        return 0

    def _push(self, image: dict[str, Any], destination: PushDestination) -> PushResult:
        app = self._app
        with show_progress(app) as show:
            return push_and_verify_image(
                image, self._tag, destination, on_layer=lambda layer: show(_layer_row(layer)), on_retry=app.say
            )

    def _attach(self, pushed: PushResult, destination: PushDestination) -> tuple[str, ...]:
        folder = cache_path("images", self._name)
        if not folder.is_dir():
            return ()
        found = find_attachments(folder)
        files = select_attachments(found, pushed.manifest)
        if found and not files:
            next_step = f"`rlbox build {self._name} --rebuild` writes this one's"
            self._app.say(f"note: the SBOM in {folder} is of another build; {next_step}")
        return attach_files(destination, pushed.manifest.descriptor, files) if files else ()

    def _report(self, pushed: PushResult, attached: tuple[str, ...]) -> None:
        app, reference = self._app, self._reference
        digest, count = pushed.manifest.digest, pushed.count
        if not pushed.is_engine_manifest:
            app.say(
                "note: this engine packs layers as it pushes and keeps no digest of its own; the registry's is printed"
            )
        if any(layer.media_type.endswith("zstd") for layer in pushed.manifest.layers):
            app.say("note: its layers are zstd; an engine before Docker 23 cannot unpack them")
        data: dict[str, Any] = {
            "target": self._name,
            "reference": str(reference),
            "digest": digest,
            "layers": {"total": count.total_layers, "pushed": count.pushed_layers, "present": count.present_layers},
            "bytes": count.pushed_bytes,
            "exact": pushed.is_engine_manifest,
            "attached": list(attached),
        }
        data |= {"forced": self._forced} if self._forced else {}
        app.result(data, reference.with_digest(digest))
        app.say(f"next: docker pull {reference.with_digest(digest)}")

    def _look(self) -> int:
        tag, reference = self._tag, str(self._reference)
        self._app.not_checked("a dry run asks no registry", f"whether {self._reference.host} takes it")
        data = {"target": self._name, "image": tag, "reference": reference}
        return self._app.planned(data, f"push {tag} to {reference}", f"push {tag}")


def _layer_row(layer: LayerProgress) -> ProgressItem:
    mark, total = _MARKS.get(layer.state, ""), max(layer.total_bytes, layer.done_bytes)
    word = "already there" if layer.state == "present" else layer.state
    told = word + (f"  {size_text(layer.total_bytes)}" if layer.total_bytes else "")
    title = layer.layer_id if mark else f"{layer.layer_id}  {word}"
    return ProgressItem(
        key=layer.layer_id,
        title=title,
        mark=mark,
        status_text=told,
        done_bytes=total if mark else layer.done_bytes,
        total_bytes=total,
    )
