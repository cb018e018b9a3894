"""A GPU target built for real in a project of its own: what it took, and a look into it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enginebox import CHECKOUT, Box, docker
from projectbox import own

LEAST_FREE_GIB = 4.0
"""A build is ended below this: a full disk takes all else on the machine with it."""
ROOM_GIB = 36.0
"""What a build of 11 GB unpacked needs: its steps, its layers, these compressed, and these as containers see them."""
BUILD_S = 3600
VERSIONS = """
import importlib, json, sys
print(json.dumps({name: importlib.import_module(name).__version__ for name in sys.argv[1:]}))
"""


@dataclass(frozen=True, kw_only=True)
class BigImage:
    """An image that was just built; `data` is what `rlbox build --json` said, `most_gib` what the disk lost by it."""

    target: str
    tag: str
    data: dict[str, Any]
    said: str
    most_gib: float

    def run(self, *words: str, timeout_s: float = 600) -> str:
        """Run a command in a container without network and return what it printed."""
        argv = ["docker", "run", "--rm", "--network=none", "--shm-size=2g", self.tag, *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s)
        assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-4000:]
        return done.stdout

    def versions(self, *names: str) -> dict[str, str]:
        """Import modules in the image and return their versions, without what follows a `+`."""
        found = json.loads(self.run("python", "-c", VERSIONS, *names).splitlines()[-1])
        return {name: version.partition("+")[0] for name, version in found.items()}

    def locked(self) -> dict[str, str]:
        """Name and version of every Python package of the lock in the image."""
        lock = json.loads(self.run("cat", "/opt/rlbox/share/lock.json"))
        return {row["name"]: row["version"] for group in lock["groups"] for row in group["packages"]}


def free_gib(path: str = "/") -> float:
    return shutil.disk_usage(path).free / 2**30


@contextmanager
def built(target: str, box: Box) -> Iterator[BigImage]:
    """Build a target, watching the disk, yield the image, and take the image and its share of the cache away."""
    root = docker("info", "--format={{.DockerRootDir}}").strip()
    assert free_gib(root) > ROOM_GIB, f"{free_gib(root):.0f} GiB free below {root}: the build needs {ROOM_GIB:.0f}"
    before = free_gib(root)
    least = [before]
    process = subprocess.Popen(
        box.argv("build", target, "-v", "--json"),
        cwd=box.project,
        env=box.env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    ended = threading.Event()
    watch = threading.Thread(target=_watch, args=(process, root, least, ended))
    watch.start()
    try:
        out, err = process.communicate(timeout=BUILD_S)
    finally:
        ended.set()
        watch.join()
    tag = own(target)
    try:
        assert process.returncode == 0, err[-4000:]
        yield BigImage(target=target, tag=tag, data=json.loads(out), said=err, most_gib=before - least[0])
    finally:
        subprocess.run(["docker", "rmi", "--force", tag], capture_output=True, check=False)


def _watch(process: subprocess.Popen[str], root: str, least: list[float], ended: threading.Event) -> None:
    while not ended.wait(2):
        least[0] = min(least[0], free_gib(root))
        if least[0] < LEAST_FREE_GIB:
            process.terminate()
            return


def cn_hosts() -> set[str]:
    """Hosts of the profile `cn`."""
    from urllib.parse import urlsplit

    from rlbox.config.toml_files import load_toml

    rules = load_toml(CHECKOUT / "rlbox/artifacts/profiles/cn.toml")["rule"]
    return {urlsplit(rule["url"]).hostname or "" for rule in rules if rule.get("url")}


def empty_box(folder: Path) -> Box:
    """Return a project that has nothing of its own, so that all comes from what rlbox ships."""
    for name in ("project", "data"):
        (folder / name).mkdir()
    return Box(project=folder / "project", data=folder / "data", extra={"XDG_CACHE_HOME": _cache()})


def _cache() -> str:
    return os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
