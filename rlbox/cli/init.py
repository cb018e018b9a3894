"""`rlbox init`: write a target and a job of your own."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlbox.app import App
from rlbox.cli.options import NonNegativeNumber, dry_run_option, pass_app_with_shared_options
from rlbox.config.project import Project
from rlbox.config.schema import suggest_similar
from rlbox.config.toml_files import load_toml
from rlbox.errors import NodeError, SpecError
from rlbox.i18n import _
from rlbox.image.templates import render_template

if TYPE_CHECKING:
    from rlbox.cli.schema import SpecKind

_HERE = Path(__file__).parent
SCHEMAS: tuple[SpecKind, ...] = ("target", "job")


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


def _find_shipped_spec_kind(project: Project, name: str) -> str:
    """Return what rlbox ships by that name, `target` or `job`, which files of the project would hide; else nothing."""
    shipped = Project(folder=project.roots[-1])
    found = [kind for kind, names in (("target", shipped.targets()), ("job", shipped.jobs())) if name in names]
    own = project.folder == shipped.folder and len(found) == len(SCHEMAS)  # a checkout, in which it was begun before
    return found[0] if found and not own else ""


def _require_x86_64_machine(machine: str, processor: str) -> None:
    """Refuse a machine with an ARM processor; `processor` is what `uname -m` says of this one."""
    if processor == "aarch64" or re.match(r"(nvidia-)?g[hb]\d{3}", machine.lower()):
        raise SpecError(
            _("rlbox has no targets for arm64 (GH200, GB200, GB300): the packages of its locks are for x86-64 alone"),
            next_step=_("take a machine with an x86-64 processor: rlbox init NAME --machine h200"),
        )


def _choose_machine(name: str, arch: str, memory_gib: float, gpus: int = 0) -> MachineChoice:
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


def _choose_target(machine: MachineChoice, framework: str = "") -> str:
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


def _render_first_files(name: str, machine: MachineChoice, target: str, schemas: Mapping[str, Any]) -> dict[str, str]:
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
    texts = {path: render_template([_HERE / "scaffold_files"], file, values) for path, file in places.items()}
    return texts | {f".rlbox/{kind}.schema.json": json.dumps(schemas[kind], indent=1) + "\n" for kind in SCHEMAS}


def overwrite_project_file(project: Project, relative_path: str, content: str) -> None:
    """Write a file of the project folder, whole or not at all.

    Raises
    ------
    NodeError
        The folder is read-only or full.
    """
    from rlbox.system.files import write_atomic

    path = project.folder / relative_path
    try:
        write_atomic(path, content)
    except OSError as error:
        raise NodeError(
            _("{name} cannot be written: {strerror}").format(name=relative_path, strerror=error.strerror),
            where=str(path),
            next_step=_("make the project folder writable, or name another with --project DIR"),
        ) from error


def _parse_arch(text: str) -> str:
    """Return an architecture as compilers name it, `sm_90`."""
    if text and not re.fullmatch(r"sm_\d{2,3}", text):
        raise click.UsageError(_("{text!r} is not an architecture: sm_80, sm_89, sm_120").format(text=text))
    return text


@click.command()
@click.argument("name", metavar="[NAME]", default="")
@click.option(
    "--machine",
    metavar="MACHINE",
    required=True,
    help="cpu, a800, 5090, cluster, h100, h200, a100, b200, 4090, pro6000 or another GPU.",
)
@click.option("--arch", metavar="sm_XX", default="", help="Architecture of the GPU: sm_89.")
@click.option("--memory-gib", metavar="N", type=NonNegativeNumber(), default=0.0, help="Memory of one GPU, GiB.")
@click.option("--gpus", metavar="N", type=click.IntRange(min=1), default=None, help="GPUs of the machine.")
@click.option("--framework", metavar="FRAMEWORK", default="", help="verl, slime, openrlhf, trl, …: what its image has.")
@dry_run_option
@pass_app_with_shared_options
def init(app: App, name: str, machine: str, arch: str, memory_gib: float, gpus: int | None, framework: str) -> int:
    """Create a target and a job of your own in the project folder, named NAME or after the folder.

    The target includes the shipped one that fits machine and framework, and begins with its lock. The job runs at once:
    replace its train.py by your training. Existing files are left as they are. A GPU that rlbox does not know is
    described by --arch and --memory-gib.

    \b
    Examples:
      rlbox init --machine h200 --gpus 2
      rlbox init mine --machine cpu
      rlbox init mine --machine cluster --framework openrlhf
      rlbox init mine --machine l40s --arch sm_89 --memory-gib 48
    """
    from rlbox.cli.schema import create_json_schema

    _require_x86_64_machine(machine, platform.machine())
    name = _checked(app, name or re.sub(r"[^a-z0-9]+", "-", app.project.folder.resolve().name.lower()).strip("-"))
    found = _choose_machine(machine, _parse_arch(arch), memory_gib, gpus or 0)
    target = _choose_target(found, framework)
    files = _render_first_files(name, found, target, {kind: create_json_schema(kind) for kind in SCHEMAS})
    states = {path: _write(app, path, text) for path, text in files.items()}
    told = {"name": name, "machine": found.name, "includes": target, "files": states}
    lines = "\n".join(f"{path}  {state}" for path, state in states.items())
    if app.dry_run:
        return app.planned(told, lines, "write these files")
    app.result(told, lines)
    app.print_status(f"next: rlbox lock {name} && rlbox build {name} && rlbox run {name}")
    return 0


def _checked(app: App, name: str) -> str:
    from rlbox.config.schema import NAME_PATTERN

    if not re.fullmatch(NAME_PATTERN, name):
        raise SpecError(
            _("{name!r} is not a valid target name: lower-case letters, digits and dashes, 63 at most").format(
                name=name
            ),
            next_step="rlbox init NAME",
        )
    if kind := _find_shipped_spec_kind(app.project, name):
        raise SpecError(
            _("{name!r} is a {kind} that rlbox ships, and yours would take its place").format(name=name, kind=kind),
            next_step="rlbox init NAME",
        )
    return name


def _write(app: App, path: str, text: str) -> str:
    file = app.project.folder / path
    if file.exists():
        same = file.is_file() and file.read_bytes() == text.encode()
        return "unchanged" if same else "already there, left as it is"
    if app.dry_run:
        return "to be written"
    overwrite_project_file(app.project, path, text)
    return "written"
