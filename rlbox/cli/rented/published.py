"""Whether the registry has the image that the platform is to pull: asked before anything costs money."""

from __future__ import annotations

from rlbox.app import App


def require_published(app: App, image: str) -> None:
    """Raise `RegistryError` when an image is not in its registry; what cannot be told from here is only said.

    A registry that wants a login, or is not reached from here, may answer the platform.
    """
    from rlbox.engine.reference import parse_reference
    from rlbox.engine.registry_client import Registry
    from rlbox.errors import RegistryError
    from rlbox.system.network_settings import find_ca_bundle

    reference = parse_reference(image)
    try:
        with Registry(reference.host, ca_bundle=find_ca_bundle, pause=lambda seconds: None) as registry:
            found = registry.find_manifest(reference.repository, reference.digest or reference.tag or "latest")
    except RegistryError as error:
        if app.dry_run:
            app.not_checked(error.what, f"image {image}")
        else:
            app.say(f"not checked: image {image}: {error.what}")
        return
    if found is None:
        raise RegistryError(
            f"{reference.host} has no image {image}",
            where=reference.host,
            next_step="rlbox push TARGET --to REGISTRY/NAME:TAG, then --image that",
        )
