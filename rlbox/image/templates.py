"""Templates to text. Logic belongs in the plans; a template loops and tests a flag."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


@cache
def _create_template_environment(template_dirs: tuple[Path, ...]) -> Environment:
    env = Environment(
        loader=FileSystemLoader(template_dirs),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - the output is a Dockerfile, not HTML
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    env.filters["quote"] = shlex.quote
    env.filters["dockerfile"] = quote_dockerfile
    env.filters["compose"] = quote_compose
    env.filters["bytes"] = lambda gib: int(gib * (1 << 30))
    return env


def render_template(template_dirs: Sequence[Path], template_name: str, values: Mapping[str, Any]) -> str:
    return _create_template_environment(tuple(template_dirs)).get_template(template_name).render(values)


def render_template_text(template_dirs: Sequence[Path], template_text: str, values: Mapping[str, Any]) -> str:
    return _create_template_environment(tuple(template_dirs)).from_string(template_text).render(values)


def create_docs_template_environment(template_dirs: Sequence[Path], **filters: Callable[..., str]) -> Environment:
    """Return the template environment of the pages in `docs/`, which have filters of their own besides."""
    env = _create_template_environment(tuple(template_dirs)).overlay()
    env.filters = {**env.filters, **filters}
    return env


def quote_compose(text: str) -> str:
    """Return `text` as a YAML scalar in which Compose expands nothing; a JSON string is one."""
    return json.dumps(text, ensure_ascii=False).replace("$", "$$")


def quote_dockerfile(value: str) -> str:
    """Return `value` quoted for ENV and LABEL, so that the builder expands nothing in it."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$") + '"'
