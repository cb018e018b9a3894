"""How the engine stands: what it is, where its images lie, what `rlbox engine up` would still do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlbox.amounts import size_text
from rlbox.i18n import _

ELSEWHERE = _("start that engine, or correct DOCKER_HOST (or the docker context), or unset it for this machine's own")
"""What to do about an engine that does not answer where `rlbox engine up` starts none."""
_SNAPSHOTTER = "io.containerd.snapshotter.v1"


@dataclass(frozen=True, kw_only=True)
class EngineStatus:
    """The engine at `place`; `version` is empty where none answers, `free_bytes` None where its disk is not here."""

    place: str
    version: str = ""
    keeps_bytes: bool = False
    driver: str = ""
    folder: str = ""
    free_bytes: int | None = None
    left: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        return bool(self.version) and not self.left

    @property
    def starts(self) -> bool:
        """Whether `rlbox engine up` would start one there, where none answers."""
        return bool(self.version) or self.place.startswith("unix:")

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "left": list(self.left), "ready": self.ready}

    def text(self) -> str:
        lines = [f"engine {self.version} at {self.place}" if self.version else f"no engine answers at {self.place}"]
        if self.version:
            store = "the containerd store" if self.keeps_bytes else "docker's own store, which keeps no manifests"
            free = "" if self.free_bytes is None else f", {size_text(self.free_bytes)} free"
            lines.append(f"images in {self.folder}{free}: {store} ({self.driver})")
        lines += [f"to do: {one}" for one in self.left]
        if self.left:
            lines.append("next: rlbox engine up" if self.starts else f"next: {ELSEWHERE}")
        return "\n".join(lines)


def read_info(place: str, info: Mapping[str, Any], free_bytes: int | None, left: tuple[str, ...]) -> EngineStatus:
    """Return the status from what the engine says of itself (`GET /info`)."""
    told = {str(pair[0]): str(pair[1]) for pair in info.get("DriverStatus") or () if len(pair) == 2}
    return EngineStatus(
        place=place,
        version=str(info.get("ServerVersion", "")),
        keeps_bytes=told.get("driver-type") == _SNAPSHOTTER,
        driver=str(info.get("Driver", "")),
        folder=str(info.get("DockerRootDir", "")),
        free_bytes=free_bytes,
        left=left,
    )
