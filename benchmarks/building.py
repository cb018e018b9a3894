"""Goals 7 and 8: a build that need not happen, and what rlbox adds to one that must."""

from __future__ import annotations

from benchmarks.pairs import Case, Sample
from benchmarks.place import Place, run


def unchanged(place: Place) -> Sample:
    """`rlbox build` proves that nothing changed; the anchor has BuildKit find that out."""
    target = place.built_target()
    return place.compare(place.rlbox("build", target, says="unchanged"), quiet_build(place, target))


def through_buildkit(place: Place) -> Sample:
    """`rlbox build --rebuild` against the command that it runs; every step is in BuildKit's cache."""
    target = place.built_target()
    anchor = _cached(place, _bare_build(place, target))
    return place.compare(place.rlbox("build", target, "--rebuild", says="built"), anchor)


def quiet_build(place: Place, target: str) -> Case:
    """Return `docker buildx build --quiet` of a target that is built; every step is in BuildKit's cache."""
    argv = tuple(word for word in _bare_build(place, target) if not word.startswith("--progress"))
    return _cached(place, (*argv[:-1], "--quiet", argv[-1]))


def _bare_build(place: Place, target: str) -> tuple[str, ...]:
    """Return the command of `rlbox build --dry-run` for a tag and a copy of the context of our own."""
    context = place.folder / "context"
    run(place.rlbox("render", target, "--context", str(context)).argv, env=place.env, cwd=place.project)
    sources = place.folder / "sources.env"
    sources.write_text("")
    tag = place.remove_at_end(f"{target}:bare")
    command = place.output("build", target, "--dry-run")["command"]
    words = [word.replace("src=SOURCES", f"src={sources}") for word in command[:-1]]
    return (*(f"--tag={tag}" if word.startswith("--tag=") else word for word in words), str(context))


def _cached(place: Place, argv: tuple[str, ...]) -> Case:
    """Return the build command, after one run of it."""
    run(argv, env=place.env, cwd=place.project)
    return place.case(argv, name=" ".join(argv[:3]))
