"""Goals 4 to 6: from specs to files."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from benchmarks.pairs import Case, Sample
from benchmarks.place import Place, run

TARGETS, FEW = 50, 3
REPEATS = 50


def files_missing(place: Place) -> Sample:
    """Specs as they were, rendered files gone: all are written again."""
    ours = place.rlbox("render", "local", before=place.forget_rendered, says="written")
    return place.compare(ours, _jinja(place))


def nothing_changed(place: Place) -> Sample:
    """Specs and rendered files as they were."""
    ours = place.rlbox("render", "local", says="images/local/Dockerfile  unchanged")
    run(ours.argv, env=ours.env, cwd=ours.cwd)
    return place.compare(ours, _jinja(place))


def spec_changed(place: Place) -> Sample:
    """The target's file has changed since the last render, so that it is checked and rendered in full."""
    place.own_target("mine")
    ours = place.rlbox("render", "mine", before=_changing(place), says="images/mine/Dockerfile  written")
    return place.compare(ours, _jinja(place))


def many(place: Place) -> Sample:
    """Fifty targets against one; specs as they were, rendered files gone."""
    names = _many_targets(place)
    case = place.rlbox("render", *names, before=place.forget_rendered, says=f"{names[-1]}/Dockerfile  written")
    return place.compare(case, place.rlbox("render", names[0], before=place.forget_rendered, says="written"))


def many_changed(place: Place) -> Sample:
    """Fifty targets against one; every target's file has changed since the last render."""
    names = _many_targets(place)
    case = place.rlbox("render", *names, before=_changing(place), says=f"{names[-1]}/Dockerfile  written")
    return place.compare(case, place.rlbox("render", names[0], before=_changing(place), says="written"))


def per_line(place: Place) -> Sample:
    """Seconds a line within one process, everything loaded: rlbox's template against hpccm's recipe of a like image."""
    return place.compare(_per_line(_own_render(place)), _per_line(_hpccm_recipe))


def _jinja(place: Place) -> Case:
    return place.python("import click,jinja2")


def _many_targets(place: Place) -> list[str]:
    names = [f"t{number:02}" for number in range(place.pick(TARGETS, FEW))]
    for name in names:
        place.own_target(name)
    return names


def _changing(place: Place) -> Callable[[], None]:
    count = itertools.count()

    def change() -> None:
        title = f"change {next(count)} of {id(count)}"
        for path in place.project.glob("images/*/target.toml"):
            path.write_text(f'include = "local"\ntitle = "{title}"\n')

    return change


def _per_line(render: Callable[[], str]) -> Callable[[], float]:
    lines = render().count("\n")

    def measure() -> float:
        began = time.perf_counter()
        for _ in range(REPEATS):
            render()
        return (time.perf_counter() - began) / REPEATS / lines

    return measure


def _own_render(place: Place) -> Callable[[], str]:
    """Return what renders the Dockerfile of `local`, with the fixes that apply to it."""
    from rlbox.config.project import Project
    from rlbox.fixes.catalogue import load_fix_catalogue
    from rlbox.fixes.conditions import map_packages_to_version_or_empty
    from rlbox.fixes.render import render_fixes_or_raise_refusal
    from rlbox.image.plan import build_dockerfile_values, group_adjacent_layers_by_stage, plan_python_layers
    from rlbox.image.templates import render_template
    from rlbox.target.lock import load_lock
    from rlbox.target.target import load_target

    project = Project(folder=place.project)
    target, lock = load_target(project, "local").target, load_lock(project.own_or_shipped_lock_file("local"))
    baked = render_fixes_or_raise_refusal(
        load_fix_catalogue(project), target, map_packages_to_version_or_empty(target, lock)
    )
    values = build_dockerfile_values(
        target, lock, group_adjacent_layers_by_stage(plan_python_layers(target, lock)), baked, ()
    )
    folders = project.template_dirs()
    return lambda: render_template(folders, "Dockerfile.j2", values)


def _hpccm_recipe() -> str:
    """Return hpccm's Dockerfile of an image like `local`: the same layers in the same order."""
    import hpccm  # type: ignore[import-untyped]

    image = hpccm.Stage(name="stack")
    image += hpccm.primitives.baseimage(image="debian:bookworm", _distro="ubuntu22", _as="stack")
    image += hpccm.primitives.comment("operating system, installer, entrypoint")
    image += hpccm.building_blocks.apt_get(ospackages=["ca-certificates", "iproute2", "libnuma1", "procps", "python3"])
    image += hpccm.primitives.environment(variables={"LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"})
    image += hpccm.primitives.copy(src="scripts/install.sh", dest="/opt/rlbox/libexec/install.sh")
    for group in ("runtime", "torch", "engine", "framework"):
        image += hpccm.primitives.comment(f"group {group}")
        image += hpccm.primitives.copy(src=f"requirements/{group}.txt", dest="/opt/rlbox/requirements/")
        image += hpccm.primitives.shell(
            commands=["export UV_CACHE_DIR=/root/.cache/uv", "mkdir -p /opt/venv", f"sh install.sh group {group}"]
        )
    image += hpccm.primitives.copy(src="rlbox", dest="/opt/rlbox/lib/rlbox")
    image += hpccm.primitives.environment(variables={f"SETTING_{number}": "1" for number in range(8)})
    image += hpccm.primitives.workdir(directory="/")
    image += hpccm.primitives.label(metadata={"rlbox.target": "local", "rlbox.spec": "0" * 64})
    image += hpccm.primitives.runscript(commands=["sh /opt/rlbox/libexec/entrypoint.sh"])
    return str(image) + "\n"
