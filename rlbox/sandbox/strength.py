"""Of which layers the wall around a program is made, and whether that is enough."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

NAMESPACES, LANDLOCK, SECCOMP, FORKS, GROUP = "namespaces", "landlock", "seccomp", "forks", "group"
LAYERS = (NAMESPACES, LANDLOCK, SECCOMP, FORKS, GROUP)
"""`namespaces`: own processes, network, mounts, IPC. `landlock`: files. `seccomp`: system calls. `forks`: each new
process or thread is asked for, so that there are never more than the limit, and none once the end has begun. `group`: a
control group that counts, bounds and ends all processes of a request."""
WEAK = "limits only"


@dataclass(frozen=True, kw_only=True)
class Strength:
    """The layers that a program had, and why it had not the others: layer to the kernel's answer."""

    layers: tuple[str, ...]
    missing: dict[str, str]

    @property
    def contained(self) -> bool:
        """Whether files, network and other processes are out of a program's reach."""
        return SECCOMP in self.layers and (NAMESPACES in self.layers or LANDLOCK in self.layers)

    @property
    def name(self) -> str:
        """Return the layers in one word, as it stands in every result."""
        return "+".join(self.layers) if self.contained else WEAK

    @classmethod
    def of(cls, layers: Iterable[str], missing: dict[str, str]) -> Strength:
        """Return the strength with its layers in their order."""
        had = set(layers)
        return cls(layers=tuple(layer for layer in LAYERS if layer in had), missing=missing)
