"""What `rlbox push` does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from rlbox.engine.act.api import find_image
from rlbox.engine.reference import Reference, image_tag, push_reference
from rlbox.errors import EngineError
from rlbox.registry.act.destination import Destination

if TYPE_CHECKING:
    from rlbox.app import App
    from rlbox.registry.act.client import Registry
    from rlbox.registry.act.push import Pushed


def push_target(app: App, name: str, destination: str, *, plain_http: bool, gzip: bool) -> None:
    """Push the image of a target, prove that the registry has it, attach what explains it."""
    ImagePush(app, name, push_reference(destination, name), plain_http=plain_http, gzip=gzip).carry_out()


class ImagePush:
    """The push of one target's image: where it goes, and the steps in their order."""

    def __init__(self, app: App, name: str, reference: Reference, *, plain_http: bool, gzip: bool) -> None:
        self._app, self._name, self._reference, self._gzip = app, name, reference, gzip
        self._plain_http = plain_http
        self._tag = image_tag(name)

    def carry_out(self) -> None:
        """Push, attach and report the image."""
        self._app.project.target_file(self._name)
        if self._app.dry_run:
            self._dry_run()
            return
        image = find_image(self._tag)
        if image is None:
            raise EngineError(f"the engine has no image {self._tag}", next_step=f"rlbox build {self._name}")
        with ExitStack() as stack:
            opened = _Opened(stack, self._reference.host, plain_http=self._plain_http, on_retry=self._app.say)
            destination = Destination(reference=self._reference, registry=opened, plain_http=self._plain_http)
            pushed = self._push(image, destination)
            attached = self._attach(pushed, destination)
            copy = self._copy(pushed, destination) if self._gzip else ""
        self._report(pushed, attached, copy)

    def _push(self, image: dict[str, Any], destination: Destination) -> Pushed:
        from rlbox.registry.act.push import push_image
        from rlbox.registry.act.view import push_view

        app = self._app
        with push_view(live=app.interactive, quiet=app.verbosity < 0) as on_layer:
            return push_image(image, self._tag, destination, on_layer=on_layer, on_retry=app.say)

    def _attach(self, pushed: Pushed, destination: Destination) -> tuple[str, ...]:
        from rlbox.files.act.folders import cache_folder

        folder = cache_folder("images", self._name)
        if not folder.is_dir():
            return ()
        from rlbox.registry.act.attach import about, attach, find_attachments

        found = find_attachments(folder)
        files = about(found, pushed.manifest)
        if len(files) < len(found):
            next_step = f"`rlbox build {self._name} --rebuild` writes this one's"
            self._app.say(f"note: the SBOM in {folder} is of another build; {next_step}")
        return attach(destination, pushed.manifest.descriptor, files) if files else ()

    def _copy(self, pushed: Pushed, destination: Destination) -> str:
        from rlbox.registry.act.gzip_copy import SUFFIX, needs_copy, push_gzip_copy

        if not needs_copy(pushed.manifest):
            self._app.say("no layer is zstd: engines of every age unpack this image, no second tag is made")
            return ""
        reference = self._reference
        self._app.say(f"making {reference}{SUFFIX}: the same contents, layers compressed with gzip")
        return push_gzip_copy(destination.registry(), reference.repository, reference.tag, pushed.manifest)

    def _report(self, pushed: Pushed, attached: tuple[str, ...], copy: str) -> None:
        app, reference = self._app, self._reference
        digest, count = pushed.manifest.digest, pushed.count
        if not pushed.exact:
            app.say(
                "note: this engine packs layers as it pushes and keeps no digest of its own; the registry's is printed"
            )
        if not copy and any(layer.media_type.endswith("zstd") for layer in pushed.manifest.layers):
            app.say(
                "note: its layers are zstd; engines before Docker 23 need `--gzip`, or `rlbox save` and `rlbox load`"
            )
        data = {
            "target": self._name,
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

    def _dry_run(self) -> None:
        tag, reference = self._tag, str(self._reference)
        places = [reference, *([f"{reference}-gzip"] if self._gzip else [])]
        self._app.result(
            {"target": self._name, "image": tag, "reference": reference, "places": places},
            "\n".join(f"push {tag} to {place}" for place in places),
        )


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
