"""`rlbox targets`, `show` and `render`: print targets, jobs and images."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

import click

from rlbox.amounts import pad_translated
from rlbox.app import App
from rlbox.cli.init import SpecKind, create_spec_json_schema, overwrite_project_file
from rlbox.cli.options import complete_target, dry_run_option, pass_app_with_shared_options
from rlbox.config.schema import did_you_mean_hint
from rlbox.config.toml_files import load_toml
from rlbox.errors import SpecError, WorkFailed
from rlbox.fixes.catalogue import load_target_with_fix_apt_packages
from rlbox.i18n import _, join, translate
from rlbox.image.buildkit import BuildOptions
from rlbox.image.context import require_replaceable_context_dir
from rlbox.image.inputs import BuildContextWriter
from rlbox.image.plan import ImagePlan, load_image_plan
from rlbox.image.show import show_engine_image_or_raise_if_image_like
from rlbox.job.job import load_job
from rlbox.job.params import format_declared_param_lines
from rlbox.system.files import require_writable_or_creatable_directory
from rlbox.target.lock import load_lock
from rlbox.target.target import load_target
from rlbox.target.tested import describe_gpu_test_if_has_gpus


@click.command("targets")
@pass_app_with_shared_options
def list_targets_and_jobs(app: App) -> int:
    """List targets and jobs, with where each comes from; exit code 2 when the file of one cannot be read.

    For a GPU target, the list shows where its lock ran; without a recorded run it is untested. See `rlbox stack`.

    \b
    Examples:
      rlbox targets
    """
    rows: list[dict[str, Any]] = []
    for kind, paths in (
        ("target", app.project.own_pack_and_shipped_target_files()),
        ("job", app.project.own_pack_and_shipped_job_files()),
    ):
        for name, path in paths.items():
            pack = app.project.find_pack_or_none(path)
            source = "pack" if pack else "project" if app.project.is_own(path) else "shipped"
            row: dict[str, Any] = {"kind": kind, "name": name, "source": source, "problem": "", "title": ""}
            row["pack"] = pack.name if pack else None
            try:
                title = str(load_toml(path, app.project).get("title", ""))
                row["title"] = _(title) if title and app.project.is_shipped(path) else title
            except SpecError as error:  # the others are there all the same
                row["problem"] = error.what
            rows.append({**row, "status": _test_status(app, name) if kind == "target" else None})
    width = max((len(row["name"]) for row in rows), default=0)
    app.output({"found": rows}, "\n".join(_line(row, width) for row in rows))
    return SpecError.exit_code if any(row["problem"] for row in rows) else 0


def _test_status(app: App, name: str) -> str | None:
    """Return where a target's lock ran, or that it is untested; None for one without GPUs or that cannot be loaded."""
    try:
        return describe_gpu_test_if_has_gpus(
            load_target(app.project, name).target, load_lock(app.project.own_or_shipped_lock_file(name))
        )
    except SpecError:
        return None


def _line(row: dict[str, Any], width: int) -> str:
    kind = pad_translated(_("target") if row["kind"] == "target" else _("job"), 7)
    status = f" ({translate(row['status'])})" if row["status"] else ""
    pack = translate(_(" [pack {name}]").format(name=row["pack"])) if row["pack"] else ""
    return f"{kind} {row['name'].ljust(width)}  {translate(row['title'] or row['problem'])}{status}{pack}"


@click.command("show")
@click.argument("name", metavar="[NAME]", required=False, shell_complete=complete_target)
@click.option(
    "--schema",
    type=click.Choice(["target", "job", "profile", "fix"]),
    help="Print the JSON Schema of a file, for editors.",
)
@pass_app_with_shared_options
def show_target_job_or_image(app: App, name: str | None, schema: SpecKind | None) -> None:
    """Print the target or job NAME, completed with includes and defaults, after checking it; or explain an image.

    \b
    Examples:
      rlbox show local
    """
    if schema:
        click.echo(json.dumps(create_spec_json_schema(schema), indent=2))
        return
    if not name:
        raise click.UsageError(_("name a target, a job or an image, or give --schema"))
    targets, jobs = app.project.own_pack_and_shipped_target_files(), app.project.own_pack_and_shipped_job_files()
    if name in targets:
        data = load_target_with_fix_apt_packages(app.project, name).target.model_dump(mode="json")
        app.output({"target": data}, join("\n", [_("# target {name}").format(name=name), *_lines(data)]))
    elif name in jobs:
        job = load_job(app.project, name)
        data = job.model_dump(mode="json")
        rest = {key: value for key, value in data.items() if key != "params"}
        lines = [_("# job {name}").format(name=name), *format_declared_param_lines(job), *_lines(rest)]
        app.output({"job": data}, join("\n", lines))
    elif not show_engine_image_or_raise_if_image_like(app, name):
        known = [*targets, *jobs]
        raise SpecError(
            _("unknown target or job {name!r}{suggest}").format(name=name, suggest=did_you_mean_hint(name, known)),
            next_step=_("choose one of: {known}").format(known=", ".join(known)),
        )


def _lines(data: Any, path: str = "") -> list[str]:
    if isinstance(data, dict) and data:
        return [line for key, value in data.items() for line in _lines(value, f"{path}.{key}" if path else key)]
    if isinstance(data, list) and data and isinstance(data[0], dict):
        return [line for number, value in enumerate(data) for line in _lines(value, f"{path}[{number}]")]
    return [f"{path} = {json.dumps(data, ensure_ascii=False)}"]


@click.command("render")
@click.argument("names", metavar="[TARGET]...", nargs=-1, shell_complete=complete_target)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 with a diff when a rendered file is stale.")
@click.option(
    "--context",
    "context_dir",
    metavar="FOLDER",
    help="Also write the complete build context there, for plain docker build.",
)
@click.option("--hermetic", is_flag=True, help="With --context: carry every locked file, for a build without network.")
@dry_run_option
@pass_app_with_shared_options
def render_dockerfiles(app: App, names: tuple[str, ...], check: bool, context_dir: str | None, hermetic: bool) -> int:
    """Write the Dockerfile of each TARGET (all of them by default) into the project folder.

    \b
    Examples:
      rlbox render local
      rlbox render --check
    """
    if context_dir and (len(names) != 1 or check):
        raise click.UsageError(_("--context takes one target, and no --check"))
    if hermetic and not context_dir:
        raise click.UsageError(_("--hermetic says what --context carries"))
    plans = [
        load_image_plan(app.project, name) for name in (names or tuple(app.project.own_pack_and_shipped_target_files()))
    ]
    stale = {name: text for plan in plans for name, text in plan.rendered_files.items() if _differs(app, name, text)}
    if check and stale:
        raise WorkFailed(_diff(app, stale), next_step=f"rlbox render {' '.join(names)}".rstrip())
    for name, text in stale.items():
        if not app.dry_run:
            overwrite_project_file(app.project, name, text)
    if context_dir:
        _write_context(app, plans[0], Path(context_dir), hermetic=hermetic)
    files = sorted({name for plan in plans for name in plan.rendered_files})
    data = {"targets": [plan.target for plan in plans], "files": files, "changed": sorted(stale)}
    written = _("stale") if app.dry_run else _("written")
    text = join("\n", (join("  ", (name, written if name in stale else _("unchanged"))) for name in files))
    if app.dry_run:
        parts = sorted(stale) + ([_("the build context to {folder}").format(folder=context_dir)] if context_dir else [])
        would = _("write {path}").format(path=join(", ", parts)) if parts else _("write nothing")
        return app.print_dry_run(data, text, would)
    app.output(data, text)
    return 0


def _differs(app: App, name: str, text: str) -> bool:
    try:
        return (app.project.folder / name).read_bytes() != text.encode()
    except OSError:
        return True


def _write_context(app: App, plan: ImagePlan, folder: Path, *, hermetic: bool) -> None:
    with app.collecting_refusals_if_dry_run("folder"):
        require_writable_or_creatable_directory(folder, "--context")
        require_replaceable_context_dir(folder)
    with app.collecting_refusals_if_dry_run("lock"):
        inputs = BuildContextWriter(app, plan, BuildOptions(hermetic=hermetic))
        if app.dry_run:
            inputs.check_and_plan_request_for_dry_run()
        else:
            inputs.fetch_and_write_context(folder)


def _diff(app: App, stale: dict[str, str]) -> str:
    lines: list[str] = []
    for name, text in sorted(stale.items()):
        path = app.project.folder / name
        old = path.read_text("utf-8", "replace").splitlines() if path.is_file() else []
        lines += difflib.unified_diff(old, text.splitlines(), name, f"{name} (rendered now)", lineterm="")
    return _("rendered files are stale\n{lines}").format(lines="\n".join(lines))
