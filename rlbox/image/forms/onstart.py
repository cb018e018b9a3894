"""The on-start script of a target: what vast.ai runs at every start of an instance, within its size limit."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlbox.errors import SpecError, get_docs_url
from rlbox.i18n import _
from rlbox.image.templates import render_template
from rlbox.secrets.masks import find_secret_line_numbers
from rlbox.target.target import Target

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
        """Bytes of the field."""
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

    Parameters
    ----------
    added_script
        The user's own shell text: carried out at every start, after everything else.
    upload_dir
        Folder of the instance that gets rlbox's wheel and the user's project over ssh, for an image without rlbox.
    ignore_stack_conflicts
        Install a stack there that contradicts itself.

    Raises
    ------
    SpecError
        The target is not for vast.ai, `added_script` has what looks like a secret, or it is too large even packed.
    """
    require_vast_target(target)
    if found := find_secret_line_numbers(added_script):
        raise SpecError(
            _("line {found} of the added text looks like a secret, and the platform keeps the script").format(
                found=found[0]
            ),
            next_step=_("put the value into .env on the data disk, or into the account's variables ({page})").format(
                page=get_docs_url("vast")
            ),
        )
    values = {
        "name": target.name,
        "page": get_docs_url("vast"),
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


def render_onstart_files(target: Target, template_dirs: Sequence[Path]) -> dict[str, str]:
    """Return the script of a target of vast.ai as a rendered file: path in the project folder to text."""
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
        )


def _fits(text: str) -> bool:
    return max(len(text), len(text.encode())) <= ONSTART_FIELD_LIMIT
