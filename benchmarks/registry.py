"""A registry of the benchmarks' own, empty at first and gone afterwards."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from benchmarks.pairs import NotHere, Unusable
from benchmarks.place import find_tool, run

PROGRAMS = ("docker-registry", "registry")
KINDS = "application/vnd.oci.image.manifest.v1+json,application/vnd.docker.distribution.manifest.v2+json"
CONFIG = """\
version: 0.1
log: {{level: error}}
storage:
  filesystem: {{rootdirectory: {folder}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


@dataclass(frozen=True, kw_only=True)
class Registry:
    """A registry that answers on this machine's loopback."""

    host: str

    def push(self, image: str, repository: str) -> Mapping[str, int]:
        """Push an image of the engine by its own client and return the layers: digest to stored bytes."""
        name = f"{self.host}/{repository}:1"
        run(("docker", "tag", image, name))
        try:
            run(("docker", "push", "--quiet", name))
        finally:
            run(("docker", "rmi", "--no-prune", name))
        return self.layers(repository)

    def layers(self, repository: str, tag: str = "1") -> Mapping[str, int]:
        """Return the layers of an image that is here: digest to stored bytes, lowest first."""
        address = f"http://{self.host}/v2/{repository}/manifests/{tag}"
        with urlopen(Request(address, headers={"Accept": KINDS}), timeout=30) as answer:
            manifest: dict[str, Any] = json.load(answer)
        return {str(layer["digest"]): int(layer["size"]) for layer in manifest["layers"]}


@contextmanager
def running_registry() -> Iterator[Registry]:
    """Yield an empty registry; it is stopped and removed at the end.

    Raises
    ------
    NotHere
        There is no registry program (package: docker-registry).
    Unusable
        It does not come up.
    """
    program = find_registry()
    with tempfile.TemporaryDirectory(prefix="rlbox-registry-") as folder:
        port = _free_port()
        config = Path(folder, "config.yml")
        config.write_text(CONFIG.format(folder=f"{folder}/data", port=port))
        with subprocess.Popen(
            (program, "serve", str(config)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                _wait(port, process)
                yield Registry(host=f"127.0.0.1:{port}")
            finally:
                process.terminate()


def find_registry() -> str:
    """Return the registry program: by `RLBOX_BENCH_REGISTRY`, on PATH, or that of `scripts/ensure-test-tools.sh`."""
    named = os.environ.get("RLBOX_BENCH_REGISTRY", "")
    found = [named, *map(find_tool, PROGRAMS)]
    usable = [path for path in found if path and os.access(path, os.X_OK)]
    if not usable:
        raise NotHere("no registry program; scripts/ensure-test-tools.sh brings one")
    return str(usable[0])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 20
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise Unusable("the registry does not come up")
