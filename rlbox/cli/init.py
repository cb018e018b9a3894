"""`rlbox init`: write a target and a job of your own, and the JSON Schema by which an editor completes them."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import click
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from rlbox.app import App
from rlbox.artifacts.profile import Profile
from rlbox.cli.options import NON_NEGATIVE, dry_run_option, pass_app_with_shared_options
from rlbox.config.project import Project
from rlbox.config.schema import NAME_PATTERN, did_you_mean_hint
from rlbox.config.toml_files import load_toml
from rlbox.errors import MachineError, SpecError
from rlbox.fixes.fix import TEXT_KEYS, Fix
from rlbox.i18n import _, join
from rlbox.image.templates import render_template
from rlbox.job.job import Job
from rlbox.system.files import write_atomic
from rlbox.target.target import DEFAULTS, Target

_HERE = Path(__file__).parent


def load_machine_presets() -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in load_toml(_HERE / "machines.toml")["machines"]}


def _choose_machine(name: str, given_hardware: dict[str, Any]) -> dict[str, Any]:
    """Return a machine as machines.toml has them; `given_hardware` overrides what is known of it, or describes it."""
    if platform.machine() == "aarch64" or re.match(r"(nvidia-)?g[hb]\d{3}", name.lower()):
        raise SpecError(
            _("rlbox has no targets for arm64 (GH200, GB200, GB300): the packages of its locks are for x86-64 alone"),
            next_step=_("take a machine with an x86-64 processor: rlbox init NAME --machine h200"),
        )
    machines = load_machine_presets()
    if name in machines:
        return {**machines[name], "hardware": {**machines[name].get("hardware", {}), **given_hardware}}
    if not given_hardware.keys() >= {"arch", "gpu_memory_gib"}:
        raise SpecError(
            _("no machine {name!r} is known{suggest}").format(name=name, suggest=did_you_mean_hint(name, [*machines])),
            next_step=_("choose one of: {known}; or describe its GPU: --arch sm_XX --memory-gib N").format(
                known=", ".join(machines)
            ),
        )
    hardware = {"gpu": name, "gpus": 1, **given_hardware, "grade": ""}
    return {"name": name, "title": name, "target": "hopper", "hardware": hardware}


def _render_first_files(name: str, machine: dict[str, Any]) -> dict[str, str]:
    templates = {
        f"images/{name}/target.toml": "target.toml.txt",
        f"jobs/{name}.toml": "job.toml.txt",
        f"jobs/{name}/train.py": "train.py.txt",
    }
    values = {key: machine[key] for key in ("target", "title", "hardware")} | {"name": name}
    files = {path: render_template([_HERE / "scaffold_files"], file, values) for path, file in templates.items()}
    for spec_kind in ("target", "job"):  # by which an editor completes and checks the two
        files[f".rlbox/{spec_kind}.schema.json"] = json.dumps(create_spec_json_schema(spec_kind), indent=1) + "\n"
    return files


def overwrite_project_file(project: Project, relative_path: str, content: str) -> None:
    path = project.folder / relative_path
    try:
        write_atomic(path, content)
    except OSError as error:
        raise MachineError(
            _("{name} cannot be written: {strerror}").format(name=relative_path, strerror=error.strerror),
            where=str(path),
            next_step=_("make the project folder writable, or name another with --project DIR"),
        ) from error


@click.command("init")
@click.argument("name", metavar="[NAME]", default="")
@click.option(
    "--machine",
    metavar="MACHINE",
    required=True,
    help="cpu, a800, 5090, cluster, h100, h200, a100, b200, 4090, pro6000 or another GPU.",
)
@click.option("--arch", metavar="sm_XX", help="Architecture of the GPU: sm_89.")
@click.option("--memory-gib", metavar="N", type=NON_NEGATIVE, help="Memory of one GPU, GiB.")
@click.option("--gpus", metavar="N", type=click.IntRange(min=1), help="GPUs of the machine.")
@dry_run_option
@pass_app_with_shared_options
def create_missing_target_and_job_files(
    app: App, name: str, machine: str, arch: str | None, memory_gib: float | None, gpus: int | None
) -> int:
    """Create your own target and job in the project folder, named NAME or after the folder.

    The target includes the shipped one that fits the machine, and begins with its lock. The job runs at once:
    replace its train.py by your training. Existing files are left as they are. A GPU that rlbox does not know is
    described by --arch and --memory-gib.

    \b
    Examples:
      rlbox init --machine h200 --gpus 2
      rlbox init mine --machine cpu
    """
    if arch and not re.fullmatch(r"sm_\d{2,3}", arch):
        raise click.UsageError(_("{text!r} is not an architecture: sm_80, sm_89, sm_120").format(text=arch))
    name = name or re.sub(r"[^a-z0-9]+", "-", app.project.folder.resolve().name.lower()).strip("-")
    hardware = {"gpus": gpus, "gpu_memory_gib": memory_gib, "arch": arch}
    chosen = _choose_machine(machine, {key: value for key, value in hardware.items() if value})
    _require_usable_name(app.project, name)
    states = {path: _write_new_file(app, path, text) for path, text in _render_first_files(name, chosen).items()}
    data = {"name": name, "machine": chosen["name"], "includes": chosen["target"], "files": states}
    lines = join("\n", (join("  ", row) for row in states.items()))
    if app.dry_run:
        return app.print_dry_run(data, lines, _("write these files"))
    app.output(data, lines)
    command = f"rlbox lock {name} && rlbox build {name} && rlbox run {name}"
    app.print_next(command)
    return 0


def _require_usable_name(project: Project, name: str) -> None:
    if not re.fullmatch(NAME_PATTERN, name):
        raise SpecError(
            _("{name!r} is not a valid target name: lower-case letters, digits and dashes, 63 at most").format(
                name=name
            ),
            next_step="rlbox init mine --machine cpu",
        )
    shipped = Project(folder=project.roots[-1])
    kinds = [
        kind
        for kind, rows in (
            ("target", shipped.own_pack_and_shipped_target_files()),
            ("job", shipped.own_pack_and_shipped_job_files()),
        )
        if name in rows
    ]
    begun_in_checkout = project.folder == shipped.folder and len(kinds) == 2
    if kinds and not begun_in_checkout:
        raise SpecError(
            _("{name!r} is a {kind} that rlbox ships, and yours would take its place").format(name=name, kind=kinds[0]),
            next_step="rlbox init mine --machine cpu",
        )


def _write_new_file(app: App, path: str, text: str) -> str:
    file = app.project.folder / path
    if file.exists():
        same = file.is_file() and file.read_bytes() == text.encode()
        return _("unchanged") if same else _("already there, left as it is")
    if app.dry_run:
        return _("to be written")
    overwrite_project_file(app.project, path, text)
    return _("written")


SpecKind = Literal["target", "job", "profile", "fix"]
_SCHEMA_ID = "https://json.schemastore.org/rlbox-{kind}.json"
"""A name in the form of SchemaStore, where the schemas are not published yet: files refer to their local copy."""


def create_spec_json_schema(spec_kind: SpecKind) -> dict[str, Any]:
    """Return the JSON Schema of `target.toml` ("target"), of a job file, a sources profile or a fix.

    Keys that the shipped defaults fill, and the name, which is the file's own, are not required; a target that
    includes another need not repeat any key.
    """
    models: dict[SpecKind, type[BaseModel]] = {"target": Target, "job": Job, "profile": Profile, "fix": Fix}
    schema = models[spec_kind].model_json_schema()
    own = "id" if spec_kind == "fix" else "name"
    _optional(schema, own)
    schema["properties"].pop(own)
    schema["patternProperties"] = {"^x-": {"description": "your own keys; rlbox ignores them"}}
    if spec_kind == "profile":
        schema["properties"]["include"] = {"type": "string", "description": "profile whose rules are tried after these"}
    if spec_kind == "fix":  # one language is enough
        required = [key for key in TEXT_KEYS if key in schema["required"]]
        for key in required:
            _optional(schema, key)
        schema["allOf"] = [{"anyOf": [{"required": [key]}, {"required": [f"{key}_zh"]}]} for key in required]
    if spec_kind == "target":
        schema["properties"]["include"] = {
            "type": "string",
            "description": "target to start from; keys here override its keys",
        }
        _fill_defaults(schema, schema, load_toml(DEFAULTS))
        schema["anyOf"] = [{"required": ["include"]}, {"required": schema.pop("required")}]
    identity = {"$schema": GenerateJsonSchema.schema_dialect, "$id": _SCHEMA_ID.format(kind=spec_kind)}
    return {**identity, **schema, "title": f"rlbox {spec_kind}"}


def _fill_defaults(schema: dict[str, Any], node: dict[str, Any], defaults: Mapping[str, Any]) -> None:
    for key, value in defaults.items():
        _optional(node, key)
        below = node["properties"][key]
        if isinstance(value, Mapping) and "$ref" in below:
            _fill_defaults(schema, schema["$defs"][below["$ref"].rsplit("/", 1)[1]], value)
        else:
            below["default"] = value


def _optional(node: dict[str, Any], key: str) -> None:
    if key in node.get("required", ()):
        node["required"].remove(key)
