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
def make_environment(folders: tuple[Path, ...]) -> Environment:
    """Return the template environment over `folders`, the first wins."""
    env = Environment(
        loader=FileSystemLoader(folders),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - the output is a Dockerfile, not HTML
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    env.filters["quote"] = shlex.quote
    env.filters["dockerfile"] = quote_dockerfile
    env.filters["compose"] = quote_compose
    env.filters["definition"] = quote_definition
    env.filters["bytes"] = lambda gib: int(gib * (1 << 30))
    return env


def render(folders: Sequence[Path], name: str, values: Mapping[str, Any]) -> str:
    """Return the template `name` filled with `values`; an undefined name raises."""
    return make_environment(tuple(folders)).get_template(name).render(values)


def make_page_environment(folders: Sequence[Path], **filters: Callable[..., str]) -> Environment:
    """Return the template environment of the pages in `docs/`, which have filters of their own besides."""
    env = make_environment(tuple(folders)).overlay()
    env.filters = {**env.filters, **filters}
    return env


def quote_compose(text: str) -> str:
    """Return `text` as a YAML scalar in which Compose expands nothing; a JSON string is one."""
    return json.dumps(text, ensure_ascii=False).replace("$", "$$")


def quote_definition(text: str) -> str:
    """Return `text` as one word of a shell in which Apptainer sees no argument of the build either."""
    return shlex.quote(text).replace("{{", "{''{")


def quote_dockerfile(value: str) -> str:
    """Return `value` quoted for ENV and LABEL, so that the builder expands nothing in it."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$") + '"'
