"""Where benchmarks work: a folder, a project and a cache of their own, all gone afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from benchmarks.pairs import Case, NotHere, Sample, Unusable, interleave, time_process
from rlbox.artifacts.object_store import resolve_store_dir
from rlbox.config.project import Project
from rlbox.image.names import format_rlbox_image_tag
from rlbox.system.files import cache_path
from rlbox.target.lock import load_lock

SMALLEST = """\
title = "The smallest target with a Python"
[base]
bootstrap = "debian:bookworm"
packages = ["ca-certificates", "python3", "python3-venv"]
[[stack]]
name = "tools"
packages = ["six==1.16.0"]
[run]
shm_gib = 0.25
memory_gib = 0.5
pids = 200
[disk]
need_gib = 0.01
"""
WARM_UP = 1

Measure = Case | Callable[[], float]
_Made = TypeVar("_Made")


class Kept:
    """What takes minutes to make and is used by several goals; `on_close` ends it after the last of them.

    `small` makes everything small: a proof that the goals can be measured, in seconds.
    """

    def __init__(self, *, small: bool = False) -> None:
        self.small = small
        self.on_close = contextlib.ExitStack()
        self._made: dict[Callable[[Place], Any], Any] = {}
        self._failed: dict[Callable[[Place], Any], Exception] = {}

    def get(self, make: Callable[[Place], _Made]) -> _Made:
        """Return what `make` makes in a place that is kept; called once; what it failed with comes again."""
        if make in self._failed:
            raise self._failed[make]
        if make not in self._made:
            with contextlib.ExitStack() as unfinished:
                try:
                    self._made[make] = make(unfinished.enter_context(Place(self)))
                except Exception as error:
                    self._failed[make] = error
                    raise
                self.on_close.push(unfinished.pop_all())
        made: _Made = self._made[make]
        return made


class Place:
    """A temporary project and cache folder; `close` runs what `on_close` collected, last first.

    Commands see the user's own environment but for the cache and the `RLBOX_*` settings. `kept` outlives the place;
    `rounds` is how often things are measured in it.
    """

    def __init__(self, kept: Kept | None = None, rounds: int = 1) -> None:
        self.kept, self.rounds = kept or Kept(), rounds
        self.small = self.kept.small
        self.on_close = contextlib.ExitStack()
        self.folder = Path(self.on_close.enter_context(tempfile.TemporaryDirectory(prefix="rlbox-bench-")))
        self.project = self.folder / "project"
        self.cache = self.folder / "cache"
        self.project.mkdir()
        self.cache.mkdir()
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("RLBOX_")}
        self.env["XDG_CACHE_HOME"] = str(self.cache)
        self.env["RLBOX_PROJECT_NAME"] = f"bench-{os.getpid()}"
        self.env.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's Python compiles a module once

    def __enter__(self) -> Place:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.on_close.close()

    def rlbox(self, *words: str, **details: Any) -> Case:
        """Return `rlbox WORDS` in the project, started as a user starts it."""
        script = Path(sys.executable).with_name("rlbox")
        program = (str(script),) if script.exists() else (sys.executable, "-m", "rlbox")
        return self.case((*program, *words), name=f"rlbox {' '.join(words)}", **details)

    def image(self, target: str) -> str:
        """Return the name of the image of one of the place's targets."""
        return format_rlbox_image_tag(target, self.env["RLBOX_PROJECT_NAME"])

    def python(self, code: str) -> Case:
        """Return `python -c CODE` with the interpreter that runs rlbox."""
        return self.case((sys.executable, "-c", code))

    def case(self, argv: tuple[str, ...], *, name: str = "", env: dict[str, str] | None = None, **details: Any) -> Case:
        """Return a command that runs in the project with the environment of the place and `env`."""
        env = {**self.env, **(env or {})}
        return Case(name=name or " ".join(argv), argv=argv, cwd=str(self.project), env=env, **details)

    def pick(self, full: _Made, small: _Made) -> _Made:
        """Return what fits the scale of this place."""
        return small if self.small else full

    def compare(self, ours: Measure, anchor: Measure, *limit: Measure) -> Sample:
        """Measure two things in turn, and what limits the first where that is given."""
        first, second, *third = self.interleave(ours, anchor, *limit)
        return Sample(ours=first, anchor=second, limit=third[0] if third else ())

    def interleave(self, *measures: Measure, warm_up: int = WARM_UP) -> list[tuple[float, ...]]:
        """Measure things in turn, commands by their wall time; a first round does not count where all is full-sized."""
        calls = [partial(time_process, one) if isinstance(one, Case) else one for one in measures]
        return interleave(calls, self.rounds, self.pick(warm_up, 0))

    def output(self, *words: str) -> Any:
        """Run `rlbox WORDS` with `--json` and return the object it prints."""
        case = self.rlbox(words[0], "--json", *words[1:])
        return json.loads(run(case.argv, env=case.env, cwd=case.cwd))

    def own_target(self, name: str) -> Path:
        """Make a target that includes `local`, with a lock of its own that pins the same, and return its `target.toml`.

        In a small place it is a target of little more than a Python, locked once for all.
        """
        folder = self.project / "images" / name
        folder.mkdir(parents=True)
        model = (
            self.kept.get(smallest_target)
            if self.small
            else Project(folder=self.project).own_or_shipped_lock_file("local").parent
        )
        (folder / "target.toml").write_text(self.pick('include = "local"\n', SMALLEST))
        if lock := load_lock(model / "lock.json"):
            (folder / "lock.json").write_text(dataclasses.replace(lock, target=name).to_json_text())
        return folder / "target.toml"

    def use_archives(self) -> None:
        """Use the user's own archives of operating systems, by a link; those that are made stay there."""
        archives = cache_path("bootstrap")
        archives.mkdir(parents=True, exist_ok=True)
        (self.cache / "rlbox").mkdir(exist_ok=True)
        (self.cache / "rlbox" / "bootstrap").symlink_to(archives)

    def remove_at_end(self, tag: str) -> str:
        """Have an image removed from the engine at the end; return its tag."""
        self.on_close.callback(subprocess.run, ["docker", "image", "rm", tag], check=False, capture_output=True)
        return tag


class OwnImage:
    """A target by `own_target` whose image is built, and the place that it is in.

    The image of `local` should have been built before: its layers are used, itself is left alone.
    """

    def __init__(self, place: Place) -> None:
        if shutil.which("docker") is None:
            raise NotHere("no docker client on PATH")
        self.place, self.name = place, f"bench-{os.getpid()}"
        self.image = place.image(self.name)
        place.own_target(self.name)
        place.use_archives()
        place.on_close.callback(_drop_contexts, _context_records())
        place.remove_at_end(self.image)
        for verb in ("lock", "build"):  # a lock that fits stays as it is
            run(place.rlbox(verb, self.name).argv, env=place.env, cwd=place.project)
        self.data = place.folder / "data"
        self.data.mkdir()


def smallest_target(place: Place) -> Path:
    """Return the folder of a target with an operating system, a Python and one package, and its lock."""
    folder = place.project / "images/smallest"
    folder.mkdir(parents=True)
    (folder / "target.toml").write_text(SMALLEST)
    place.env |= {
        "RLBOX_STORE": str(resolve_store_dir(None)),
        "RLBOX_SOURCES": os.environ.get("RLBOX_SOURCES", "direct"),
    }
    run(place.rlbox("lock", "smallest").argv, env=place.env, cwd=place.project)
    return folder


def find_tool(program: str) -> str | None:
    """Return where a program is: on PATH, or where `scripts/ensure-test-tools.sh` unpacked it; None without one."""
    return shutil.which(program) or shutil.which(program, path=str(Path(sys.prefix, "tools/usr/bin")))


def run(argv: tuple[str, ...], **details: Any) -> str:
    """Run a command and return its stdout; `Unusable` with its stderr when it fails."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False, **details)
    if done.returncode:
        raise Unusable(f"{' '.join(argv)}: exit code {done.returncode}\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}")
    return str(done.stdout)


def _context_records() -> set[str]:
    """Return the ids of the build contexts that BuildKit keeps; none when this client cannot say."""
    argv = ["docker", "buildx", "du", "--verbose", "--filter", "type=source.local"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return {line.split()[1] for line in done.stdout.splitlines() if line.startswith("ID:")}


def _drop_contexts(known: set[str]) -> None:
    if made := _context_records() - known:
        argv = ["docker", "buildx", "prune", "--force", "--filter", f"id=({'|'.join(sorted(made))})"]
        subprocess.run(argv, check=False, capture_output=True)
