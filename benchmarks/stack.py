"""The benchmarks' stack as an image, twice: by rlbox, and by the Dockerfile that everybody writes."""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from benchmarks.buildcache import drop_all, drop_superseded
from benchmarks.mirror import Mirror, Sent
from benchmarks.naive import BASE, naive_dockerfile
from benchmarks.pairs import Case, NotHere, Unusable, time_process
from benchmarks.place import Place, run
from benchmarks.registry import Registry, running_registry
from benchmarks.wheels import BOTTOM, LEAF, group_pins, spec_file, stack_text, wheel_digests, wheel_folder
from rlbox.artifacts.object_store import resolve_store_dir
from rlbox.config.project import Project
from rlbox.image.names import tag_to_file_name

NEED_GIB, FEW_GIB = 10, 2
PROFILE = """\
title = "The wheels of the benchmarks"
[[rule]]
kind = "python"
protocol = "index"
url = "{url}"
"""
LAYERS = "BENCH={} STAGE={{{{ stage.name }}}} sh /opt/tools/install.sh layers"


class Flake(Unusable):
    """The engine lost a piece of the image because somebody else's was removed meanwhile; the build is to be repeated.

    Source: performance notes, a removal or prune beside a build fails it at its end with `failed to solve: not found`.
    """


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What the image is to be made of, where it differs from the stack as it is; `fix` is the value of an ENV line."""

    versions: Mapping[str, str] = field(default_factory=dict)
    fix: int = 0

    def env(self) -> dict[str, str]:
        """Return the image's environment."""
        return {**{f"FIX_{number}": str(number) for number in range(8)}, "NCCL_DEBUG_SUBSYS": str(self.fix)}


@dataclass(frozen=True, kw_only=True)
class Built:
    """A build: wall time of the whole command, what was downloaded, the layers as a registry stores them.

    `new_bytes` are those of layers that no earlier build of the same image had.
    """

    seconds: float
    sent: Sent
    layers: Mapping[str, int]
    new_bytes: int


class Stack:
    """Both images: rlbox's is built when this is made, the naive one when it is first needed; each again at wish.

    `cold` is what the first build by rlbox was.
    """

    def __init__(self, place: Place) -> None:
        self.place, self.mark = place, secrets.token_hex(3)
        self.name = f"bench-{self.mark}"
        self.image, self.naive_image = place.image(self.name), place.image(f"naive-{self.mark}")
        _need_disk(place.pick(NEED_GIB, FEW_GIB))
        wheels = wheel_folder(place)
        self.mirror = place.on_close.enter_context(Mirror(wheels, wheel_digests(wheels)))
        self.registry: Registry = place.on_close.enter_context(running_registry())
        place.on_close.callback(drop_all, self.mark)
        for image in (self.image, self.naive_image):
            place.remove_at_end(image)
        place.use_archives()
        place.env |= {"RLBOX_STORE": str(resolve_store_dir(None))}
        self.now = {moving.name: moving.first for moving in (LEAF, BOTTOM)}
        self._seen: dict[str, set[str]] = {"ours": set(), "naive": set()}
        self._write_project()
        self.cold = self.ours(Wish())

    def ours(self, wish: Wish) -> Built:
        """Build with rlbox: the lock is made first, which is no part of the time."""
        self._write_spec(wish)
        self._lock()
        return self._built("ours", self.place.rlbox("build", self.name, says="built"), self.image)

    @cached_property
    def naive_cold(self) -> Built:
        """The first build of the naive Dockerfile, which the later ones stand on."""
        return self._naive(Wish())

    def naive(self, wish: Wish) -> Built:
        """Build the naive Dockerfile again with other versions or settings."""
        _ = self.naive_cold
        return self._naive(wish)

    def _naive(self, wish: Wish) -> Built:
        folder = self._with_rootfs("naive")
        text = self.spec_text(wish)
        (folder / "requirements.txt").write_text("\n".join(self.pins(text)) + "\n")
        (folder / "Dockerfile").write_text(
            naive_dockerfile(group_pins(text, "base"), self.mirror.url, wish.env(), self.mark)
        )
        argv = ("docker", "buildx", "build", "--network=host", "--provenance=false", "--progress=plain")
        case = self.place.case((*argv, f"--tag={self.naive_image}", str(folder)), name="the naive build")
        try:
            return self._built("naive", case, self.naive_image)
        finally:
            drop_superseded(self.mark, "requirements.txt")

    def base_image(self) -> str:
        """Make an image of the operating system alone and return its name."""
        image = self.place.remove_at_end(self.place.image(f"base-{self.mark}"))
        folder = self._with_rootfs("base")
        (folder / "Dockerfile").write_text(BASE)
        run(("docker", "buildx", "build", "--quiet", "--provenance=false", f"--tag={image}", str(folder)))
        return image

    def _with_rootfs(self, name: str) -> Path:
        """Return a folder that holds the operating system's archive, the one that rlbox made."""
        folder = self.place.folder / name
        if not folder.exists():
            folder.mkdir()
            (folder / "rootfs.tar").hardlink_to(
                self.place.cache / "rlbox/contexts" / tag_to_file_name(self.image) / "rootfs.tar"
            )
        return folder

    def must_have_run(self, group: str) -> None:
        """Make sure that rlbox's last build installed packages of the group, and did not find them in a cache."""
        log = max((self.place.cache / "rlbox/logs").glob(f"build-{self.name}-*.log")).read_text()
        steps = re.findall(rf"^#(\d+) \[{group}-{self.mark}\S* .*install\.sh layers", log, re.MULTILINE)
        if all(f"#{step} CACHED" in log for step in steps):
            raise Unusable(f"no package of the group {group} was installed:\n{log[-1000:]}")

    def wheel_bytes(self, name: str, version: str) -> int:
        """Return the size of a wheel of the mirror."""
        return next(
            w.path.stat().st_size for file, w in self.mirror.wheels.items() if file.startswith(f"{name}-{version}-")
        )

    def pins(self, text: str = "") -> list[str]:
        """Return the requirements of every group."""
        text = text or self.spec_text(Wish())
        names = re.findall(r'^name = "([a-z]+)-', text, re.MULTILINE)
        return [pin for name in names for pin in group_pins(text, name)]

    def spec_text(self, wish: Wish) -> str:
        """Return the target's spec."""
        env = "".join(f'{name} = "{value}"\n' for name, value in wish.env().items())
        stack = stack_text(spec_file(self.place), {**self.now, **wish.versions}, f"-{self.mark}")
        return f'sources = "bench"\n{stack}\n[env]\n{env}'

    def _write_project(self) -> None:
        """Write the profile of the mirror, and templates whose steps and cache mounts carry a mark of their own.

        BuildKit's records tell steps apart by their commands, so those of the stack's stages get a word of each stage.
        """
        project = self.place.project
        (project / "sources").mkdir()
        (project / "sources/bench.toml").write_text(PROFILE.format(url=self.mirror.url))
        (project / "templates").mkdir()
        for folder in reversed(Project(folder=project).list_existing_template_dirs_except_packs()[1:]):
            for template in folder.glob("*.j2"):
                text = template.read_text().replace("id=rlbox-uv", f"id=rlbox-{self.mark}")
                text = text.replace("sh /opt/tools/install.sh", f"BENCH={self.mark} sh /opt/tools/install.sh")
                text = text.replace(f"BENCH={self.mark} sh /opt/tools/install.sh layers", LAYERS.format(self.mark))
                (project / "templates" / template.name).write_text(text)

    def _write_spec(self, wish: Wish) -> None:
        spec = self.place.project / "images" / self.name / "target.toml"
        spec.parent.mkdir(parents=True, exist_ok=True)
        spec.write_text(self.spec_text(wish))

    def _lock(self) -> None:
        case = self.place.rlbox("lock", self.name)
        run(case.argv, env=case.env, cwd=case.cwd)

    def _built(self, which: str, case: Case, image: str) -> Built:
        before = _image_id(image)
        self.mirror.take()
        try:
            seconds = time_process(case)
        except Unusable as error:
            raise (Flake(str(error)) if "not found" in str(error) else error) from error
        sent = self.mirror.take()
        layers = self.registry.push(image, which)
        new = sum(size for digest, size in layers.items() if digest not in self._seen[which])
        self._seen[which] |= set(layers)
        if before and before != _image_id(image):
            subprocess.run(["docker", "rmi", before], check=False, capture_output=True)
        return Built(seconds=seconds, sent=sent, layers=layers, new_bytes=new)


def _image_id(image: str) -> str:
    argv = ["docker", "image", "inspect", "--format={{.Id}}", image]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()


def _need_disk(least_gib: int) -> None:
    """Refuse where the engine's disk would fill up: both images are there at once, each stored and unpacked."""
    folder = Path(run(("docker", "info", "--format={{.DockerRootDir}}")).strip())
    if folder.is_dir() and (free := shutil.disk_usage(folder).free >> 30) < least_gib:
        raise NotHere(f"{folder} has {free} GiB free; these goals need {least_gib}")
