"""Make the base image of this folder's targets out of a machine's own system, which no registry has.

`base.py PROJECT NAME…` writes one layer, its configuration and its manifest into rlbox's store (RLBOX_STORE), and their
digest into PROJECT's targets NAME and their locks; `rlbox build NAME --hermetic` starts from them then. With `--empty`
the layer holds nothing: enough for `rlbox fetch`, where an image is prepared for another machine.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import IO, Any

from backports import zstd

from rlbox.app import own_requirements
from rlbox.artifacts.objects import Store, store_folder
from rlbox.config.project import Project
from rlbox.engine.oci import CONFIG, LAYER, MANIFEST
from rlbox.system.files import sha256_file
from rlbox.target.load import load_target
from rlbox.target.lock import lock_checksum

BASE = re.compile(r"docker\.io/library/h100@sha256:[0-9a-f]{64}")
# With torch, its CUDA and the stacks; without what a compiler of kernels never reads (DeepSpeed's links libcurand).
TAKEN = ("bin", "etc", "lib", "lib64", "sbin", "usr", "var", "opt/torch", "opt/stack", "opt/venv")
EMPTY = ["--no-recursion", "dev", "home", "mnt", "proc", "root", "run", "sys", "tmp", "--recursion"]
LEFT = [
    *("*.a", "nsight*", "compute-sanitizer", "libcublas*", "libcufft*"),
    *("libcusparse*", "libcusolver*", "libnpp*", "libnvjpeg*"),
]
CUDA = "usr/local/cuda*"
DRIVER = "/usr/local/nvidia"
APART = (DRIVER[1:], "opt/stack/engine", "var/lib/docker", "var/lib/rlbox*")  # the driver is mounted
MIB = 1 << 20


def machine_tar() -> subprocess.Popen[bytes]:
    """Start the archive of the machine's system; the toolkit's libraries that nothing links are left out."""
    left = [f"--exclude={CUDA}/{name}" for name in LEFT] + [f"--exclude={name}" for name in APART]
    taken = [name for name in TAKEN if Path("/", name).exists() or Path("/", name).is_symlink()]
    words = ["tar", "--create", "--directory=/", "--one-file-system", "--sort=name", "--wildcards"]
    return subprocess.Popen([*words, *left, *EMPTY, *taken], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def add_layer(source: IO[bytes], store: Store) -> tuple[dict[str, Any], str]:
    """Bring a tar into the store, compressed; return its descriptor and the digest of what it unpacks to."""
    options: dict[int, int] = {
        zstd.CompressionParameter.compression_level: 1,
        zstd.CompressionParameter.nb_workers: min(16, os.cpu_count() or 1),
    }
    plain = hashlib.sha256()
    with tempfile.NamedTemporaryFile(dir=store.root) as file:
        with zstd.open(file, "wb", options=options) as goal:
            while block := source.read(16 * MIB):
                plain.update(block)
                goal.write(block)
        file.flush()
        return _add(Path(file.name), LAYER + "+zstd", store), f"sha256:{plain.hexdigest()}"


def _add(path: Path, kind: str, store: Store) -> dict[str, Any]:
    digest = sha256_file(path)
    size = path.stat().st_size
    store.adopt(path, digest)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": size}


def _add_document(document: dict[str, Any], kind: str, store: Store) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=store.root) as folder:
        path = Path(folder, "document")
        path.write_text(json.dumps(document, sort_keys=True), "utf-8")
        return _add(path, kind, store)


def add_image(source: IO[bytes], store: Store) -> str:
    """Bring an image of one layer into the store; return the digest of its manifest."""
    layer, plain = add_layer(source, store)
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": [f"PATH={path}", f"LD_LIBRARY_PATH={DRIVER}/lib64:{DRIVER}/lib"]},
        "rootfs": {"type": "layers", "diff_ids": [plain]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": _add_document(config, CONFIG, store),
        "layers": [layer],
    }
    return str(_add_document(manifest, MANIFEST, store)["digest"])


def lock_to(project: Project, name: str, digest: str) -> None:
    """Write the base image's digest into a target and its lock."""
    spec, lock = project.target_file(name), project.lock_file(name)
    base = f"docker.io/library/h100@{digest}"
    spec.write_text(BASE.sub(base, spec.read_text("utf-8")), "utf-8")
    text = BASE.sub(base, lock.read_text("utf-8"))
    checksum = lock_checksum(load_target(project, name).target, own_requirements())
    lock.write_text(text.replace(json.loads(text)["spec"], checksum), "utf-8")


def main() -> None:
    """Do it, and say the digest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("project", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--empty", action="store_true")
    told = parser.parse_args()
    store = Store(store_folder(None))
    store.root.mkdir(parents=True, exist_ok=True)
    if told.empty:
        digest = add_image(io.BytesIO(bytes(1024)), store)  # two blocks of zeros end a tar
    else:
        source = machine_tar()
        assert source.stdout
        digest = add_image(source.stdout, store)
        if source.wait() > 1:  # 1: a file changed meanwhile
            raise SystemExit(f"base: error: tar ended with {source.returncode}")
    for name in told.names:
        lock_to(Project(folder=told.project), name, digest)
    print(f"base: {digest}")


if __name__ == "__main__":
    main()
