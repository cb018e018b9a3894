"""Other tools' forms of a target: compose, Apptainer, the on-start script of vast.ai."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlbox.engine.container import (
    DISK_CAPABILITIES,
    ContainerDefaults,
    format_device_mappings,
    format_resource_args_without_gpus,
)
from rlbox.engine.gpu_access import GpuRequest, parse_gpus_option
from rlbox.errors import SpecError, get_main_docs_url
from rlbox.i18n import _
from rlbox.image.templates import quote_compose, render_template
from rlbox.target.target import Target

_OWN_IMAGE = '"rlbox/{}:${{RLBOX_PROJECT_NAME:?as `rlbox images` says it}}"'


def render_compose_files(target: Target, container: ContainerDefaults, template_dirs: Sequence[Path]) -> dict[str, str]:
    """Return the file that `rlbox render` writes, path to text; none where the platform's machines have no Docker."""
    if target.hardware.platform:
        return {}
    return {f"images/{target.name}/compose.yaml": render_compose(target, container, template_dirs, is_committed=True)}


def render_compose(
    target: Target,
    container: ContainerDefaults,
    template_dirs: Sequence[Path],
    *,
    local_tag: str = "",
    registry_image: str = "",
    is_committed: bool = False,
) -> str:
    """Return the text of a compose file with one service, named like the target, that has its limits and data disk.

    `local_tag` is a name in the engine, never pulled (empty: Compose is told the project's), `registry_image` one in a
    registry, pulled where it is missing.
    """
    image = registry_image or local_tag
    values: dict[str, Any] = {
        "target": target,
        "container": container,
        "image": quote_compose(image) if image else _OWN_IMAGE.format(target.name),
        "pulled": bool(registry_image),
        "committed": is_committed,
        "capabilities": sorted({*DISK_CAPABILITIES, *container.cap_add}),
        "devices": format_device_mappings(container),
        "by_caller": container.user == "caller",
        "ulimits": _ulimits(container.ulimits),
        "gpus": _gpus(parse_gpus_option("", container.gpus)),
        "disk": _disk(container.disk_host_dir),
    }
    return render_template(template_dirs, "compose.yaml.j2", values)


def _gpus(request: GpuRequest) -> str:
    if request.is_none:
        return ""
    return f"{{driver: nvidia, count: {request.count_unless_all or 'all'}, capabilities: [gpu]}}"


def _disk(host: str) -> str:
    """Return the data disk: `RLBOX_DATA`, else the target's own directory; Compose expands a leading `~`."""
    if not host:
        return '"${RLBOX_DATA:?name the data disk, a directory of this host}"'
    return f'"${{RLBOX_DATA:-{quote_compose(host)[1:-1]}}}"'


def _ulimits(limits: Mapping[str, str]) -> list[tuple[str, tuple[str, str]]]:
    rows = [(name, limit.partition(":")) for name, limit in sorted(limits.items())]
    return [(name, (soft, hard or soft)) for name, (soft, _, hard) in rows]


def render_apptainer_definition(
    target: Target, container: ContainerDefaults, template_dirs: Sequence[Path], image_or_tar_path: str
) -> str:
    """Return a definition file that starts from a name in a registry, or from an archive of `rlbox save` (`*.tar`).

    Source of the grammar: apptainer pkg/build/types/parser/deffile.go.
    """
    values = {
        "target": target,
        "container": container,
        "image": image_or_tar_path,
        "archive": image_or_tar_path.endswith(".tar"),
        "limits": " ".join(format_resource_args_without_gpus(container)),
    }
    return render_template(template_dirs, "apptainer.def.j2", values)


ONSTART_FIELD_LIMIT = 4048
"""Most characters, and most bytes, of the on-start field.

Source: vast-ai/docs api-reference/openapi.yaml:13; other pages say 4096 (with arguments) and 16 KB: the least holds.
"""
SANDBOX_PORT = 28080
"""Port of the code sandbox: the platform has 22 and 8080, its portal 1111, 6006, 8384 and 10000 above each.

Source: vast-ai/base-image README; the fix `sandbox-service`.
"""
_UNPACK = """#!/bin/sh
# Made by `rlbox onstart {name}`: a script of {count} bytes, which the on-start field cannot hold as it is.
f=/run/rlbox-onstart.sh
base64 -d <<'END' | gunzip >$f.new && mv -f $f.new $f && exec sh $f
{packed}
END
"""


@dataclass(frozen=True, kw_only=True)
class OnstartScript:
    """A script for the on-start field; `field_text` is the `script`, packed where it is too long."""

    target: str
    script: str
    field_text: str
    encoding: Literal["plain", "gzip"]

    @property
    def field_characters(self) -> int:
        return len(self.field_text)

    @property
    def field_bytes(self) -> int:
        return len(self.field_text.encode())


def render_onstart(
    target: Target,
    template_dirs: Sequence[Path],
    added_script: str = "",
    upload_dir: str = "",
    *,
    ignore_stack_conflicts: bool = False,
) -> OnstartScript:
    """Return the on-start script of a target.

    `added_script`: Shell text that is carried out at every start, after everything else.
    `upload_dir`: Folder of the instance that gets rlbox's wheel and the user's project over ssh, for an image without
      rlbox.
    `ignore_stack_conflicts`: Install a stack there that contradicts itself.
    Raises SpecError: the target is not for vast.ai, or the script is too large even packed.
    """
    require_vast_target(target)
    values = {
        "name": target.name,
        "page": get_main_docs_url("vast"),
        "disk": target.disk.mount,
        "sandbox_port": SANDBOX_PORT,
        "added": added_script.rstrip("\n"),
        "sent": upload_dir,
        "force": ignore_stack_conflicts,
    }
    script = render_template(template_dirs, "onstart.sh.j2", values)
    if _fits(script):
        return OnstartScript(target=target.name, script=script, field_text=script, encoding="plain")
    packed = base64.encodebytes(gzip.compress(script.encode(), mtime=0)).decode().strip()
    text = _UNPACK.format(name=target.name, count=len(script.encode()), packed=packed)
    if not _fits(text):
        raise SpecError(
            _("the script has {count} bytes, {text_count} packed, and the on-start field takes {limit}").format(
                count=len(script.encode()), text_count=len(text), limit=ONSTART_FIELD_LIMIT
            ),
            next_step=_("put the added lines into the image or on the data disk, and add the line that calls them"),
        )
    return OnstartScript(target=target.name, script=script, field_text=text, encoding="gzip")


def render_onstart_files_or_empty(target: Target, template_dirs: Sequence[Path]) -> dict[str, str]:
    if target.hardware.platform != "vast":
        return {}
    return {f"images/{target.name}/onstart.sh": render_onstart(target, template_dirs).field_text}


def require_vast_target(target: Target) -> None:
    if target.hardware.platform != "vast":
        raise SpecError(
            _("target {target} is not for vast.ai: hardware.platform is {platform!r}").format(
                target=target.name, platform=target.hardware.platform
            ),
            where=f"images/{target.name}/target.toml",
            next_step=_('choose a target of vast.ai, as vast-5090; or in your own, hardware.platform = "vast"'),
        )


def _fits(text: str) -> bool:
    return max(len(text), len(text.encode())) <= ONSTART_FIELD_LIMIT
