"""A target's container as `compose.yaml`, for sites that start containers with Docker Compose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlbox.plan.reference import image_tag
from rlbox.plan.render import quote_compose, render

if TYPE_CHECKING:  # pydantic is slow to import, and whoever only names the file does not need it
    from rlbox.plan.image import ContainerDefaults
    from rlbox.spec.target import Target

TEMPLATE = "compose.yaml.j2"
GPU_ACCESS = ("runtime", "cdi", "none")
"""How the engine gives GPUs: by NVIDIA's runtime, by CDI (engine 25 or newer that has it switched on), not at all."""


def committed_compose(
    target: Target, container: ContainerDefaults, templates: Sequence[Path], bytecode: Path | None
) -> dict[str, str]:
    """Return the file that `rlbox render` writes, path to text; none where the platform's machines have no Docker."""
    if target.hardware.platform:
        return {}
    text = plan_compose(target, container, templates, bytecode, committed=True)
    return {f"images/{target.name}/compose.yaml": text}


def plan_compose(
    target: Target,
    container: ContainerDefaults,
    templates: Sequence[Path],
    bytecode: Path | None,
    *,
    image: str = "",
    gpus: str = "runtime",
    committed: bool = False,
) -> str:
    """Return the text of a compose file with one service, named like the target, that has its limits and data disk.

    Parameters
    ----------
    image
        Name in a registry, pulled where it is missing; empty: the tag of `rlbox build`, never pulled.
    gpus
        One of `GPU_ACCESS`; a target without GPUs gets none.
    committed
        Whether it is the file that `rlbox render` writes; the first line says so.
    """
    values: dict[str, Any] = {
        "target": target,
        "container": container,
        "tag": image_tag(target.name),
        "image": image,
        "committed": committed,
        "by_caller": container.user == "caller",
        "ulimits": _ulimits(container.ulimits),
        "gpus": gpus if container.gpus else "none",
        "disk": _disk(container.host),
    }
    return render(templates, TEMPLATE, values, bytecode)


def _disk(host: str) -> str:
    """Return the data disk: `RLBOX_DATA`, else the target's own directory; Compose expands a leading `~`."""
    if not host:
        return '"${RLBOX_DATA:?name the data disk, a directory of this host}"'
    return f'"${{RLBOX_DATA:-{quote_compose(host)[1:-1]}}}"'


def _ulimits(limits: Mapping[str, str]) -> list[tuple[str, tuple[str, str]]]:
    rows = [(name, limit.partition(":")) for name, limit in sorted(limits.items())]
    return [(name, (soft, hard or soft)) for name, (soft, _, hard) in rows]
