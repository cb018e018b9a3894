"""Write `requirements.lock` from a pylock.toml (PEP 751): the hashes of files for Linux on x86-64 and of sources alone.

A lock of all platforms has four times as many hashes. Usage: `python scripts/linux_lock.py PYLOCK >requirements.lock`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.utils import parse_wheel_filename

from rlbox.foreign import parse_untrusted_toml


def format_requirement(package: dict[str, Any]) -> str:
    marker = f" ; {package['marker']}" if package.get("marker") else ""
    files = [file for file in package.get("wheels", []) if fits(file["url"].rpartition("/")[2])]
    files += [package["sdist"]] if "sdist" in package else []
    hashes = sorted({file["hashes"]["sha256"] for file in files})
    first = f"{package['name']}=={package['version']}{marker}"
    return " \\\n    ".join((first, *(f"--hash=sha256:{one}" for one in hashes)))


def fits(wheel: str) -> bool:
    """Tell whether a wheel is for Linux on x86-64 with glibc, or for any machine."""
    platforms = {tag.platform for tag in parse_wheel_filename(wheel)[3]}
    return any(one == "any" or (one.startswith("manylinux") and one.endswith("x86_64")) for one in platforms)


def iter_lines(pylock: Path) -> Iterator[str]:
    yield from map(format_requirement, parse_untrusted_toml(pylock.read_text("utf-8"))["packages"])


if __name__ == "__main__":
    sys.stdout.write("".join(f"{line}\n" for line in iter_lines(Path(sys.argv[1]))))
