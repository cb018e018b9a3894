"""What the template of the Dockerfile loops over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from textwrap import wrap
from typing import Any

from rlbox.engine.container import CA_VARIABLES
from rlbox.fixes.patches import ResolvedPatch, format_patch_summaries, has_patches_to_apply
from rlbox.fixes.render import FixEnv, RenderedFixes
from rlbox.image.labels import build_image_labels
from rlbox.image.layers import BuildStage, lock_dir_in_context, map_git_http_to_context_paths
from rlbox.image.machine import build_container_defaults, format_rlbox_limits_env_value
from rlbox.image.templates import quote_dockerfile
from rlbox.target.artifact import TORCH_WHEEL_INDEX_URL
from rlbox.target.lock import Lock
from rlbox.target.target import Target

PARTS_STAGE = "rlbox.parts"
"""Name of the build stage that lays git trees and single files."""
_MOUNT = "--mount=type=bind,from={0},source=/out,target=/in/{0}"
_WIDTH = 150  # of a line, where it can be broken


@dataclass(frozen=True)
class _Stage:
    """A build stage as the template writes it; `index` is a channel of torch's wheels, or empty."""

    name: str
    large: bool
    begins: bool
    title: list[str]
    index: str


@dataclass(frozen=True)
class _Layer:
    stage: str
    name: str


@dataclass(frozen=True)
class _Env:
    title: str
    line: str


def build_dockerfile_values(
    target: Target,
    lock: Lock | None,
    stages: Sequence[BuildStage],
    rendered_fixes: RenderedFixes,
    patches: tuple[ResolvedPatch, ...],
) -> dict[str, Any]:
    parts, patched = _parts(target), has_patches_to_apply(patches)
    below = [*(stage.name for stage in stages), *([PARTS_STAGE] if parts else [])]
    return {
        "target": target,
        "interpreter": target.python.interpreter,
        "stages": [_stage(target, stage, stages[:number]) for number, stage in enumerate(stages)],
        "layers": [_Layer(*path.split("/")) for path in list_stage_layer_paths(target, stages)],
        "patched": _lines(*(_MOUNT.format(name) for name in below)) if patched else [],
        "patch_notes": format_patch_summaries(patches),
        "carried": {**dict.fromkeys(parts, "unlocked"), **(map_git_http_to_context_paths(lock) if lock else {})},
        "ca_names": CA_VARIABLES,
        "envs": [
            _Env(_env_title(block), _format_env_instruction(_env_words(block))) for block in rendered_fixes.env_blocks
        ],
        "own_env": _format_env_instruction(
            f"{name}={quote_dockerfile(value)}" for name, value in sorted(target.env.items())
        ),
        "limits": format_rlbox_limits_env_value(build_container_defaults(target, rendered_fixes)),
        "programs": any(file.mode == "0755" for file in rendered_fixes.files),
        "links": [*_link_commands(rendered_fixes.link_target_by_path), "sh /opt/tools/install.sh settle"],
        "lock": lock_dir_in_context(lock) if lock else "",
        "labels": build_image_labels(target, lock, rendered_fixes, patches),
    }


def list_stage_layer_paths(target: Target, stages: Iterable[BuildStage]) -> list[str]:
    """Return `STAGE/LAYER` of what the image has of its stack, git trees and files, the lowest layer first."""
    stack = [f"{stage.name}/{layer.name}" for stage in stages for layer in stage.layers]
    return [*stack, *(f"{PARTS_STAGE}/{part}" for part in _parts(target))]


def _format_env_instruction(assignments: Iterable[str]) -> str:
    """Return an ENV instruction: one line when it fits, else one a variable."""
    assignments = list(assignments)
    line = " ".join(["ENV", *assignments])
    return line if len(line) <= _WIDTH else "ENV " + " \\\n    ".join(assignments)


def _parts(target: Target) -> list[str]:
    return [tree.name for tree in target.git] + [file.name for file in target.http]


def _lines(*words: str) -> list[str]:
    return wrap(" ".join(words), _WIDTH, break_long_words=False, break_on_hyphens=False)


def _link_commands(links: Mapping[str, str]) -> list[str]:
    if not links:
        return []
    found = {f"/out{path}": to for path, to in sorted(links.items())}
    folders = sorted({quote(path.rpartition("/")[0]) for path in found})
    return [f"mkdir -p {' '.join(folders)}", *(f"ln -sfn {quote(to)} {quote(path)}" for path, to in found.items())]


def _stage(target: Target, stage: BuildStage, before: Sequence[BuildStage]) -> _Stage:
    begins = not before or before[-1].group != stage.group
    return _Stage(
        name=stage.name,
        large=stage.has_large_wheels,
        begins=begins,
        title=[
            *(_lines(_roots(target, stage)) if begins else []),
            *(_lines(_wheels(stage)) if stage.has_large_wheels else []),
        ],
        index=f"{TORCH_WHEEL_INDEX_URL}/{stage.torch_channel}" if stage.torch_channel else "",
    )


def _roots(target: Target, stage: BuildStage) -> str:
    roots = next(group.packages for group in target.stack if group.name == stage.group)
    return f"{stage.group}: {', '.join(roots)}"


def _wheels(stage: BuildStage) -> str:
    return f"large: {', '.join(f'{p.name}=={p.version}' for layer in stage.layers for p in layer.packages)}"


def _env_title(block: FixEnv) -> str:
    return f"{block.id}: {block.title}"


def _env_words(block: FixEnv) -> list[str]:
    return [
        *(f"{name}={quote_dockerfile(value)}" for name, value in sorted(block.env.items())),
        *(f"{name}={_in_front(name, folders)}" for name, folders in sorted(block.path.items())),
    ]


def _in_front(name: str, folders: Sequence[str]) -> str:
    """Return the value of a search path: `folders`, then what it holds already."""
    return f"{quote_dockerfile(':'.join(folders))}${{{name}:+:${name}}}"
