"""Checkpoints that are complete or absent, with a manifest (checkpoint.json) of every file's size and SHA-256."""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

from smoke import program

MANIFEST = "checkpoint.json"


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with path.open("rb") as stream:
        state = hashlib.sha256()
        while block := stream.read(1 << 20):
            state.update(block)
    return state.hexdigest()


def write(folder: Path, save: Callable[[Path], None]) -> None:
    """Let `save` fill a new folder, add the manifest, make all readable, and put it in the place of `folder`.

    Parameters
    ----------
    save
        Called with an empty folder next to `folder`.

    Source: transformers 5 writes weights with mode 0600, which a server under another user cannot read.
    """
    part = folder.with_name(f".{folder.name}.part")
    old = folder.with_name(f".{folder.name}.old")
    for stale in (part, old):
        shutil.rmtree(stale, ignore_errors=True)
    part.mkdir(parents=True)
    save(part)
    files = sorted(path for path in part.rglob("*") if path.is_file())
    entries = {str(path.relative_to(part)): {"bytes": path.stat().st_size, "sha256": digest(path)} for path in files}
    (part / MANIFEST).write_text(json.dumps({"schema": 1, "files": entries}, indent=2) + "\n")
    for path in (part, *part.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    if folder.exists():
        folder.rename(old)
    part.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def verify(folder: Path) -> None:
    """Check every file against the manifest. Raises JobError naming the first file that is missing or changed."""
    try:
        files = json.loads((folder / MANIFEST).read_text())["files"]
        wanted = {name: (int(entry["bytes"]), str(entry["sha256"])) for name, entry in files.items()}
    except FileNotFoundError as error:
        raise program.JobError(f"no checkpoint at {folder}: {MANIFEST} is missing; run train-only first") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise program.JobError(f"{folder / MANIFEST} is not a manifest ({error!r}); run train-only again") from error
    for name, (size, sha256) in wanted.items():
        path = folder / name
        if not path.is_file():
            raise program.JobError(f"checkpoint file {path} is missing; run train-only again")
        if (found := path.stat().st_size) != size:
            fault = "is truncated" if found < size else "has grown"
            raise program.JobError(f"checkpoint file {path} {fault}: {found} of {size} bytes; run train-only again")
        if digest(path) != sha256:
            raise program.JobError(f"checkpoint file {path} has changed: SHA-256 differs; run train-only again")


def main() -> None:
    """Verify the checkpoint given on the command line."""
    parser = argparse.ArgumentParser(prog="smoke.checkpoint", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    verify(folder)
    print(f"checkpoint {folder} is complete", flush=True)


if __name__ == "__main__":
    program.run("smoke.checkpoint", main)
