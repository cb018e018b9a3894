"""Where an image goes: a tag in a registry."""

from __future__ import annotations

from dataclasses import dataclass

from rlbox.engine.oci import Manifest
from rlbox.engine.reference import Reference
from rlbox.registry.act.client import Registry


@dataclass(frozen=True, kw_only=True)
class Destination:
    """A tag of a registry; `plain_http` says whether http was allowed to a registry on another machine."""

    reference: Reference
    registry: Registry
    plain_http: bool = False

    def find(self) -> Manifest | None:
        """Return what the tag names now, None when there is nothing of that name yet."""
        return self.registry.find_manifest(self.reference.repository, self.reference.tag)

    def get(self) -> Manifest:
        """Return what the tag names; `RegistryError` when there is nothing of that name."""
        return self.registry.get_manifest(self.reference.repository, self.reference.tag)
