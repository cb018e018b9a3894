"""Which machines and frameworks there are to begin with, and the texts of somebody's first files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlbox.errors import SpecError
from rlbox.image.templates import render
from rlbox.printable import isolated, of_spec
from rlbox.spec.check import suggest
from rlbox.spec.load import load_toml
from rlbox.spec.project import Project

_HERE = Path(__file__).parent
SCHEMAS = ("target", "job")


@dataclass(frozen=True, kw_only=True)
class MachineChoice:
    """A kind of machine; `frameworks` maps those that a target has for it to that target, the usual first."""

    name: str
    title: str
    frameworks: Mapping[str, str]


def load_machines() -> dict[str, MachineChoice]:
    """Return the machines that there are targets for, by name."""
    return {row["name"]: MachineChoice(**row) for row in load_toml(_HERE / "machines.toml")["machines"]}


def machines_with(framework: str) -> dict[str, MachineChoice]:
    """Return the machines that a target has a framework for, by name.

    Raises
    ------
    SpecError
        There is none.
    """
    machines = load_machines()
    if found := {name: one for name, one in machines.items() if framework in one.frameworks}:
        return found
    known = sorted({name for one in machines.values() for name in one.frameworks})
    raise SpecError(
        f"no target has a framework {framework!r}{suggest(framework, known)}",
        next_step=f"choose one of: {isolated(', '.join(known))}",
    )


def shipped_as(project: Project, name: str) -> str:
    """Return what rlbox ships by that name, `target` or `job`, which files of the project would hide; else nothing."""
    shipped = Project(folder=project.roots[-1])
    found = [kind for kind, names in (("target", shipped.targets()), ("job", shipped.jobs())) if name in names]
    own = project.folder == shipped.folder and len(found) == len(SCHEMAS)  # a checkout, in which it was begun before
    return found[0] if found and not own else ""


def choose_target(machine: str, framework: str = "") -> tuple[MachineChoice, str]:
    """Return the machine of that name and its target for a framework, for its usual one without.

    Raises
    ------
    SpecError
        There is no such machine, or it has no such framework.
    """
    machines = load_machines()
    if machine not in machines:
        known = isolated(", ".join(machines))
        raise SpecError(
            f"there is no target for a machine {machine!r} yet{suggest(machine, [*machines])}",
            next_step=f"choose one of: {known}; or begin with the nearest and change its target.toml",
        )
    found = machines[machine]
    if framework and framework not in found.frameworks:
        elsewhere = [f"--machine {one.name}" for one in machines.values() if framework in one.frameworks]
        there = f"; {isolated(framework)} is on {isolated(' and '.join(elsewhere))}" if elsewhere else ""
        raise SpecError(
            f"no target has {isolated(framework)} on {of_spec(found.title)}",
            next_step=f"choose one of: {isolated(', '.join(found.frameworks))}{there}",
        )
    return found, found.frameworks[framework or next(iter(found.frameworks))]


def first_files(name: str, machine: MachineChoice, target: str, schemas: Mapping[str, Any]) -> dict[str, str]:
    """Return the files of a target and a job `name` that includes `target`: path below the project to text.

    Parameters
    ----------
    schemas
        The JSON Schemas of `SCHEMAS`, by which an editor completes and checks the two.
    """
    places = {
        f"images/{name}/target.toml": "target.toml.txt",
        f"jobs/{name}.toml": "job.toml.txt",
        f"jobs/{name}/train.py": "train.py.txt",
    }
    values = {"name": name, "target": target, "title": machine.title}
    texts = {path: render([_HERE / "files"], file, values) for path, file in places.items()}
    return texts | {f".rlbox/{kind}.schema.json": json.dumps(schemas[kind], indent=1) + "\n" for kind in SCHEMAS}
