#!/usr/bin/env python3
"""Walk the pinned packages and keep every message that they raise, assert or log: `rlbox/inventory/messages.zip`.

    inventory.py walk [PACKAGE...]       download what is not kept yet, a file at a time, and keep its messages
    inventory.py walk --from FOLDER      the same, out of an environment's site-packages: its versions are the folder's
    inventory.py tree NAME VERSION DIR   a checkout (slime, Megatron-LM), which no registry has
    inventory.py build                   write the shipped file from what is kept
    inventory.py diff PACKAGE OLD NEW    the signatures whose messages NEW no longer has; 1 when there are any

Kept: ~/.cache/rlbox/inventory (RLBOX_INVENTORY). Downloads are deleted as soon as they are read.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from inventory_file import SKIPPED, build, diff  # noqa: E402

from rlbox.foreign import toml_table  # noqa: E402
from rlbox.inventory.messages import Message, settled, source_messages  # noqa: E402
from rlbox.inventory.native import library_messages  # noqa: E402

KEPT = Path(os.environ.get("RLBOX_INVENTORY") or Path.home() / ".cache/rlbox/inventory")
PLATFORMS = [f"manylinux_2_{minor}" for minor in (28, 35, 31, 34, 27, 24, 17)] + ["manylinux2014"]


def tell(text: str) -> None:
    """Say something now."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def packages() -> dict[str, dict[str, Any]]:
    """The table of `inventory.toml`."""
    return dict(toml_table((HERE / "inventory.toml").read_text(encoding="utf-8")))


def kept_file(name: str, version: str) -> Path:
    """Where the messages of one version are kept."""
    return KEPT / f"{name}-{version}.jsonl"


def keep(name: str, version: str, messages: Iterator[Message]) -> None:
    """Write the messages of one version."""
    KEPT.mkdir(parents=True, exist_ok=True)
    rows = sorted({json.dumps(asdict(message), sort_keys=True) for message in settled(messages)})
    kept_file(name, version).write_text("\n".join(rows) + "\n", encoding="utf-8")
    tell(f"{name} {version}: {len(rows)} messages")


def archive_messages(path: Path, table: dict[str, Any]) -> Iterator[Message]:
    """Yield the messages of a wheel, or of a source archive."""
    natives, texts = tuple(table.get("native", ())), re.compile(table.get("texts", ""))
    for name, data in _members(path, natives):
        if name in natives:
            yield from library_messages(data, Path(name).name, texts)
        else:
            yield from source_messages(data.decode("utf-8", "replace"), name)


def _members(path: Path, natives: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    def wanted(name: str) -> bool:
        return name in natives or (name.endswith(".py") and not SKIPPED.search(name))

    if path.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(path) as wheel:
            yield from ((name, wheel.read(name)) for name in wheel.namelist() if wanted(name))
        return
    with tarfile.open(path) as archive:
        for member in archive:
            name = member.name.partition("/")[2]
            if member.isfile() and wanted(name) and (file := archive.extractfile(member)):
                yield name, file.read()


def download(name: str, version: str, table: dict[str, Any], folder: Path) -> Path:
    """Fetch one wheel, or a source archive, and return it."""
    words = [*_pip(), "download", "--quiet", "--no-deps", f"--dest={folder}", f"{name}=={version}"]
    if table.get("source"):
        env = {**os.environ, "DS_BUILD_OPS": "0", "FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE"}
        subprocess.run([*words, "--no-binary=:all:", "--no-build-isolation"], check=True, env=env)
    else:
        machine = table.get("platform", "x86_64")
        tags = [f"--platform={platform}_{machine}" for platform in PLATFORMS]
        version_words = ["--python-version=3.12", "--implementation=cp"]
        subprocess.run([*words, "--only-binary=:all:", *tags, *version_words], check=True)
    return next(folder.iterdir())


def _pip() -> list[str]:
    bootstrap = HERE.parent / ".venv/bootstrap/bin/python"
    return [str(bootstrap) if bootstrap.exists() else sys.executable, "-m", "pip"]


def walk(names: list[str], site: Path | None) -> int:
    """Keep the messages of every version that is not kept yet."""
    failed = 0
    for name, table in packages().items():
        if names and name not in names:
            continue
        if site:
            walk_installed(name, table, site)
            continue
        for version in table["versions"]:
            if kept_file(name, version).exists():
                continue
            with tempfile.TemporaryDirectory(prefix="rlbox-inventory-") as folder:
                try:
                    path = download(name, version, table, Path(folder))
                    keep(name, version, archive_messages(path, table))
                except (subprocess.CalledProcessError, StopIteration) as error:
                    failed += 1
                    tell(f"{name} {version}: {error}")
    return 1 if failed else 0


def walk_installed(name: str, table: dict[str, Any], site: Path) -> None:
    """Keep the messages of a package that lies in an environment."""
    for found in importlib.metadata.distributions(name=name, path=[str(site)]):
        if not kept_file(name, found.version.partition("+")[0]).exists():
            keep(name, found.version.partition("+")[0], _installed(found, table, site))


def _installed(found: importlib.metadata.Distribution, table: dict[str, Any], site: Path) -> Iterator[Message]:
    natives, texts = tuple(table.get("native", ())), re.compile(table.get("texts", ""))
    for file in found.files or ():
        path = site / file
        if str(file) in natives and path.exists():
            yield from library_messages(path.read_bytes(), path.name, texts)
        elif file.suffix == ".py" and not SKIPPED.search(str(file)) and path.exists():
            yield from source_messages(path.read_text(encoding="utf-8", errors="replace"), str(file))


def tree(name: str, version: str, folder: Path) -> int:
    """Keep the messages of a checkout."""
    files = sorted(path for path in folder.rglob("*.py") if not SKIPPED.search(str(path.relative_to(folder))))
    texts = ((path.read_text(encoding="utf-8", errors="replace"), str(path.relative_to(folder))) for path in files)
    keep(name, version, (message for text, file in texts for message in source_messages(text, file)))
    return 0


def main() -> int:
    """Do what the first word says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    walking = verbs.add_parser("walk")
    walking.add_argument("names", nargs="*")
    walking.add_argument("--from", type=Path, dest="site")
    trees = verbs.add_parser("tree")
    trees.add_argument("name")
    trees.add_argument("version")
    trees.add_argument("folder", type=Path)
    verbs.add_parser("build")
    differ = verbs.add_parser("diff")
    differ.add_argument("package")
    differ.add_argument("old")
    differ.add_argument("new")
    asked = parser.parse_args()
    if asked.verb == "walk":
        return walk(asked.names, asked.site)
    if asked.verb == "tree":
        return tree(asked.name, asked.version, asked.folder)
    return build(KEPT, packages()) if asked.verb == "build" else diff(asked.package, asked.old, asked.new)


if __name__ == "__main__":
    sys.exit(main())
