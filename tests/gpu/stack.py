"""Make a folder of packages for a machine without network, as `tests/gpu/stacks.toml` says: resolved, without what the
machine has, thinned to one GPU architecture, stripped.

`stack.py NAME FOLDER` makes FOLDER/site-packages; a folder that was made of the same text is left as it is.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import tomllib
from pack import thin

HERE = Path(__file__).resolve().parent
UV = [str(Path(sys.executable).with_name("uv")), "pip"]
FOR = ["--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_39"]


def resolve(name: str, told: dict[str, Any], folder: Path) -> list[str]:
    """Return the pins of a stack without the packages that stay behind."""
    asked = folder / "requirements.in"
    asked.write_text("\n".join(told[name]["requires"]) + "\n", "utf-8")
    words = [*UV, "compile", "--quiet", *FOR, "--no-annotate", "--no-header", str(asked)]
    lines = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    return [line for line in lines if not any(fnmatch.fnmatch(line.partition("==")[0], of) for of in told["leave"])]


def install(pins: list[str], sources: list[str], packages: Path) -> None:
    """Lay the packages down, each file by a copy of its own."""
    words = [
        "install",
        "--quiet",
        "--target",
        str(packages),
        *FOR,
        "--no-deps",
        "--only-binary=:all:",
        "--link-mode=copy",
    ]
    named = [f"--no-binary={name}" for name in sources if any(pin.startswith(f"{name}==") for pin in pins)]
    subprocess.run([*UV, *words, *named, *pins], check=True)


def take_trees(own: dict[str, Any], folder: Path, snapshots: Path | None) -> None:
    """Lay the git trees down, from bare repositories OWNER+NAME below `snapshots`, and patch them."""
    for name, text in own["trees"].items():
        source, _, commit = text.partition("@")
        if snapshots is None:
            sys.exit(
                f"stack: error: {source} is wanted: --git-snapshots FOLDER with a repository {source.replace('/', '+')}"
            )
        tree = folder / name
        tree.mkdir()
        with subprocess.Popen(
            ["git", "-C", str(snapshots / source.replace("/", "+")), "archive", commit], stdout=subprocess.PIPE
        ) as git:
            subprocess.run(["tar", "-x", "-C", str(tree)], stdin=git.stdout, check=True)
        if git.returncode:
            sys.exit(f"stack: error: no {commit} of {source} in {snapshots}")
        for folded in own["leave_of_trees"]:
            shutil.rmtree(tree / folded, ignore_errors=True)
    for name, patch in own["patches"].items():
        subprocess.run(
            ["git", "apply", "-p1", str((folder / patch).resolve())],
            cwd=folder / name,
            check=True,
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder)},
        )


def shrink(name: str, told: dict[str, Any], packages: Path) -> None:
    """Drop, stub, copy, write, thin and strip what the table names; a name of `stub` that fits no file is an error."""
    own = told[name]
    for path in [
        path for pattern in (*told["drop"], *own["drop"]) for path in packages.glob(pattern) if path.is_file()
    ]:
        path.unlink(missing_ok=True)  # of two patterns
    for pattern in own["stub"]:
        found = list(packages.glob(pattern))
        if not found:
            sys.exit(f"stack: error: {name} has no file {pattern}")
        for path in found:
            path.with_name(path.name.partition(".")[0] + ".py").touch()
            path.unlink()
    for path, source in own["copy"].items():
        shutil.copyfile(packages / source, packages / path)
    for path, text in [row for name in own["write"] for row in told["stand_ins"][name].items()]:
        (packages / path).parent.mkdir(parents=True, exist_ok=True)
        (packages / path).write_text(text, "utf-8")
    for pattern, arch in (*((pattern, 90) for pattern in own["thin"]), *((pattern, 0) for pattern in own["empty"])):
        for path in packages.glob(pattern):
            data = bytearray(path.read_bytes())
            print(
                f"{path.relative_to(packages)}: {thin(data, arch) >> 20} of {len(data) >> 20} MiB emptied", flush=True
            )
            path.write_bytes(data)
    libraries = {str(path) for pattern in told["strip"] for path in packages.glob(pattern) if path.is_file()}
    subprocess.run(["strip", "--strip-unneeded", *sorted(libraries)], check=False, stderr=subprocess.DEVNULL)


def main() -> None:
    """Make one stack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--git-snapshots", type=Path, help="folder of bare repositories OWNER+NAME")
    args = parser.parse_args()
    text = (HERE / "stacks.toml").read_text("utf-8")
    told = tomllib.loads(text)
    mark, digest = args.folder / "made", hashlib.sha256(text.encode()).hexdigest()
    if mark.exists() and mark.read_text() == digest:
        return
    shutil.rmtree(args.folder, ignore_errors=True)
    args.folder.mkdir(parents=True)
    pins = resolve(args.name, told, args.folder)
    packages = args.folder / "site-packages"
    install(pins, told["sources"], packages)
    shrink(args.name, told, packages)
    take_trees(told[args.name], args.folder, args.git_snapshots)
    mark.write_text(digest)
    size = sum(path.stat().st_size for path in packages.rglob("*") if path.is_file())
    print(f"{args.name}: {len(pins)} packages, {size >> 20} MiB")


if __name__ == "__main__":
    main()
