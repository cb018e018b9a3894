"""Which machines and frameworks there are to begin with, and the texts of somebody's first files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlbox.config.project import Project
from rlbox.config.schema import suggest_similar
from rlbox.config.toml_files import load_toml
from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.image.templates import render

_HERE = Path(__file__).parent
SCHEMAS = ("target", "job")


@dataclass(frozen=True, kw_only=True)
class MachineChoice:
    """A kind of machine; `frameworks` maps those that a target has for it to that target, the usual first.

    `hardware` is what the written target says of the machine otherwise than the one it includes.
    """

    name: str
    title: str
    frameworks: Mapping[str, str]
    hardware: Mapping[str, str | int | float] = field(default_factory=dict)


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
        _("no target has a framework {framework!r}{suggest}").format(
            framework=framework, suggest=suggest_similar(framework, known)
        ),
        next_step=_("choose one of: {known}").format(known=", ".join(known)),
    )


def shipped_as(project: Project, name: str) -> str:
    """Return what rlbox ships by that name, `target` or `job`, which files of the project would hide; else nothing."""
    shipped = Project(folder=project.roots[-1])
    found = [kind for kind, names in (("target", shipped.targets()), ("job", shipped.jobs())) if name in names]
    own = project.folder == shipped.folder and len(found) == len(SCHEMAS)  # a checkout, in which it was begun before
    return found[0] if found and not own else ""


def refuse_arm64(machine: str, processor: str) -> None:
    """Refuse a machine with an ARM processor; `processor` is what `uname -m` says of this one."""
    if processor == "aarch64" or re.match(r"(nvidia-)?g[hb]\d{3}", machine.lower()):
        raise SpecError(
            _("rlbox has no targets for arm64 (GH200, GB200, GB300): the packages of its locks are for x86-64 alone"),
            next_step=_("take a machine with an x86-64 processor: rlbox init NAME --machine h200"),
        )


def choose_machine(name: str, arch: str, memory_gib: float, gpus: int = 0) -> MachineChoice:
    """Return the machine of that name; what is given besides takes the place of what is known of it.

    Parameters
    ----------
    arch, memory_gib
        As `sm_89`, and of one GPU. For a machine that the table does not have they make one.
    gpus
        Number of GPUs of the machine.

    Raises
    ------
    SpecError
        The name is not known and `arch` or memory is missing.
    """
    machines = load_machines()
    told: dict[str, str | int | float] = {"gpus": gpus, "gpu_memory_gib": memory_gib, "arch": arch}
    given = {key: value for key, value in told.items() if value}
    if name in machines:
        return replace(machines[name], hardware={**machines[name].hardware, **given})
    if not (arch and memory_gib):
        known = ", ".join(machines)
        raise SpecError(
            _("no machine {name!r} is known{suggest}").format(name=name, suggest=suggest_similar(name, [*machines])),
            next_step=_("choose one of: {known}; or describe its GPU: --arch sm_XX --memory-gib N").format(known=known),
        )
    hardware = {"gpu": name, "gpus": 1, **given, "grade": ""}
    return MachineChoice(name=name, title=name, frameworks={"verl": "hopper"}, hardware=hardware)


def choose_target(machine: MachineChoice, framework: str = "") -> str:
    """Return the target that a machine has for a framework, for its usual one without; `SpecError`: there is none."""
    if framework and framework not in machine.frameworks:
        machines = load_machines()
        elsewhere = [f"--machine {one.name}" for one in machines.values() if framework in one.frameworks]
        there = (
            _("; {framework} is on {elsewhere}").format(framework=framework, elsewhere=" and ".join(elsewhere))
            if elsewhere
            else ""
        )
        raise SpecError(
            _("no target has {framework} on {title}").format(framework=framework, title=machine.title),
            next_step=_("choose one of: {frameworks}{there}").format(
                frameworks=", ".join(machine.frameworks), there=there
            ),
        )
    return machine.frameworks[framework or next(iter(machine.frameworks))]


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
    values = {"name": name, "target": target, "title": machine.title, "hardware": dict(machine.hardware)}
    texts = {path: render([_HERE / "scaffold_files"], file, values) for path, file in places.items()}
    return texts | {f".rlbox/{kind}.schema.json": json.dumps(schemas[kind], indent=1) + "\n" for kind in SCHEMAS}
