"""Goals 21 and 22: an image into a registry, and into a file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from benchmarks.pairs import Case, Sample, time_process
from benchmarks.place import Place, run
from benchmarks.registry import Registry, running_registry
from benchmarks.stack import Stack


def push_to_empty(place: Place) -> Sample:
    """`rlbox push` against `docker push`, each time into a registry of its own that is empty."""
    stack = place.kept.get(Stack)

    def fresh(case: Callable[[Stack, Registry], Case]) -> Callable[[], float]:
        def measure() -> float:
            with running_registry() as registry, contextlib.closing(_Tagged(stack, registry)):
                return time_process(case(stack, registry))

        return measure

    return place.compare(fresh(_ours), fresh(_docker), fresh(_library))


def push_nothing_new(place: Place) -> Sample:
    """The same into a registry that has everything."""
    stack = place.kept.get(Stack)
    with running_registry() as registry, contextlib.closing(_Tagged(stack, registry)):
        for case in (_docker(stack, registry), _ours(stack, registry)):
            time_process(case)
        return place.compare(_ours(stack, registry), _docker(stack, registry), _library(stack, registry))


def save_to_file(place: Place) -> Sample:
    """`rlbox save` against `docker save >FILE`; the file of the round before is gone."""
    stack = place.kept.get(Stack)
    ours, anchor = place.folder / "ours.tar", place.folder / "docker.tar"
    save = stack.place.rlbox("save", stack.name, str(ours), before=_without(ours), says="sha256:")
    words = ("sh", "-c", 'exec docker save "$0" >"$1"', stack.image, str(anchor))
    return place.compare(save, place.case(words, name="docker save", before=_without(anchor)))


def _without(path: Path) -> Callable[[], None]:
    return lambda: path.unlink(missing_ok=True)


class _Tagged:
    """The stack's image under the name that `docker push` needs."""

    def __init__(self, stack: Stack, registry: Registry) -> None:
        self._name = _name(registry)
        run(("docker", "tag", stack.image, self._name))

    def close(self) -> None:
        run(("docker", "rmi", "--no-prune", self._name))


def _name(registry: Registry) -> str:
    return f"{registry.host}/docker:1"


def _docker(stack: Stack, registry: Registry) -> Case:
    return stack.place.case(("docker", "push", "--quiet", _name(registry)), name="docker push")


def _library(stack: Stack, registry: Registry) -> Case:
    """Return the push that docker-py does by itself: what a Python program that goes the documented way costs."""
    return stack.place.python(f"import docker; print(docker.from_env().images.push({_name(registry)!r}))")


def _ours(stack: Stack, registry: Registry) -> Case:
    return stack.place.rlbox("push", stack.name, "--to", f"{registry.host}/ours:1", says="sha256:")
