"""Goal 7: a build that need not happen."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.pairs import Case, Sample
from benchmarks.place import OwnImage, Place, run


def unchanged(place: Place) -> Sample:
    """`rlbox build` proves that nothing changed; the anchor has BuildKit find that out."""
    own = place.kept.get(OwnImage)
    return place.compare(own.place.rlbox("build", own.name, says="unchanged"), quiet_build(own.place, own.name))


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
