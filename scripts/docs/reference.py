"""The reference pages: commands with their options, keys of the files a user writes, and exit codes."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from rlbox import errors
from rlbox.cli.init import create_spec_json_schema
from rlbox.cli.root import SECTIONS, root

FOLDER = Path(__file__).resolve().parents[2] / "build/reference"
FILE_KINDS = {
    "target": ("images/NAME/target.toml", "A target: hardware, base, stack, disk, network and limits of one machine."),
    "job": ("jobs/NAME.toml", "A job: parameters, stages, services and gates."),
    "fix": ("templates/fixes/ID.toml", "A fix: error lines, remedy, what goes into the image, a check."),
    "profile": ("sources/NAME.toml", "A sources profile: mirrors by kind of file."),
}
EXIT_CODES = {
    0: "success",
    1: "a build or a stage failed, or a check found errors",
    3: "a bug of rlbox; the error names the file with the traceback",
}


def reference_pages() -> dict[str, str]:
    """Return the pages by their file name."""
    return {
        "commands.md": "\n".join(_command_lines()) + "\n",
        "files.md": "\n".join(_file_lines()) + "\n",
        "exit-codes.md": "\n".join(_code_lines()),
    }


def main() -> None:
    """Write the pages, for the site."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in reference_pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def _command_lines() -> Iterator[str]:
    yield from ("# Commands", "")
    yield "`rlbox COMMAND --help` prints the same. Options of every command: `--lang`, `-v`, `-q`, `-h`."
    for title, commands in SECTIONS.items():
        yield from ("", f"## {title}")
        for name in sorted(commands):
            if command := root.get_command(_context(root, "rlbox"), name):
                yield from _one_command(command, f"rlbox {name}")


def _one_command(command: click.Command, name: str) -> Iterator[str]:
    context = _context(command, name)
    words = " ".join(command.collect_usage_pieces(context)).replace("[OPTIONS]", "").split()
    yield from ("", f"### {name}", "", f"`{' '.join((name, *words))}`", "")
    yield inspect.cleandoc(re.split(r"\n\s*(?:\x08|Examples?:|Exit codes:)", command.help or "")[0])
    options = [
        option
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden and option.name not in ("lang", "verbose", "quiet")
    ]
    if options:
        yield from ("", "| option | |", "|---|---|")
    for option in options:
        record = option.get_help_record(context)
        if record:
            yield f"| `{_cell(record[0])}` | {_cell(record[1])} |"
    if isinstance(command, click.Group):
        for word in command.list_commands(context):
            below = command.get_command(context, word)
            if below is not None and not below.hidden:
                yield from _one_command(below, f"{name} {word}")


def _context(command: click.Command, name: str) -> click.Context:
    # a command keeps the help option of the first context that asks for it
    return click.Context(command, info_name=name, help_option_names=["-h", "--help"])


def _file_lines() -> Iterator[str]:
    yield from ("# Files", "")
    yield "`rlbox init` writes a JSON Schema of each file for editors. rlbox ignores keys that begin with `x-`."
    for kind, (path, text) in FILE_KINDS.items():
        schema = create_spec_json_schema(kind)
        yield from ("", f"## {path}", "", text)
        yield from _table(schema, "", schema.get("$defs", {}), set())


def _table(node: Mapping[str, Any], prefix: str, models: Mapping[str, Any], done: set[str]) -> Iterator[str]:
    """Yield the table of one object, then those of the objects in it; each model is shown once."""
    below: list[tuple[str, str]] = []
    yield from ("", f"### `[{prefix}]`" if prefix else "### top level", "", "| key | type | default | meaning |")
    yield "|---|---|---|---|"
    for key, spec in node.get("properties", {}).items():
        name, many = _model_of(spec)
        if name:
            below.append((name, f"{prefix}.{key}".lstrip(".") + ("[]" if many else "")))
        yield f"| `{key}` | {_cell(_type(spec))} | {_default(spec)} | {_cell(spec.get('description', ''))} |"
    for name, path in below:
        if name not in done and models[name].get("properties"):
            done.add(name)
            yield from _table(models[name], path, models, done)


def _default(spec: Mapping[str, Any]) -> str:
    """Return a default that says something: empty values and long ones do not."""
    text = json.dumps(spec["default"], ensure_ascii=False) if spec.get("default") else ""
    return f"`{_cell(text)}`" if 0 < len(text) <= 60 else ""


def _model_of(spec: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the model that a key holds, or holds many of; empty for a plain value."""
    text = json.dumps(spec)
    found = re.search(r'"#/\$defs/(\w+)"', text)
    return (found[1] if found else "", '"items"' in text or '"additionalProperties": {' in text)


def _type(spec: Mapping[str, Any]) -> str:
    if "enum" in spec:
        return " or ".join(f"`{value}`" for value in spec["enum"] if value != "")
    if "const" in spec:
        return f"`{spec['const']}`"
    if "$ref" in spec:
        return "table"
    if "anyOf" in spec:
        return " or ".join(dict.fromkeys(_type(part) for part in spec["anyOf"] if part.get("type") != "null"))
    if spec.get("type") == "array":
        items = _type(spec["items"]) if isinstance(spec.get("items"), Mapping) else "value"
        return f"list of {'tables' if items == 'table' else items}"
    return "table" if spec.get("type") == "object" else str(spec.get("type", "value"))


def _code_lines() -> Iterator[str]:
    yield from ("# Exit codes", "", "| code | meaning |", "|---:|---|")
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RlboxError)]
    codes = dict(EXIT_CODES)
    for kind in kinds:
        codes.setdefault(kind.exit_code, (kind.__doc__ or "").strip().splitlines()[0].rstrip("."))
    yield from (f"| {code} | {_cell(text)} |" for code, text in sorted(codes.items()))
    yield ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    main()
