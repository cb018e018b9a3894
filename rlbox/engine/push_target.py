"""What `rlbox push` does."""

from __future__ import annotations

from typing import Any

from rlbox.amounts import size_text
from rlbox.app import App
from rlbox.engine.attach import about, attach, find_attachments
from rlbox.engine.push import Pushed, push_image
from rlbox.engine.push_log import PushedLayer
from rlbox.engine.reference import Reference
from rlbox.engine.registry_client import Destination, Registry
from rlbox.system.files import cache_path
from rlbox.system.network_settings import find_ca_bundle
from rlbox.system.progress import ProgressItem, show_progress

_MARKS = {"pushed": "✓", "present": "="}


class ImagePush:
    """The push of one target's image `tag`: where it goes, and the steps in their order."""

    def __init__(
        self, app: App, name: str, tag: str, reference: Reference, *, plain_http: bool, forced: str = ""
    ) -> None:
        self._app, self._name, self._tag, self._reference = app, name, tag, reference
        self._plain_http, self._forced = plain_http, forced

    def carry_out(self, image: dict[str, Any]) -> int:
        """Push the image that the engine describes so, prove that the registry has it, attach what explains it."""
        if self._app.dry_run:
            return self._look()
        host, plain = self._reference.host, self._plain_http
        with Registry(host, write=True, plain_http=plain, ca_bundle=find_ca_bundle, on_retry=self._app.say) as registry:
            destination = Destination(reference=self._reference, registry=registry, plain_http=plain)
            pushed = self._push(image, destination)
            attached = self._attach(pushed, destination)
        self._report(pushed, attached)
        return 0

    def _push(self, image: dict[str, Any], destination: Destination) -> Pushed:
        app = self._app
        with show_progress(app) as show:
            return push_image(image, self._tag, destination, on_layer=lambda layer: show(_row(layer)), on_retry=app.say)

    def _attach(self, pushed: Pushed, destination: Destination) -> tuple[str, ...]:
        folder = cache_path("images", self._name)
        if not folder.is_dir():
            return ()
        found = find_attachments(folder)
        files = about(found, pushed.manifest)
        if found and not files:
            next_step = f"`rlbox build {self._name} --rebuild` writes this one's"
            self._app.say(f"note: the SBOM in {folder} is of another build; {next_step}")
        return attach(destination, pushed.manifest.descriptor, files) if files else ()

    def _report(self, pushed: Pushed, attached: tuple[str, ...]) -> None:
        app, reference = self._app, self._reference
        digest, count = pushed.manifest.digest, pushed.count
        if not pushed.exact:
            app.say(
                "note: this engine packs layers as it pushes and keeps no digest of its own; the registry's is printed"
            )
        if any(layer.media_type.endswith("zstd") for layer in pushed.manifest.layers):
            app.say("note: its layers are zstd; an engine before Docker 23 needs `rlbox save` and `rlbox load` instead")
        data: dict[str, Any] = {
            "target": self._name,
            "reference": str(reference),
            "digest": digest,
            "layers": {"total": count.total, "pushed": count.pushed, "present": count.present},
            "bytes": count.size,
            "exact": pushed.exact,
            "attached": list(attached),
        }
        data |= {"forced": self._forced} if self._forced else {}
        app.result(data, reference.pinned(digest))
        app.say(f"next: docker pull {reference.pinned(digest)}")

    def _look(self) -> int:
        tag, reference = self._tag, str(self._reference)
        self._app.not_checked("a dry run asks no registry", f"whether {self._reference.host} takes it")
        data = {"target": self._name, "image": tag, "reference": reference}
        return self._app.planned(data, f"push {tag} to {reference}", f"push {tag}")


def _row(layer: PushedLayer) -> ProgressItem:
    mark, total = _MARKS.get(layer.state, ""), max(layer.total, layer.done)
    word = "already there" if layer.state == "present" else layer.state
    told = word + (f"  {size_text(layer.total)}" if layer.total else "")
    title = layer.key if mark else f"{layer.key}  {word}"
    return ProgressItem(
        key=layer.key, title=title, mark=mark, told=told, done=total if mark else layer.done, total=total
    )
