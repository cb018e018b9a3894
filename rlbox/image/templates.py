"""Templates to text. Logic belongs in the plans; a template loops and tests a flag."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket


class _Compiled(FileSystemBytecodeCache):
    """Compiled templates, kept where there is room for them."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        with suppress(OSError):  # a full disk: jinja2 passes over one that cannot be opened alone
            super().dump_bytecode(bucket)


@cache
def environment(folders: tuple[Path, ...], bytecode: Path | None) -> Environment:
    """Return the template environment over `folders`, the first wins; `bytecode` is a folder for compiled ones."""
    env = Environment(
        loader=FileSystemLoader(folders),
        bytecode_cache=_Compiled(str(bytecode)) if bytecode else None,
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


def render(folders: Sequence[Path], name: str, values: Mapping[str, Any], bytecode: Path | None = None) -> str:
    """Return the template `name` filled with `values`; an undefined name raises."""
    return environment(tuple(folders), bytecode).get_template(name).render(values)


def page_environment(folders: Sequence[Path], **filters: Callable[..., str]) -> Environment:
    """Return the template environment of the pages in `docs/`, which have filters of their own besides."""
    env = environment(tuple(folders), None).overlay()
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
