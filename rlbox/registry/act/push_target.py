"""What `rlbox push` does; without click, whose import is a good part of a push that finds everything there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from rlbox.errors import EngineError

if TYPE_CHECKING:
    from rlbox.app import App
    from rlbox.engine.reference import Reference
    from rlbox.registry.act.client import Registry
    from rlbox.registry.act.push import Pushed


def push_target(app: App, name: str, destination: str, *, plain_http: bool, gzip: bool) -> None:
    """Push the image of a target, prove that the registry has it, attach what explains it."""
    from rlbox.engine.act.api import find_image
    from rlbox.engine.reference import image_tag, push_reference

    reference = push_reference(destination, name)
    app.project.target_file(name)
    tag = image_tag(name)
    if app.dry_run:
        _dry_run(app, name, tag, reference, gzip=gzip)
        return
    image = find_image(tag)
    if image is None:
        raise EngineError(f"the engine has no image {tag}", next_step=f"rlbox build {name}")
    with ExitStack() as stack:
        opened = _Opened(stack, reference.host, plain_http=plain_http, on_retry=app.say)
        pushed = _push(app, image, tag, reference, opened, plain_http=plain_http)
        attached = _attach(app, name, reference, pushed, opened)
        copy = _copy(app, reference, pushed, opened) if gzip else ""
    _report(app, name, reference, pushed, attached, copy)


class _Opened:
    """Opens the registry when it is first asked for; a push to this machine often needs nothing of it."""

    def __init__(self, stack: ExitStack, host: str, *, plain_http: bool, on_retry: Callable[[str], None]) -> None:
        self._stack, self._host, self._plain_http, self._on_retry = stack, host, plain_http, on_retry
        self._registry: Registry | None = None

    def __call__(self) -> Registry:
        if self._registry is None:
            from rlbox.registry.act.client import Registry

            made = Registry(
                self._host,
                write=True,
                plain_http=self._plain_http,
                ca_bundle=_site_ca,
                on_retry=self._on_retry,
            )
            self._registry = self._stack.enter_context(made)
        return self._registry


def _site_ca() -> str:
    from rlbox.machine.act.site import site_ca

    return site_ca()


def _push(
    app: App, image: dict[str, Any], tag: str, reference: Reference, opened: _Opened, *, plain_http: bool
) -> Pushed:
    from rlbox.registry.act.push import push_image
    from rlbox.registry.act.view import push_view

    with push_view(live=app.interactive, quiet=app.verbosity < 0) as on_layer:
        return push_image(image, tag, reference, opened, plain_http=plain_http, on_layer=on_layer, on_retry=app.say)


def _attach(app: App, name: str, reference: Reference, pushed: Pushed, opened: _Opened) -> tuple[str, ...]:
    from rlbox.files.act.folders import cache_folder

    folder = cache_folder("images", name)
    if not folder.is_dir():
        return ()
    from rlbox.registry.act.attach import about, attach, find_attachments

    found = find_attachments(folder)
    files = about(found, pushed.manifest)
    if len(files) < len(found):
        app.say(f"note: the SBOM in {folder} is of another build; `rlbox build {name} --rebuild` writes this one's")
    return attach(opened, reference, pushed.manifest.descriptor, files) if files else ()


def _copy(app: App, reference: Reference, pushed: Pushed, opened: _Opened) -> str:
    from rlbox.registry.act.gzip_copy import SUFFIX, needs_copy, push_gzip_copy

    if not needs_copy(pushed.manifest):
        app.say("no layer is zstd: engines of every age unpack this image, no second tag is made")
        return ""
    app.say(f"making {reference}{SUFFIX}: the same contents, layers compressed with gzip")
    return push_gzip_copy(opened(), reference.repository, reference.tag, pushed.manifest)


def _report(app: App, name: str, reference: Reference, pushed: Pushed, attached: tuple[str, ...], copy: str) -> None:
    digest, count = pushed.manifest.digest, pushed.count
    if not pushed.exact:
        app.say("note: this engine packs layers as it pushes and keeps no digest of its own; the registry's is printed")
    if not copy and any(layer.media_type.endswith("zstd") for layer in pushed.manifest.layers):
        app.say("note: its layers are zstd; engines before Docker 23 need `--gzip`, or `rlbox save` and `rlbox load`")
    data = {
        "target": name,
        "reference": str(reference),
        "digest": digest,
        "layers": {"total": count.total, "pushed": count.pushed, "present": count.present},
        "bytes": count.size,
        "exact": pushed.exact,
        "attached": list(attached),
        "gzip": reference.pinned(copy) if copy else None,
    }
    app.result(data, "\n".join(filter(None, (reference.pinned(digest), copy and reference.pinned(copy)))))
    app.say(f"next: docker pull {reference.pinned(digest)}")


def _dry_run(app: App, name: str, tag: str, reference: Reference, *, gzip: bool) -> None:
    places = [str(reference), *([f"{reference}-gzip"] if gzip else [])]
    app.result(
        {"target": name, "image": tag, "reference": str(reference), "places": places},
        "\n".join(f"push {tag} to {place}" for place in places),
    )
