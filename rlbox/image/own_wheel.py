"""The wheel of the rlbox that runs here, made from its own files, for a machine that has none."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

from rlbox import __version__
from rlbox.app import own_requirements
from rlbox.image.context import package_entries

_INFO = f"rlbox-{__version__}.dist-info"
_PYTHON = ">=3.10"
_TIME = (1980, 1, 1, 0, 0, 0)  # the same files give the same bytes


def write_wheel(folder: Path) -> Path:
    """Write the wheel into `folder` and return its path; a checkout and an installed package give the same file."""
    path = folder / f"rlbox-{__version__}-py3-none-any.whl"
    files = {name: (source.read_bytes(), source.stat().st_mode & 0o100) for name, source in package_entries().items()}
    files |= {f"{_INFO}/{name}": (text.encode(), 0) for name, text in _metadata().items()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (data, executable) in sorted(files.items()):
            archive.writestr(_member(name, executable), data)
        record = "".join(f"{name},{_digest(data)},{len(data)}\n" for name, (data, _) in sorted(files.items()))
        archive.writestr(_member(f"{_INFO}/RECORD", 0), f"{record}{_INFO}/RECORD,,\n")
    return path


def _metadata() -> dict[str, str]:
    needs = [f"Requires-Dist: {line}" for line in own_requirements()]
    about = ["Metadata-Version: 2.1", "Name: rlbox", f"Version: {__version__}", f"Requires-Python: {_PYTHON}", *needs]
    return {
        "METADATA": "\n".join([*about, ""]),
        "WHEEL": "Wheel-Version: 1.0\nGenerator: rlbox\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "entry_points.txt": "[console_scripts]\nrlbox = rlbox.cli:main\n",
    }


def _member(name: str, executable: int) -> zipfile.ZipInfo:
    row = zipfile.ZipInfo(name, _TIME)
    row.compress_type = zipfile.ZIP_DEFLATED
    row.external_attr = (0o100755 if executable else 0o100644) << 16
    return row


def _digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
