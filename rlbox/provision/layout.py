"""Where an applied target lies on a machine: at the image's own paths, or as the same tree below a prefix."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.values import OWN, VENV

_PREFIX = re.compile(r"/[A-Za-z0-9._+/-]*[A-Za-z0-9_]")
_BELOW = ("/opt/", "/usr/local/bin/")
"""What has the same effect below a prefix, because the environment's PATH leads there."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where things lie.

    `prefix`: Empty: the machine itself, which takes root. Else a folder below which everything lies as in the image.
    `data_dir`: The data disk's folder on this machine.
    """

    prefix: str = ""
    data_dir: str

    def add_prefix(self, path: str) -> str:
        return f"{self.prefix}{path}"

    @property
    def rlbox_dir(self) -> str:
        return self.add_prefix(OWN)

    @property
    def venv_python_path(self) -> str:
        return self.add_prefix(f"{VENV}/bin/python")

    @property
    def record_path(self) -> str:
        return f"{self.rlbox_dir}/share/applied.json"

    def format_apply_command(self, target: str) -> str:
        return f"rlbox apply {target}" + (f" --prefix {self.prefix}" if self.prefix else "")

    def is_image_path_in_layout(self, image_path: str) -> bool:
        return not self.prefix or image_path.startswith(_BELOW)

    def prefix_paths_in_text(self, text: str, image_paths: Sequence[str]) -> str:
        if not self.prefix:
            return text
        names = "|".join(re.escape(path) for path in sorted(image_paths, key=len, reverse=True))
        return re.sub(rf"(?<![\w./}}-])(?:{names})(?![\w.-])", lambda match: self.prefix + match[0], text)


def require_shell_safe_dir_or_empty(directory: str, option_for_errors: str = "--prefix") -> str:
    """Return a folder that can stand in shell text, in links and on `#!` lines; empty stays empty."""
    if not directory or _PREFIX.fullmatch(directory):
        return directory
    raise SpecError(
        _("{option} {prefix!r}: an absolute folder of letters, digits and ._+- is needed here").format(
            option=option_for_errors, prefix=directory
        ),
        next_step=_("name another with {option} DIR").format(option=option_for_errors),
    )
