"""The image of a cluster: what it is made of, and what tells that an engine has the very same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlbox.engine.oci import Descriptor
from rlbox.foreign import whole_number

_ZSTD_SINCE = 23  # source: Docker Engine 23.0 release notes, "zstd"


def unpacks_zstd(version: str) -> bool:
    """Tell of an engine by its version whether it takes layers that are packed by zstd; one that tells none does."""
    major = whole_number(version.partition(".")[0])
    return major is None or major >= _ZSTD_SINCE


@dataclass(frozen=True, kw_only=True)
class SentImage:
    """An image as it is given to nodes.

    `digest` names what is pulled, `manifests` are the documents behind it by digest, each with its media type; `parts`
    its configuration and layers. `identity` is the configuration's digest: an engine with the older store calls the
    image by that, one with containerd's by the manifest's; it covers what every layer holds.
    """

    digest: str
    identity: str
    manifests: Mapping[str, tuple[str, str]]
    parts: tuple[Descriptor, ...]

    @property
    def names(self) -> frozenset[str]:
        """What engines call it."""
        return frozenset((self.digest, self.identity, *self.manifests))

    @property
    def sizes(self) -> dict[str, int]:
        """Return the size of each part, in bytes."""
        return {part.digest: part.size for part in self.parts}

    def rows(self) -> dict[str, dict[str, str]]:
        """Return the manifests as a node's program takes them."""
        return {digest: {"type": kind, "text": text} for digest, (kind, text) in self.manifests.items()}
