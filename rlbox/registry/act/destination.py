"""Where an image goes: a tag in a registry, which is asked in the cheapest way that answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rlbox.engine.oci import Manifest
from rlbox.engine.reference import Reference, is_loopback
from rlbox.registry.act.peek import peek_manifest

if TYPE_CHECKING:
    from rlbox.registry.act.client import Registry


@dataclass(frozen=True, kw_only=True)
class Destination:
    """A tag of a registry; `registry` opens it, and is called only when a look without it does not do.

    `plain_http` says whether http was allowed to a registry on another machine.
    """

    reference: Reference
    registry: Callable[[], Registry]
    plain_http: bool = False

    def peek(self, tag: str = "") -> Manifest | None:
        """Return the manifest of the tag, or of another one of the repository, where one request answers; else None."""
        return peek_manifest(replace(self.reference, tag=tag) if tag else self.reference)

    def find(self) -> Manifest | None:
        """Return what the tag names now, None when there is nothing of that name yet."""
        if is_loopback(self.reference.host):
            return self.peek()
        self.registry().ping()
        return self.registry().find_manifest(self.reference.repository, self.reference.tag)

    def get(self) -> Manifest:
        """Return what the tag names; `RegistryError` when there is nothing of that name."""
        return self.peek() or self.registry().get_manifest(self.reference.repository, self.reference.tag)
