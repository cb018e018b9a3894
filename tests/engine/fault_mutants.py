"""Fixes of which one thing that they bake is deleted: a fault test that does not notice proves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rlbox.fixes.fix import Bake, BakedRun, Fix, RayWords


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A fix without one thing that it bakes."""

    name: str
    fix: Fix = field(repr=False)


def mutants(fix: Fix) -> Iterator[Mutant]:
    """Every way to delete one thing of what a fix bakes."""
    for name, bake in _bakes(fix.bake):
        yield Mutant(name=f"{fix.id}: {name}", fix=fix.model_copy(update={"bake": bake}))


def _bakes(bake: Bake) -> Iterator[tuple[str, Bake]]:
    for key in ("packages", "file", "link", "refuse", "patch"):
        rows = getattr(bake, key)
        for index, row in enumerate(rows):
            label = row if isinstance(row, str) else getattr(row, "path", None) or getattr(row, "name", index + 1)
            yield f"{key} {label}", bake.model_copy(update={key: rows[:index] + rows[index + 1 :]})
    for name in bake.env:
        yield f"env {name}", bake.model_copy(update={"env": _less(bake.env, name)})
    if bake.hook:
        yield "hook", bake.model_copy(update={"hook": ""})
    yield from _paths(bake)
    yield from ((label, bake.model_copy(update={"run": run})) for label, run in _runs(bake.run))
    yield from ((label, bake.model_copy(update={"ray": ray})) for label, ray in _rays(bake.ray))


def _paths(bake: Bake) -> Iterator[tuple[str, Bake]]:
    for name, folders in bake.path.items():
        for folder in folders:
            left = tuple(other for other in folders if other != folder)
            path = {**bake.path, name: left} if left else _less(bake.path, name)
            yield f"path {name} {folder}", bake.model_copy(update={"path": path})


def _runs(run: BakedRun) -> Iterator[tuple[str, BakedRun]]:
    for key, nothing in (("shm_gib", 0.0), ("pids", 0), ("cap_add", ())):
        if getattr(run, key):
            yield f"run {key}", run.model_copy(update={key: nothing})
    for name in run.ulimits:
        yield f"run ulimit {name}", run.model_copy(update={"ulimits": _less(run.ulimits, name)})


def _rays(ray: RayWords) -> Iterator[tuple[str, RayWords]]:
    if ray.before:
        yield "ray before", ray.model_copy(update={"before": ""})
    for role in ("common", "head", "worker"):
        words = getattr(ray, role)
        for index, word in enumerate(words):
            yield f"ray {role} {word[:40]}", ray.model_copy(update={role: words[:index] + words[index + 1 :]})


def _less(table: dict[str, object], name: str) -> dict[str, object]:
    return {key: value for key, value in table.items() if key != name}
