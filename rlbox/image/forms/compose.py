"""A target's container as `compose.yaml`, for sites that start containers with Docker Compose."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rlbox.engine.container import DISK_CAPABILITIES, format_device_mappings
from rlbox.engine.gpu_access import CDI_KIND, GpuRequest, parse_gpus_option
from rlbox.image.templates import quote_compose, render_template

if TYPE_CHECKING:  # pydantic is slow to import, and whoever only names the file does not need it
    from rlbox.engine.container import ContainerDefaults
    from rlbox.target.target import Target

TEMPLATE = "compose.yaml.j2"
_OWN_IMAGE = '"rlbox/{}:${{RLBOX_PROJECT_NAME:?as `rlbox images` says it}}"'
GPU_METHODS = ("gpus", "cdi")
"""By which of an engine's ways a service gets GPUs: as `docker run --gpus` does, or by the names of CDI."""


def render_compose_files(target: Target, container: ContainerDefaults, template_dirs: Sequence[Path]) -> dict[str, str]:
    """Return the file that `rlbox render` writes, path to text; none where the platform's machines have no Docker."""
    if target.hardware.platform:
        return {}
    text = render_compose(target, container, template_dirs, add_render_header=True)
    return {f"images/{target.name}/compose.yaml": text}


def render_compose(
    target: Target,
    container: ContainerDefaults,
    template_dirs: Sequence[Path],
    *,
    local_tag: str = "",
    registry_image: str = "",
    gpus: str = "",
    gpu_method: Literal["gpus", "cdi"] = "gpus",
    add_render_header: bool = False,
) -> str:
    """Return the text of a compose file with one service, named like the target, that has its limits and data disk.

    Parameters
    ----------
    local_tag, registry_image
        Name in the engine, never pulled (empty: Compose is told the project's); name in a registry, pulled where it is
        missing.
    gpus, gpu_method
        Which GPUs, as `--gpus` takes them (empty: the target's own), and one of `GPU_METHODS`.
    add_render_header
        Whether it is the file that `rlbox render` writes; the first line says so.
    """
    values: dict[str, Any] = {
        "target": target,
        "container": container,
        "image": quote_compose(registry_image or local_tag)
        if registry_image or local_tag
        else _OWN_IMAGE.format(target.name),
        "pulled": bool(registry_image),
        "committed": add_render_header,
        "capabilities": sorted({*DISK_CAPABILITIES, *container.cap_add}),
        "devices": format_device_mappings(container),
        "by_caller": container.user == "caller",
        "ulimits": _ulimits(container.ulimits),
        "gpus": _gpus(parse_gpus_option(gpus, container.gpus), gpu_method),
        "disk": _disk(container.host),
    }
    return render_template(template_dirs, TEMPLATE, values)


def _gpus(request: GpuRequest, gpu_method: str) -> str:
    """Return the reservation of a service's GPUs as YAML; empty for none."""
    if request.is_none:
        return ""
    if gpu_method == "gpus":
        which = (
            f"device_ids: {json.dumps(request.ids)}" if request.ids else f"count: {request.count_unless_all or 'all'}"
        )
        return f"{{driver: nvidia, {which}, capabilities: [gpu]}}"
    ids = request.ids or (map(str, range(request.count_unless_all)) if request.count_unless_all else ("all",))
    names = json.dumps([f"{CDI_KIND}={name}" for name in ids])
    return f"{{driver: cdi, device_ids: {names}, capabilities: [gpu]}}"


def _disk(host: str) -> str:
    """Return the data disk: `RLBOX_DATA`, else the target's own directory; Compose expands a leading `~`."""
    if not host:
        return '"${RLBOX_DATA:?name the data disk, a directory of this host}"'
    return f'"${{RLBOX_DATA:-{quote_compose(host)[1:-1]}}}"'


def _ulimits(limits: Mapping[str, str]) -> list[tuple[str, tuple[str, str]]]:
    rows = [(name, limit.partition(":")) for name, limit in sorted(limits.items())]
    return [(name, (soft, hard or soft)) for name, (soft, _, hard) in rows]
