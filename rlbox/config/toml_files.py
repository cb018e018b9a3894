"""Read spec files: parse TOML, merge included tables, list dotted keys."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlbox.config.project import Project
from rlbox.errors import SpecError
from rlbox.foreign import parse_untrusted_toml
from rlbox.i18n import _


def load_toml(path: Path, project: Project | None = None) -> dict[str, Any]:
    """Return the parsed file; a syntax error is a `SpecError` that names file and line."""
    shown = format_spec_path(path, project)
    return parse_toml(read_utf8_text(path, shown), shown)


def parse_toml(text: str, source_name: str) -> dict[str, Any]:
    try:
        return parse_untrusted_toml(text)
    except ValueError as error:
        raise SpecError(
            _("{shown}: broken TOML: {error}").format(shown=source_name, error=error),
            next_step=_("correct the line named above"),
        ) from error


def read_utf8_text(path: Path, source_name: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(
            _("{shown}: not UTF-8 text: {error}").format(shown=source_name, error=error),
            next_step=_("save the file as UTF-8"),
        ) from error
    except OSError as error:
        raise SpecError(
            _("{shown}: cannot be read: {strerror}").format(shown=source_name, strerror=error.strerror)
        ) from error


def require_key_absent(data: dict[str, Any], source_name: str, key: str) -> dict[str, Any]:
    """Return `data`; a `SpecError` when it holds `key`, which is the folder's or file's own."""
    if key in data:
        raise SpecError(
            _("{shown}: {key}: unknown key, the name comes from the folder or file").format(shown=source_name, key=key),
            next_step=_("remove the key"),
        )
    return data


def format_spec_path(path: Path, project: Project | None) -> str:
    """Return the path of a file as messages show it: relative to its project or pack, the pack's name before it."""
    shown = str(path)
    if project and (pack := project.find_pack_or_none(path)):
        return _("pack {name}: {path}").format(name=pack.name, path=path.relative_to(pack.folder))
    for root in project.roots if project else ():
        if shown.startswith(inside := os.path.join(root, "")):
            return shown.removeprefix(inside)
    return shown


def merge_tables_and_named_lists(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `override` laid on top.

    Tables merge key by key. Lists of tables that all have a `name` of their own merge by that name, keeping the
    order of `base` and appending what is new. Everything else in `override` replaces what was there.
    """
    merged = dict(base)
    for key, value in override.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[key] = merge_tables_and_named_lists(below, value)
        elif _named(below) and _named(value):
            merged[key] = _merge_named(below, value)
        else:
            merged[key] = value
    return merged


def _named(value: Any) -> bool:
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        return False
    names = [item.get("name") for item in value]
    return bool(names) and all(isinstance(name, str) for name in names) and len(set(names)) == len(names)


def _merge_named(below: Any, above: Any) -> list[Mapping[str, Any]]:
    result = {item["name"]: item for item in below}
    for item in above:
        result[item["name"]] = merge_tables_and_named_lists(result.get(item["name"], {}), item)
    return list(result.values())
