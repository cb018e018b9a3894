"""The image of a target on a machine without network: its frame over its packages, in the engine.

`image.py PROJECT NAME PLACE FRAMES BLOBS [--wheel FILE]`: PLACE is where the packages lie as `rlbox apply` laid
them, FRAMES has the rest of the image (`frame.py`), BLOBS keeps the layers, which images may share. A wheel is a layer
of its own. The image gets the name and the labels that `rlbox build` would give it, so that `rlbox run` takes it.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from backports import zstd

from rlbox.config.project import Project
from rlbox.engine.oci import INDEX_TYPE, LAYOUT, LAYOUT_FILE, MANIFEST_TYPE
from rlbox.image.context import compute_build_digest, list_hashed_context_entries
from rlbox.image.plan import load_image_plan

CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"

SITE = "opt/venv/lib/python3.11/site-packages"
DRIVER = "/usr/local/nvidia"
"""Where that machine has its driver; CDI mounts it, and no toolkit is there that would run ldconfig."""
BLOCK = 1 << 24


def relocate(place: Path) -> None:
    """Let the programs of a place name the interpreter where the image has it."""
    for path in (place / "opt/venv/bin").iterdir():
        if path.is_symlink() or not path.is_file():
            continue
        data = path.read_bytes()
        if str(place).encode() in data:
            mode = path.stat().st_mode
            path.unlink()  # may be a link to another place's
            path.write_bytes(data.replace(str(place).encode(), b""))
            path.chmod(mode)


def make_layer(blobs: Path, name: str, write: Callable[[IO[bytes]], None]) -> dict[str, Any]:
    """Return the descriptor of a layer whose tar `write` writes, with the digest of its plain bytes; made once."""
    described = blobs / f"{name}.json"
    if not described.exists():
        blobs.mkdir(parents=True, exist_ok=True)
        options: dict[int, int] = {
            zstd.CompressionParameter.compression_level: 1,
            zstd.CompressionParameter.nb_workers: min(16, os.cpu_count() or 1),
        }
        path = blobs / f"{name}.tar.zst"
        plain = hashlib.sha256()
        with zstd.open(path, "wb", options=options) as goal:
            write(_Both(goal, plain))
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        row = {"mediaType": f"{LAYER_TYPE}+zstd", "digest": f"sha256:{digest}", "size": path.stat().st_size}
        described.write_text(json.dumps({"layer": row, "plain": f"sha256:{plain.hexdigest()}", "path": str(path)}))
    return dict(json.loads(described.read_text("utf-8")))


class _Both(io.RawIOBase):
    """A file that hashes what is written through it."""

    def __init__(self, goal: Any, digest: Any) -> None:
        self._goal, self._digest = goal, digest

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._digest.update(data)
        self._goal.write(data)
        return len(data)


def copy_stream(source: IO[bytes], goal: IO[bytes]) -> None:
    """Write all of a stream."""
    while block := source.read(BLOCK):
        goal.write(block)


def write_place(place: Path) -> Callable[[IO[bytes]], None]:
    """Return what writes the tar of a place; rlbox's own part is the frame's."""

    def write(goal: IO[bytes]) -> None:
        names = sorted(path.name for path in (place / "opt").iterdir() if path.name != "rlbox")
        words = ["tar", "--create", "--directory", str(place), "--owner=0", "--group=0", "--sort=name"]
        words += ["--exclude=__pycache__", *(f"opt/{name}" for name in names)]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            assert process.stdout
            copy_stream(process.stdout, goal)
        if process.returncode:
            raise SystemExit(f"image: error: tar ended with {process.returncode}")

    return write


def write_frame(path: Path) -> Callable[[IO[bytes]], None]:
    """Return what writes the tar of a frame."""

    def write(goal: IO[bytes]) -> None:
        with path.open("rb") as source:
            copy_stream(source, goal)

    return write


def write_wheel(path: Path) -> Callable[[IO[bytes]], None]:
    """Return what writes the tar of a wheel's files in the environment's folder of packages."""

    def write(goal: IO[bytes]) -> None:
        with zipfile.ZipFile(path) as wheel, tarfile.open(fileobj=goal, mode="w|") as tar:
            for name in wheel.namelist():
                data = wheel.read(name)
                info = tarfile.TarInfo(f"{SITE}/{name}")
                info.size, info.mode = len(data), 0o644
                tar.addfile(info, io.BytesIO(data))

    return write


def load_image(tag: str, config: dict[str, Any], layers: list[dict[str, Any]]) -> None:
    """Give the engine an image as an OCI archive."""
    document = {
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [layer["plain"] for layer in layers]},
    }
    with subprocess.Popen(["docker", "load"], stdin=subprocess.PIPE) as process:
        assert process.stdin
        with tarfile.open(fileobj=process.stdin, mode="w|") as tar:
            add(tar, LAYOUT_FILE, LAYOUT)
            row = add_document(tar, document, CONFIG_TYPE)
            manifest = {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPE,
                "config": row,
                "layers": [layer["layer"] for layer in layers],
            }
            names = {"io.containerd.image.name": f"docker.io/{tag}", "org.opencontainers.image.ref.name": tag}
            top = {**add_document(tar, manifest, MANIFEST_TYPE), "annotations": names}
            add(
                tar,
                "index.json",
                json.dumps({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [top]}).encode(),
            )
            for layer in layers:
                name = f"blobs/sha256/{layer['layer']['digest'].removeprefix('sha256:')}"
                tar.add(layer["path"], arcname=name)
    if process.returncode:
        raise SystemExit(f"image: error: docker load ended with {process.returncode}")


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Write one file of an archive."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def add_document(tar: tarfile.TarFile, document: dict[str, Any], kind: str) -> dict[str, Any]:
    """Write a document as a blob; return its descriptor."""
    data = json.dumps(document, sort_keys=True).encode()
    digest = hashlib.sha256(data).hexdigest()
    add(tar, f"blobs/sha256/{digest}", data)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}


def main() -> None:
    """Make the layers, and load the image."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("project", type=Path)
    parser.add_argument("name")
    for name in ("place", "frames", "blobs"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--wheel", type=Path, help="a further package, as a layer of its own")
    args = parser.parse_args()
    relocate(args.place)
    layers = [make_layer(args.blobs, f"place-{args.place.name}", write_place(args.place))]
    if args.wheel:
        layers.append(make_layer(args.blobs, f"wheel-{args.wheel.name}", write_wheel(args.wheel)))
    layers.append(make_layer(args.blobs, f"frame-{args.name}", write_frame(args.frames / f"{args.name}.tar")))
    plan = load_image_plan(Project(folder=args.project), args.name)
    frame = json.loads((args.frames / f"{args.name}.json").read_text("utf-8"))
    config = {key: frame[key] for key in ("Env", "Entrypoint", "Cmd", "WorkingDir", "Labels") if frame.get(key)}
    config["Env"] = [
        f"{row}:{DRIVER}/lib64:{DRIVER}/lib" if row.startswith("LD_LIBRARY_PATH=") else row for row in config["Env"]
    ]
    config["Labels"] |= {"rlbox.build": compute_build_digest(list_hashed_context_entries(plan), plan.epoch)}
    load_image(plan.tag, config, layers)
    print(f"{plan.tag}: {sum(layer['layer']['size'] for layer in layers) / 1e9:.1f} GB in {len(layers)} layers")


if __name__ == "__main__":
    main()
