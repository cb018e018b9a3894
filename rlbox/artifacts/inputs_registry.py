"""Keep the files of a lock in a registry, and take them from one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlbox.artifacts.base_image import fill_from_registry
from rlbox.artifacts.inputs import InputsPlan, is_inputs
from rlbox.artifacts.inputs_folder import Imported
from rlbox.artifacts.objects import Store
from rlbox.engine.oci import MANIFEST, TITLE, Descriptor
from rlbox.engine.reference import Reference
from rlbox.engine.registry_client import Registry
from rlbox.errors import RegistryError
from rlbox.i18n import _
from rlbox.target.artifact import Artifact


def export_registry(
    plan: InputsPlan,
    files: Sequence[Artifact],
    store: Store,
    to: Reference,
    ca_bundle: str,
    on_file: Callable[[str], None] = lambda title: None,
) -> None:
    """Upload `files` and tag them; what the registry has is not sent again. `RegistryError` when it refuses."""
    with Registry(to.host, write=True, ca_bundle=ca_bundle) as registry:
        for file in {file.sha256: file for file in files}.values():
            on_file(file.file.rpartition("/")[2])
            blob = Descriptor(media_type="", digest=f"sha256:{file.sha256}", size=file.size)
            registry.put_blob(to.repository, blob, store.path(file.sha256))
        registry.put_blob(to.repository, plan.lock_blob, plan.lock)
        registry.put_manifest(to.repository, to.tag or "latest", plan.manifest, MANIFEST)


def import_registry(
    source: Reference, store: Store, ca_bundle: str, on_file: Callable[[str], None] = lambda title: None
) -> Imported:
    """Take the files of a lock from a registry into the store; wrong bytes are named, the right ones kept.

    Raises
    ------
    RegistryError
        There is nothing under that name, or something that `rlbox fetch --export` did not put there.
    """
    taken, bad = 0, []
    with Registry(source.host, ca_bundle=ca_bundle) as registry:
        manifest = registry.get_manifest(source.repository, source.digest or source.tag or "latest")
        config = manifest.config
        if config is None or not is_inputs(manifest):
            raise RegistryError(
                _("{source} is no export of rlbox").format(source=source),
                next_step="rlbox fetch TARGET --export " + str(source),
            )
        for layer in manifest.layers:
            file = _artifact(layer, source)
            if store.intact(file.sha256, file.size):
                continue
            on_file(file.file)
            with store.draft(file.sha256) as draft:
                try:
                    fill_from_registry(registry, source.repository, file, draft)
                    draft.keep()
                    taken += 1
                except RegistryError as error:
                    bad.append(f"{file.file}: {error.what}")
        lock = registry.retry(lambda: _lock_text(registry, source, config))
    return Imported(taken=taken, present=len(manifest.layers) - taken - len(bad), bad=tuple(bad), lock=lock)


def _lock_text(registry: Registry, source: Reference, blob: Descriptor) -> bytes:
    with registry.open_blob(source.repository, blob.digest) as (__, blocks):
        return b"".join(blocks)


def _artifact(layer: Descriptor, source: Reference) -> Artifact:
    title = layer.annotations.get(TITLE, "lock.json")
    digest = layer.digest.removeprefix("sha256:")
    return Artifact(
        kind="oci", name=title, file=title, sha256=digest, size=layer.size, group="inputs", origin=str(source)
    )
