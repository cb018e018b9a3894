"""Goals 7 and 8: a build that need not happen, and what rlbox adds to one that must."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks.pairs import Case, Sample
from benchmarks.place import OwnImage, Place, run


def unchanged(place: Place) -> Sample:
    """`rlbox build` proves that nothing changed; the anchor has BuildKit find that out."""
    own = place.kept.get(OwnImage)
    return place.compare(own.place.rlbox("build", own.name, says="unchanged"), quiet_build(own.place, own.name))


def through_buildkit(place: Place) -> Sample:
    """`rlbox build --rebuild` against the command that it runs; every step is in BuildKit's cache."""
    own = place.kept.get(OwnImage)
    argv = _bare_build(own.place, own.name)
    ours = own.place.rlbox("build", own.name, "--rebuild", says="built")
    return place.compare(ours, _cached(own.place, argv), own.place.python(_through_library(own.image, argv)))


def bare_build_after(place: Place, target: str, change: Callable[[], None]) -> Case:
    """Return the command of `rlbox build` as `_through_library` runs it, each time after `change` of the target."""
    argv = _bare_build(place, target)

    def before() -> None:
        change()
        run(place.rlbox("render", target, "--context", argv[-1]).argv, env=place.env, cwd=place.project)

    return replace(place.python(_through_library(place.image(target), argv)), before=before)


def _through_library(image: str, argv: tuple[str, ...]) -> str:
    """Return a Python program that asks the engine for an image through docker-py and runs a build."""
    return f"import docker, subprocess; docker.from_env().images.get({image!r}); subprocess.run({argv!r}, check=True)"


def quiet_build(place: Place, target: str) -> Case:
    """Return `docker buildx build --quiet` of a target that is built; every step is in BuildKit's cache."""
    argv = tuple(word for word in _bare_build(place, target) if not word.startswith("--progress"))
    return _cached(place, (*argv[:-1], "--quiet", argv[-1]))


def _bare_build(place: Place, target: str) -> tuple[str, ...]:
    """Return the command of `rlbox build --rebuild --dry-run` for a tag and a copy of the context of our own."""
    context = Path(tempfile.mkdtemp(dir=place.folder)) / "context"
    run(place.rlbox("render", target, "--context", str(context)).argv, env=place.env, cwd=place.project)
    sources = context.with_name("sources.env")
    sources.write_text("")
    tag = place.remove_at_end(f"{target}:bare")
    command = place.output("build", target, "--rebuild", "--dry-run")["command"]
    words = [word.replace("src=SOURCES", f"src={sources}") for word in command[:-1]]
    return (*(f"--tag={tag}" if word.startswith("--tag=") else word for word in words), str(context))


def _cached(place: Place, argv: tuple[str, ...]) -> Case:
    """Return the build command, after one run of it."""
    run(argv, env=place.env, cwd=place.project)
    return place.case(argv, name=" ".join(argv[:3]))
