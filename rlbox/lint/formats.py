"""Documents by their format: Dockerfiles, YAML and JSON, TOML, Markdown with command blocks."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from yaml import CBaseLoader, ScalarNode, SequenceNode, YAMLError
from yaml.composer import Composer

from rlbox.config.toml_files import parse_toml
from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.lint.calls import put_server_command_before
from rlbox.lint.document import NO_CONTEXT_TAGS, Document
from rlbox.lint.shell import Position, Source, Word, parse_shell_commands
from rlbox.target.engine_images import list_container_words_for_lint

Format = Literal["shell", "notes", "yaml", "toml", "dockerfile"]
_FORMAT_BY_SUFFIX: dict[str, Format] = {
    "sh": "shell", "bash": "shell", "zsh": "shell", "slurm": "shell", "sbatch": "shell", "bashrc": "shell",
    "md": "notes", "markdown": "notes", "txt": "notes", "mdx": "notes",
    "yaml": "yaml", "yml": "yaml", "json": "yaml", "toml": "toml", "dockerfile": "dockerfile",
}  # fmt: skip


def guess_format_from_file_name(file_name: str) -> Format | None:
    """Return the format of a file by its name; None when that does not say it."""
    base = file_name.rsplit("/", 1)[-1].lower()
    if re.match(r"(?:docker|container)file(?![a-z])", base):
        return "dockerfile"
    return _FORMAT_BY_SUFFIX.get(base.rpartition(".")[2] if "." in base else "")


def detect_format_or_shell(name: str, text: str) -> Format:
    starts: dict[str, Format] = {"#!": "shell", r"(?ms).*?^[ \t>]*```": "notes", r"(?ms).*?^FROM \S": "dockerfile"}
    formats = (kind for pattern, kind in starts.items() if re.match(pattern, text[:4000]))
    return guess_format_from_file_name(name) or next(formats, None) or "shell"


def parse_document(name: str, text: str) -> Document:
    """Return what a text sets, runs and names; `SpecError` for a file of TOML that is none."""
    kind, text = detect_format_or_shell(name, text), text.removeprefix("\ufeff")
    document = Document(name, text if kind == "shell" else text.replace("\r\n", "\n"))
    READERS[kind](document, Source(document.text))
    return document


_FENCE = re.compile(r"(?P<margin>[ \t>]*)(?P<fence>`{3,}|~{3,})[ \t]*\{?[.]?(?P<language>[\w+#.-]*)")


def _read_notes(document: Document, source: Source) -> None:
    lines = source.text.splitlines(keepends=True)
    i = 0
    while i < len(lines):
        fence = _FENCE.match(lines[i])
        i += 1
        if fence is None:
            continue
        closing = re.compile(rf"[ \t>]*{re.escape(fence['fence'])}[`~]*[ \t]*$")
        end = next((n for n in range(i, len(lines)) if closing.match(lines[n].rstrip("\n"))), len(lines))
        margin, language = len(fence["margin"]), fence["language"].lower()
        body = [line[min(margin, len(line) - 1) :] for line in lines[i:end]]
        kind = _FORMAT_BY_SUFFIX.get(language, language)
        if kind in READERS and kind != "notes":
            with contextlib.suppress(SpecError):
                READERS[kind](document, Source("".join(body), Position(i + 1, margin + 1), margin))
        i = end + 1


_COMMAND = re.compile(
    r"(?:.*\.)?(?:commands?|cmd|run|args|argv|entrypoint|script|setup|exec|before_script|after_script|on_?start"
    r"|onstart_cmd|shell|bash|postStart|start|test|[^.]*(?:_commands?|_cmd|_script|Commands?|Script))|.*\.(?:ba)?sh|.*\.env"
)
_ENTRY, _IN_CONTAINER = frozenset({"entry"}), {"containers", "services"}
_PROBES = {"livenessProbe", "readinessProbe", "startupProbe"}
_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*_\w+|PATH|pattern")  # `pattern` of a gate: a regular expression


class Entry(NamedTuple):
    key: str
    position: Position
    value: Value


Value: TypeAlias = "Source | list[Value] | tuple[Entry, ...]"
"""What a data file holds: a text with its place, a list, or the entries of a mapping."""


def _add_value(document: Document, path: Sequence[str], value: Value) -> None:
    if isinstance(value, list):
        if items := [item for item in value if isinstance(item, Source)]:
            _add_list(document, path, items)
        for item in value:
            if not isinstance(item, Source):
                _add_value(document, path, item)
    elif not isinstance(value, Source):
        by_key = {entry.key: entry.value for entry in value}
        tags = _ENTRY if "services" in path else NO_CONTEXT_TAGS
        command_line, is_joined = _join_container_command(by_key, is_service=bool(tags))
        document.add_argv_unless_options(command_line if is_joined else (), tags)
        for key, position, inner in value:
            if key in _PROBES or (key == "image" and _IN_CONTAINER & {*path}):
                texts = dict(_texts_in((Entry(key, position, inner),)))
                facts = list_container_words_for_lint(key, texts, [one.text for one in command_line], by_key)
                document.add_argv_unless_options([Word(text, text, position) for text in (key, *facts)])
            if is_joined and key in ("command", "args"):
                continue
            if isinstance(inner, Source):
                sibling = by_key.get("name")
                _add_text(document, (*path, key), inner, position, sibling.text if isinstance(sibling, Source) else "")
            else:
                _add_value(document, path if key == "<<" else (*path, key), inner)


def _join_container_command(container: Mapping[str, Value], *, is_service: bool) -> tuple[tuple[Word, ...], bool]:
    """Return the command line of a container, and if its options are behind another entry or the image's own."""
    before, options = ("entrypoint", "command") if is_service else ("command", "args")
    command, arguments = _list_words(container.get(before)), _list_words(container.get(options))
    if command or not isinstance(image := container.get("image"), Source):
        is_server = command and re.search(r"(?:^|/)(?:vllm|serve|[\w.]+\.(?:launch|api)_server)$", command[-1].text)
        return command + arguments, bool(command and arguments and (is_server or arguments[0].text.startswith("-")))
    joined = put_server_command_before(image.text, arguments)
    return joined, len(joined) > len(arguments)


def _texts_in(value: Value) -> Iterator[tuple[str, str]]:
    for key, _position, inner in value if not isinstance(value, (Source, list)) else ():
        yield from [(key, inner.text)] if isinstance(inner, Source) else _texts_in(inner)


def _list_words(value: Value | None) -> tuple[Word, ...]:
    if isinstance(value, Source):
        return tuple(next((command.words for command in parse_shell_commands(value)), ()))
    return tuple(Word(item.text, item.text, item.start) for item in value or () if isinstance(item, Source))


def _add_text(document: Document, path: Sequence[str], source: Source, position: Position, sibling: str) -> None:
    """Add one text of a data file; `path` are its keys, the last one at `position`, `sibling` is the `name` beside."""
    key, text = path[-1], source.text
    variable = sibling if key == "value" else key  # `name: X` with `value: Y`, as Kubernetes writes it
    if _COMMAND.fullmatch(key):
        document.add_shell_code(source, _ENTRY if "services" in path else NO_CONTEXT_TAGS)
    elif _VARIABLE.fullmatch(variable):
        document.set_variable(variable, text, source.start if key in ("value", "pattern") else position, "data")
    elif key == "image" and re.search(r"[/:]", text):
        document.images.append(Word(text, text, source.start))


def _add_list(document: Document, path: Sequence[str], items: Sequence[Source]) -> None:
    key, words = path[-1] if path else "", _list_words([*items])
    if _COMMAND.fullmatch(key):
        spaced = [word for word in words if re.search(r"\s", word.text)]
        if (words[0] in spaced and not words[0].text.startswith("-")) or (
            spaced and not any(word.text.startswith("-") for word in words)
        ):
            for item in items:
                document.add_shell_code(item)
        else:
            document.add_argv_unless_options(words, _ENTRY if "services" in path else NO_CONTEXT_TAGS)
    for word in words if key in ("env", "environment", "envs") else ():
        if pair := re.fullmatch(r"(?s)([A-Za-z_]\w*)=(.*)", word.text):
            document.set_variable(pair[1], pair[2], word.position, "data")
    document.add_version_pins(word.text for word in words)


def _read_toml(document: Document, source: Source) -> None:
    _add_value(document, (), _TomlPlaces(source).value(parse_toml(source.text, document.name)))


class _TomlPlaces:
    """Looks for each value of a table behind the one before, since tomllib tells no places."""

    def __init__(self, source: Source) -> None:
        self.source, self.index = source, 0

    def value(self, value: object) -> Value:
        if isinstance(value, dict):
            return tuple(Entry(key, self._key(key), self.value(inner)) for key, inner in value.items())
        if isinstance(value, list):
            return [self.value(item) for item in value]
        text = str(value).lower() if isinstance(value, bool) else str(value)
        found = self.source.text.find(text.split("\n")[0][:40], self.index)
        self.index = found if found >= 0 else self.index  # an escaped one is not found: the place of its key will do
        return Source(text, self.source.position_at(self.index), self.source.margin)

    def _key(self, key: str) -> Position:
        pattern = re.compile(rf"(?m)(?:^|[{{,.\[\"'\s])({re.escape(key)})(?=[\"'\s.=\]])")
        if match := pattern.search(self.source.text, self.index):
            self.index = match.end(1)
            return self.source.position_at(match.start(1))
        return self.source.position_at(self.index)


class _Composer(Composer, CBaseLoader):
    """PyYAML's composer over libyaml's parser: libyaml's own one ends the process on a deep document."""

    def __init__(self, text: str) -> None:
        CBaseLoader.__init__(self, text)
        Composer.__init__(self)
        self.check_node()  # reads the start of the stream


def _read_yaml(document: Document, source: Source) -> None:
    """Read YAML or JSON, or a template for `envsubst`; `SpecError` for what is none."""
    source = Source(source.text.replace("${DOLLAR}", "$"), source.start, source.margin)
    try:
        nodes = list(iter(_Composer(source.text).get_node, None))
    except (YAMLError, RecursionError) as error:
        plain = source.text.replace("\t", " ")  # JSON may have tabs
        filled = re.sub(r"(?m)(^ *)?\$\{[^{}\n]*\}(?(1) *$)", lambda one: "_" if one[1] is None else "", plain)
        try:
            nodes = list(iter(_Composer(filled).get_node, None))
        except (YAMLError, RecursionError):
            row = mark.line if (mark := getattr(error, "problem_mark", None)) else 0
            text = _("{file}: not read: not valid YAML (line {line})")
            raise SpecError(text.format(file=document.name, line=source.start.line + row)) from error
    places = _YamlPlaces(source)
    for node in nodes:
        _add_value(document, (), places.value(node))


class _YamlPlaces:
    def __init__(self, source: Source) -> None:
        self.source, self.lines = source, source.text.split("\n")
        self.visited: set[int] = set()

    def value(self, node: Any) -> Value:
        """Return the value of a node; of what an alias names, the first time only."""
        if isinstance(node, ScalarNode):
            return self._text(node)
        if id(node) in self.visited:
            return []
        self.visited.add(id(node))
        if isinstance(node, SequenceNode):
            return [self.value(item) for item in node.value]
        entries = []
        for key, value in node.value:
            if not isinstance(value, ScalarNode) or value.value or value.style:  # a key without a value sets nothing
                name = self._text(key) if isinstance(key, ScalarNode) else None
                place = (name.text, name.start) if name else ("<<", Position(1, 1))
                entries.append(Entry(*place, self.value(value)))
        return tuple(entries)

    def _text(self, node: Any) -> Source:
        """Return a scalar with its place; of a block its lines, those of a folded one joined as a shell does."""
        row, column = node.start_mark.line, node.start_mark.column
        if node.style not in ("|", ">"):
            quoted = node.style in ("'", '"')
            return Source(node.value, Position(self.source.start.line + row, self.source.margin + column + 1 + quoted))
        body = self.lines[row + 1 : node.end_mark.line] or self.lines[row + 1 :]
        indent = min((len(line) - len(line.lstrip()) for line in body if line.strip()), default=0)
        text = (" \\\n" if node.style == ">" else "\n").join(line[indent:] for line in body)
        start = Position(self.source.start.line + row + 1, self.source.margin + indent + 1)
        return Source(text.rstrip(" \\\n") + "\n", start, self.source.margin + indent)


_OPTIONS = r"[ \t]+(?:--[\w-]+=\S+\s+(?:\\\n)?)*"
_INSTRUCTION = re.compile(rf"\s*(?:(?P<outer>(?i:ONBUILD|HEALTHCHECK)){_OPTIONS})?(?P<name>[A-Za-z]+){_OPTIONS}")
_PAIR = re.compile(r"""([A-Za-z_]\w*)(?:=|[ \t]+)("[^"]*"|'[^']*'|(?:\\.|[^\s\\])*)""")


def _read_dockerfile(document: Document, source: Source) -> None:
    stages = {"scratch"}
    for part in _instructions(source):
        match = _INSTRUCTION.match(part.text)
        name, end = (match["name"].upper(), match.end()) if match else ("", 0)
        rest = Source(part.text[end:], part.position_at(end), part.margin)
        context_tags = frozenset({"image"} | ({"healthcheck"} if match and match["outer"] else NO_CONTEXT_TAGS))
        words = rest.text.split()
        match name:
            case "FROM" if words:
                image = document.expand_variables(words[0], rest.start)
                if image.lower() not in stages:
                    document.images.append(Word(image, words[0], rest.start))
                stages |= {words[2].lower()} if len(words) == 3 else set()
            case "ENV":
                for pair in _PAIR.finditer(rest.text):
                    document.set_variable(pair[1], pair[2].strip("\"'"), rest.position_at(pair.start()), "dockerfile")
            case "ARG":
                for pair in _PAIR.finditer(rest.text):
                    document.add_variable_value(pair[1], pair[2].strip("\"'"), rest.position_at(pair.start()))
            case "RUN" | "CMD" | "ENTRYPOINT":
                context_tags |= {"entry"} if name != "RUN" and "healthcheck" not in context_tags else NO_CONTEXT_TAGS
                _add_step(document, rest, context_tags)
            case "SHELL":
                document.pipefail_by_default = "pipefail" in rest.text


def _instructions(source: Source) -> Iterator[Source]:
    """Yield the instructions with their continued lines and here-documents; comments within are left empty."""
    lines = source.text.splitlines(keepends=True)
    i = 0
    while i < len(lines):
        if not lines[i].strip() or lines[i].lstrip().startswith("#"):
            i += 1
            continue
        start, end_mark = i, re.search(r"<<-?[\"']?(\w+)[\"']?\s*$", lines[i])
        kept: list[str] = []
        while i < len(lines):
            is_nothing = not lines[i].strip() or lines[i].lstrip().startswith("#")
            kept.append("\\\n" if is_nothing and not end_mark else lines[i])
            i += 1
            is_continued = kept[-1].rstrip().endswith("\\")
            if lines[i - 1].strip() == end_mark[1] if end_mark else not is_continued:
                break
        yield Source("".join(kept), Position(source.start.line + start, source.start.column), source.margin)


def _add_step(document: Document, rest: Source, context_tags: frozenset[str]) -> None:
    if rest.text.startswith("["):
        with contextlib.suppress(ValueError, SyntaxError):
            words = ast.literal_eval(rest.text.replace("\\\n", " ").strip())
            document.add_argv_unless_options([Word(str(word), str(word), rest.start) for word in words], context_tags)
    elif rest.text.startswith("<<"):  # the here-document is the step itself
        start = rest.text.find("\n") + 1
        body = rest.text[start : rest.text.rstrip().rfind("\n") + 1]
        document.add_shell_code(Source(body, rest.position_at(start)), context_tags)
    else:
        document.add_shell_code(rest, context_tags)


READERS: dict[str, Callable[[Document, Source], None]] = {
    "dockerfile": _read_dockerfile, "notes": _read_notes, "shell": Document.add_shell_code, "toml": _read_toml,
    "yaml": _read_yaml,
}  # fmt: skip
