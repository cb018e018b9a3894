"""Other tools' forms of a target: compose, Apptainer, the start script of a platform."""

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
from rlbox.image.templates import quote_compose, render_template, render_template_text
from rlbox.target.platform import PLATFORM_FILES, Platform, ScriptField, load_platform
from rlbox.target.target import Target

_OWN_IMAGE = '"rlbox/{}:${{RLBOX_PROJECT_NAME:?as `rlbox images` says it}}"'


def render_compose_by_path_empty_if_no_docker(
    target: Target, container: ContainerDefaults, template_dirs: Sequence[Path]
) -> dict[str, str]:
    """Return the file that `rlbox render` writes, path to text; none where the platform's machines have no Docker."""
    if target.hardware.platform and not load_platform(target.hardware.platform).has_docker:
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


SANDBOX_PORT = 28080
"""Port of the code sandbox: the platform has 22 and 8080, its portal 1111, 6006, 8384 and 10000 above each.

Source: vast-ai/base-image README; the fix `sandbox-service`.
"""


@dataclass(frozen=True, kw_only=True)
class OnstartScript:
    """A start script; `field_text` goes into the platform's field, and has the `script` packed if it is too long."""

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
    platform: Platform,
    template_dirs: Sequence[Path],
    added_script: str = "",
    upload_dir: str = "",
    *,
    as_provisioning_script: bool = False,
    ignore_stack_conflicts: bool = False,
) -> OnstartScript:
    """Return the start script of a target on a platform.

    `added_script`: Shell text that is carried out at every start, after everything else.
    `upload_dir`: Folder of the instance that gets rlbox's wheel and the user's project over ssh, for an image without
      rlbox.
    `is_provisioning`: Return the file that the platform's own images download and run.
    `ignore_stack_conflicts`: Install a stack there that contradicts itself.
    Raises SpecError: the platform has no such file, or the script is too large even packed.
    """
    field = _require_provisioning(platform) if as_provisioning_script else platform.script
    values = {
        "name": target.name,
        "page": get_main_docs_url("vast") if platform.name == "vast" else get_main_docs_url("onstart-platforms"),
        "platform": platform,
        "rented": bool(target.hardware.platform),  # only such a target has rlbox-init and keep-running
        "disk": target.disk.mount,
        "linked_disk": _data_disk_elsewhere_or_empty(target, platform),
        "sandbox_port": SANDBOX_PORT,
        "added": added_script.rstrip("\n"),
        "sent": upload_dir,
        "force": ignore_stack_conflicts,
    }
    script = render_template(template_dirs, "onstart.sh.j2", values)
    packed = base64.encodebytes(gzip.compress(script.encode(), mtime=0)).decode().strip()
    values |= {"script": script, "count": len(script.encode())}
    values |= {"packed": packed, "packed_line": packed.replace("\n", "")}
    plain_text = render_template_text(template_dirs, field.plain, values)
    if _fits(plain_text, field):
        return OnstartScript(target=target.name, script=script, field_text=plain_text, encoding="plain")
    packed_text = render_template_text(template_dirs, field.packed or field.plain, values)
    if not _fits(packed_text, field):
        raise SpecError(
            _("the script has {count} bytes, {text_count} packed, and the on-start field takes {limit}").format(
                count=len(script.encode()), text_count=len(packed_text), limit=field.limit_bytes
            ),
            next_step=_("put the added lines into the image or on the data disk, and add the line that calls them"),
        )
    return OnstartScript(target=target.name, script=script, field_text=packed_text, encoding="gzip")


def _data_disk_elsewhere_or_empty(target: Target, platform: Platform) -> str:
    """Return the platform's data disk if the target expects another path: that becomes a link to it."""
    disk = platform.disk
    return disk.path if disk.is_separate and disk.path != target.disk.mount else ""


def render_onstart_files_or_empty(target: Target, template_dirs: Sequence[Path]) -> dict[str, str]:
    if target.hardware.platform != "vast":
        return {}
    script = render_onstart(target, load_platform("vast"), template_dirs)
    return {f"images/{target.name}/onstart.sh": script.field_text}


def require_vast_target(target: Target) -> None:
    if target.hardware.platform != "vast":
        raise SpecError(
            _("target {target} is not for vast.ai: hardware.platform is {platform!r}").format(
                target=target.name, platform=target.hardware.platform
            ),
            where=f"images/{target.name}/target.toml",
            next_step=_('choose a target of vast.ai, as vast-5090; or in your own, hardware.platform = "vast"'),
        )


def require_platform_of_target(target: Target) -> Platform:
    if not target.hardware.platform:
        raise SpecError(
            _("target {target} is for no platform: hardware.platform is ''").format(target=target.name),
            where=f"images/{target.name}/target.toml",
            next_step=_("name one: rlbox onstart {target} --platform {names}").format(
                target=target.name, names="|".join(PLATFORM_FILES)
            ),
        )
    return load_platform(target.hardware.platform)


def _require_provisioning(platform: Platform) -> ScriptField:
    if platform.provisioning is None:
        raise SpecError(
            _("{platform} has no variable that names a script to download").format(platform=platform.title),
            next_step=_("leave out --provisioning"),
        )
    return platform.provisioning


def _fits(text: str, field: ScriptField) -> bool:
    return not field.limit_bytes or max(len(text), len(text.encode())) <= field.limit_bytes
