"""The layers of a push as they stand, and how much had to be sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rlbox.engine.oci import Descriptor

LayerState = Literal["waiting", "pushing", "pushed", "present"]


@dataclass(frozen=True, kw_only=True)
class PushedLayer:
    """One layer of a push; `key` is the engine's short id, `done` and `total` are bytes."""

    key: str
    state: LayerState = "waiting"
    done: int = 0
    total: int = 0


@dataclass(frozen=True, kw_only=True)
class PushCount:
    """How many layers a push had to send, and their bytes as stored in the registry."""

    total: int
    pushed: int
    present: int
    size: int


def count_push(layers: Mapping[str, PushedLayer], stored: Sequence[Descriptor], contents: Sequence[str]) -> PushCount:
    """Return what was sent.

    Parameters
    ----------
    layers
        By the engine's id: the first 12 digits of the digest of the stored blob, or, in an engine without the
        containerd store, of the layer's unpacked content.
    stored, contents
        The image's layers in the registry and the digests of their contents, in the same order.
    """
    pushed = {key for key, layer in layers.items() if layer.state == "pushed"}
    sizes = {blob.digest: blob.size for blob in stored}
    sent = {
        blob.digest
        for blob, content in zip(stored, contents, strict=False)
        if pushed & {layer_key(blob.digest), layer_key(content)}
    }
    size = sum(sizes[digest] for digest in sent)
    return PushCount(total=len(sizes), pushed=len(sent), present=len(sizes) - len(sent), size=size)


def layer_key(digest: str) -> str:
    """Return the first 12 digits of a digest, by which the engine calls a layer."""
    return digest.partition(":")[2][:12]
