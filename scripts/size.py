"""Check the size of the checkout against its limits: `python scripts/size.py [--packages]`, 1 when one is passed.

Lines of at most 120 characters are ruff's to check.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parents[1]
MAX_MODULE_LINES = 700


class Limit(NamedTuple):
    name: str
    count: int
    most: int


def list_files() -> list[str]:
    """Return the names of files under version control that exist."""
    names = run_git("ls-files", "-z").decode().split("\0")
    return [name for name in names if name and (CHECKOUT / name).is_file()]


def run_git(*args: str) -> bytes:
    return subprocess.run(("git", *args), cwd=CHECKOUT, stdout=subprocess.PIPE, check=True).stdout


def read_modules(files: list[str]) -> dict[str, list[str]]:
    """Return the Python files with their lines."""
    return {name: (CHECKOUT / name).read_text("utf-8").splitlines() for name in files if name.endswith(".py")}


def find_limits(files: list[str], modules: dict[str, list[str]]) -> Iterator[Limit]:
    lines: dict[str, int] = defaultdict(int)
    for name, text in modules.items():
        lines[name.partition("/")[0]] += len(text)
    own = [name for name in modules if name.startswith("rlbox/")]
    packages = {name.split("/")[1] for name in own if name.count("/") > 1}
    yield Limit("lines of Python in rlbox/", lines["rlbox"], 66_500)
    yield Limit("modules of rlbox/", len(own), 350)
    yield Limit("packages of rlbox/", len(packages), 28)
    yield Limit("lines of Python in tests/", lines["tests"], 62_000)
    yield Limit("files", len(files), 2_200)
    yield Limit("KiB of git archive", len(run_git("archive", "HEAD")) >> 10, 12 << 10)


def find_long(modules: dict[str, list[str]]) -> Iterator[str]:
    for name, text in modules.items():
        if len(text) > MAX_MODULE_LINES:
            yield f"{name}: {len(text)} lines, at most {MAX_MODULE_LINES}"


def count_packages(modules: dict[str, list[str]]) -> Iterator[str]:
    """Yield a line for each package: name, modules, lines."""
    sizes: dict[str, list[int]] = defaultdict(list)
    for name, text in modules.items():
        if name.startswith("rlbox/"):
            sizes[name.split("/")[1] if name.count("/") > 1 else "rlbox"].append(len(text))
    for package, counts in sorted(sizes.items()):
        yield f"{package:<12}{len(counts):>5}{sum(counts):>8}"


def main(args: list[str]) -> int:
    files = list_files()
    modules = read_modules(files)
    if args == ["--packages"]:
        print("\n".join(count_packages(modules)))  # noqa: T201
        return 0
    limits = list(find_limits(files, modules))
    rows = [f"{limit.count:>8} of {limit.most:>6}  {limit.name}" for limit in limits]
    rows += [f"over: {limit.name}" for limit in limits if limit.count > limit.most]
    long = list(find_long(modules))
    print("\n".join([*rows, *long]))  # noqa: T201
    return 1 if long or any(limit.count > limit.most for limit in limits) else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
