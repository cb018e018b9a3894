"""Render the fixes of a target: files and environment of the image, container limits, manifest of their checks."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined, Template, TemplateError

from rlbox.config.schema import SpecModel
from rlbox.diagnose.signatures import dump_signatures_json, extract_signatures
from rlbox.errors import SpecError
from rlbox.fixes.conditions import VersionMap, check_package_requirement, evaluate_fix, find_torch_cuda_or_empty
from rlbox.fixes.fix import Bake, BakedFile, Fix, RayStartOptions
from rlbox.i18n import _, join, render_message
from rlbox.target.target import Target

if TYPE_CHECKING:
    from rlbox.job.gate import FixBenignRule


HOOKS_DIR = "/opt/rlbox/hooks"
RAY_START_PROGRAM = "/opt/rlbox/bin/ray-start"

_RAY_START = """#!/bin/sh
# Start Ray with what this image's version of it takes: ray-start [--print] head | worker [ARG...]; an argument of yours
# comes last and wins. --print: print the words, one a line, and start nothing.
. /opt/rlbox/libexec/init.sh
print=
if [ "${1:-}" = --print ]; then
    print=yes
    shift
fi
role=${1:-}
case $role in
head | worker) shift ;;
*)
    echo "ray-start: head or worker, then arguments of ray start" >&2
    exit 2
    ;;
esac
{% if before %}
if [ -z "$print" ]; then
    :
{{ before }}
fi
{% endif %}
case $role in
head) set -- --head {{ head }} {{ common }} "$@" ;;
worker) set -- {{ worker }} {{ common }} "$@" ;;
esac
if [ -n "$print" ]; then
    printf '%s\\n' ray start "$@"
    exit 0
fi
exec ray start "$@"
"""

_TEMPLATES = Environment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True, trim_blocks=True)  # noqa: S701 - no HTML


@functools.lru_cache(maxsize=1024)
def _template(text: str) -> Template:
    return _TEMPLATES.from_string(text)


@dataclass(frozen=True, kw_only=True)
class FixEnvBlock:
    """The environment that one fix bakes; `path` are directories in front of what a variable has already."""

    id: str
    title: str
    env: Mapping[str, str]
    path: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class RenderedFixes:
    """The fixes of a target as what they bake.

    `env_blocks` are in the order of ENV lines: what comes later is put in front of a path.
    """

    fixes: tuple[Fix, ...]
    env_blocks: tuple[FixEnvBlock, ...]
    files: tuple[BakedFile, ...]
    link_target_by_path: Mapping[str, str]
    shm_gib: float
    ulimits: Mapping[str, str]

    def build_env_including_inherited(self, inherited_env: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a container of an image that has `inherited_env` without the fixes."""
        found = dict(inherited_env)
        for block in self.env_blocks:
            found |= block.env
            for name, folders in block.path.items():
                found[name] = ":".join([*folders, *([found[name]] if found.get(name) else [])])
        return found


def select_applicable_fixes(fixes: Iterable[Fix], target: Target, versions: VersionMap) -> tuple[Fix, ...]:
    """Return the fixes that a target needs, in their order; `SpecError` when it switches off one that is none."""
    known = {fix.id for fix in fixes}
    if unknown := sorted(set(target.fixes.off) - known):
        raise SpecError(
            _("fixes.off: there is no fix {unknown!r}").format(unknown=unknown[0]), next_step="rlbox fixes ls"
        )
    found = [fix for fix in fixes if evaluate_fix(fix, target, versions).applies]
    return tuple(sorted(found, key=lambda fix: (fix.order, fix.id)))


def list_secret_alias_groups(fixes: Iterable[Fix]) -> tuple[tuple[str, ...], ...]:
    return tuple(group for fix in fixes for group in fix.bake.aliases)


def render_fixes_or_raise_refusal(catalogue: Sequence[Fix], target: Target, versions: VersionMap) -> RenderedFixes:
    """Return what the fixes that `target` needs bake.

    Raises SpecError: A fix refuses the spec (all that do are named), two fixes disagree, or a template of a fix is
      broken.
    """
    chosen = select_applicable_fixes(catalogue, target, versions)
    values = build_fix_template_values(target, versions)
    _refuse(chosen, target, values)
    filled = [(fix, render_bake_keeping_patches_and_refusals(fix, values)) for fix in chosen]
    baked = RenderedFixes(
        fixes=chosen,
        env_blocks=tuple(
            FixEnvBlock(
                id=fix.id, title=fix.title, env=dict(sorted(bake.env.items())), path=dict(sorted(bake.path.items()))
            )
            for fix, bake in reversed(filled)
            if bake.env or bake.path
        ),
        files=(*_files(filled), *_ray_start([bake.ray for __, bake in filled], versions)),
        link_target_by_path={link.path: link.to for __, bake in filled for link in bake.link},
        shm_gib=max((fix.bake.run.shm_gib for fix in chosen), default=0.0),
        ulimits={name: limit for fix in chosen for name, limit in fix.bake.run.ulimits.items()},
    )
    _check_agreement(baked)
    return baked


def build_fix_template_values(target: Target, versions: VersionMap) -> dict[str, Any]:
    return {
        "target": target,
        "hardware": target.hardware,
        "disk": target.disk.mount,
        "python": target.python.version,
        "site": f"/opt/venv/lib/python{target.python.version}/site-packages",
        "cuda": find_torch_cuda_or_empty(target, versions),
        "has": lambda text: check_package_requirement(text, versions).holds,
        "version": lambda name: versions.get(name, ""),
        "aliases": (),  # a hook sees those of its fix
    }


def render_fix_template(template: str, values: Mapping[str, Any], source: str) -> str:
    if "{{" not in template and "{%" not in template and "{#" not in template:
        return template
    try:
        return _template(template).render(values)
    except TemplateError as error:
        raise SpecError(
            _("{where}: broken template: {error}").format(where=source, error=error), next_step=_("correct the fix")
        ) from error


def render_bake_keeping_patches_and_refusals(fix: Fix, values: Mapping[str, Any]) -> Bake:
    """Return what a fix bakes with its templates filled in for one target; patches and refusals are left as they are.

    Raises SpecError: A template is broken.
    """
    seen = {**values, "aliases": fix.bake.aliases}

    def filled(data: Any) -> Any:
        if isinstance(data, str):
            return render_fix_template(data, seen, _where(fix))
        if isinstance(data, SpecModel):
            return data.model_copy(update={key: filled(value) for key, value in data})
        if isinstance(data, dict):
            return {key: filled(value) for key, value in data.items()}
        return tuple(map(filled, data)) if isinstance(data, tuple) else data

    return fix.bake.model_copy(update={key: filled(value) for key, value in fix.bake if key not in ("patch", "refuse")})


def _files(filled: Iterable[tuple[Fix, Bake]]) -> Iterable[BakedFile]:
    for fix, bake in filled:
        yield from bake.file
        if bake.hook:
            text = f"# {fix.title}\n{bake.hook}"
            yield BakedFile(path=f"{HOOKS_DIR}/{fix.order:02d}-{fix.id}.sh", mode="0644", text=text)


def _ray_start(options: Sequence[RayStartOptions], versions: VersionMap) -> Iterable[BakedFile]:
    words = {
        role: " ".join(word for ray in options for word in getattr(ray, role) if word)
        for role in ("common", "head", "worker")
    }
    before = "\n".join(f"(\n{text}\n) || exit" for ray in options if (text := ray.before.strip()))
    if before or any(words.values()) or "ray" in versions:
        text = _template(_RAY_START).render(before=before, **words)
        yield BakedFile(path=RAY_START_PROGRAM, mode="0755", text=text)


def _refuse(chosen: Iterable[Fix], target: Target, values: Mapping[str, Any]) -> None:
    found: dict[str, str] = {}
    for fix in chosen:
        for row in fix.bake.refuse:
            if render_fix_template(f"{{% if {row.condition} %}}refused{{% endif %}}", values, _where(fix)):
                fill = functools.partial(render_fix_template, values=values, source=_where(fix))
                says, step = (render_message(text, fill) for text in (row.says, row.next))
                found[_("{says} (fix {fix_id}): {step}").format(says=says, fix_id=fix.id, step=step)] = fix.id
    if found:
        raise SpecError(
            join("\n  ", found),
            where=f"images/{target.name}/target.toml",
            next_step=_('correct the spec, or switch the fix off: fixes.off.{found} = "why"').format(
                found=next(iter(found.values()))
            ),
        )


def _check_agreement(baked: RenderedFixes) -> None:
    seen: dict[tuple[str, str], tuple[str, str]] = {}
    rows = [(block.id, "env", name, text) for block in baked.env_blocks for name, text in block.env.items()]
    rows += [(file.path, "file", file.path, file.text) for file in baked.files]
    for owner, kind, name, text in rows:
        other, known = seen.setdefault((kind, name), (owner, text))
        if known != text:
            raise SpecError(
                _("fixes {other} and {owner} disagree on {kind} {name}").format(
                    other=other, owner=owner, kind=kind, name=name
                ),
                next_step=_("correct one of them"),
            )


def _where(fix: Fix) -> str:
    return f"templates/fixes/{fix.id}.toml"


MANIFEST_SCHEMA = 1
SIGNATURE_FIELDS = {"id", "title", "failure", "remedy", "heals", "benign", "signature"}
"""What of a fix a judge of logs needs."""
_TOLD = {"id", "title", "title_zh", "remedy", "remedy_zh", "heals"}


def render_fix_check_manifest_json(
    fixes: Iterable[Fix], target: Target, versions: VersionMap, machine_requirements: Mapping[str, Any]
) -> str:
    """Return the manifest as JSON text.

    Keys: `schema`, `target` (its name), `facts` (`machine_requirements`), and `fixes`, each with id, titles, remedies,
    the causes that it heals, and its check (`run`, `when`) or null.
    """
    values = build_fix_template_values(target, versions)
    rows = []
    for fix in fixes:
        check = fix.check and {
            "run": render_fix_template(fix.check.run, values, _where(fix)),
            "when": list(fix.check.when),
        }
        rows.append({**fix.model_dump(mode="json", include=_TOLD), "check": check})
    data = {"schema": MANIFEST_SCHEMA, "target": target.name, "facts": machine_requirements, "fixes": rows}
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def render_signatures_json(fixes: Iterable[Fix]) -> str:
    return dump_signatures_json(extract_signatures(fix.model_dump(include=SIGNATURE_FIELDS) for fix in fixes)) + "\n"


def list_rules_of_benign_prefixed_fixes(fixes: Iterable[Fix]) -> tuple[FixBenignRule, ...]:
    """Return the benign lines of the catalogue, in any log.

    Those of fixes named `benign-…`; another benign fix tells that nothing is broken, not that nothing happened.
    """
    from rlbox.job.gate import FixBenignRule

    return tuple(
        FixBenignRule(pattern=signature.pattern, after=signature.after, why=fix.title, known=fix.id)
        for fix in fixes
        if fix.benign and fix.id.startswith("benign-")
        for signature in fix.signature
    )
