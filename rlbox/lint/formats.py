"""Documents by their format: data files, Dockerfiles, and which format a text has."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yaml import CBaseLoader, MappingNode, Node, ScalarNode, SequenceNode, YAMLError
from yaml.composer import Composer

from rlbox.config.toml_files import load_toml
from rlbox.foreign import toml_table
from rlbox.lint.document import HERE, Document, Image
from rlbox.lint.notes import read_notes
from rlbox.lint.shell import Word
from rlbox.lint.text import Fragment, SyntaxTree, join

if TYPE_CHECKING:
    from tree_sitter import Node as SyntaxNode

_TABLE = load_toml(Path(__file__).with_name("formats.toml"))
_SUFFIXES = {suffix: kind for kind, suffixes in _TABLE["suffixes"].items() for suffix in suffixes.split()}


def format_by_name(name: str) -> str:
    """Return the format of a file by its name; empty when that says nothing."""
    base = name.replace("\\", "/").rsplit("/", 1)[-1].lower()
    by_suffix = _SUFFIXES.get(base.rpartition(".")[2], "") if "." in base else ""
    return next((kind for kind, pattern in _TABLE["names"].items() if re.match(pattern, base)), by_suffix)


def detect_format(name: str, text: str) -> str:
    """Return the format of a document, by its name, else by its first lines."""
    first_lines = _TABLE["first_lines"].items()
    guesses = (kind for kind, pattern in first_lines if re.match(pattern, text[:4000].lstrip(), re.MULTILINE))
    return format_by_name(name) or next(guesses, "shell")


def read_document(name: str, text: str) -> Document:
    """Return what a text sets, runs and names; the end of a line may be either system's."""
    has_windows_ends = "\r\n" in text
    text = text.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")
    document = Document(name, detect_format(name, text), text)
    if has_windows_ends and document.kind == "shell":
        document.flags.append(("crlf", 0))
    source = Fragment(text, range(len(text) + 1))
    if document.kind == "notes":
        read_notes(document, source, READERS)
    else:
        READERS[document.kind](document, source)
    return document


def _read_make(document: Document, source: Fragment) -> None:
    document.add_shell(join(line.cut(1) for line in source.lines() if line.text.startswith("\t")))


# ---- data files ----

_COMMAND = re.compile(
    r"(?:.*\.)?(?:commands?|cmd|run|args|argv|entrypoint|script|setup|exec|before_script|after_script|on_?start"
    r"|onstart_cmd|shell|bash|plot|postStart|start|test|[^.]*(?:_commands?|_cmd|_script|Commands?|Script))|.*\.(?:ba)?sh|.*\.env"
)
_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*_\w+|PATH")
_DEEPEST = 40  # keys on the way to a value
_STARTERS = {"args": "command", "command": "entrypoint"}  # words of the first key are put behind those of the second


def _add_value(document: Document, path: Sequence[str], word: Word, start: int, sibling: str) -> None:
    """Add one value of a data file; `path` are its keys, `start` is where the last one stands, `sibling` the `name`."""
    key, above = path[-1], path[-2] if len(path) > 1 else ""
    if _COMMAND.fullmatch(key):
        document.add_shell(word, frozenset({"entry"}) if "services" in path else HERE)
        return
    variable = sibling if key == "value" else key  # `name: X` with `value: Y`, as Kubernetes writes it
    if _VARIABLE.fullmatch(variable):
        document.add_setting(variable, word.text, word.start if key == "value" else start, "data")
    elif key == "image" and re.search(r"[/:]", word.text):
        document.images.append(Image(word.text, word.start))
    elif key == "privileged" and word.text == "true":
        document.flags.append((key, word.start))
    if above == "ports":
        document.add_value(f"port.{key}", word.text, word.start)
        document.add_setting(f"ports.{key}", word.text, word.start, "data")
    elif key == "default":
        document.add_value(f"param.{above}", word.text, word.start)
    (document.patterns if key == "pattern" else document.strings).append(word)


def _add_list(document: Document, path: Sequence[str], words: list[Word]) -> None:
    key = path[-1] if path else ""
    if _COMMAND.fullmatch(key):
        spaced = [word for word in words if re.search(r"\s", word.text)]
        if words[0] in spaced or (spaced and not any(word.text.startswith("-") for word in words)):
            for word in words:
                document.add_shell(word)
        else:
            document.add_argv(words, frozenset({"entry"}) if "services" in path else HERE)
    for word in words:
        if key in ("env", "environment", "envs") and (pair := re.fullmatch(r"(?s)([A-Za-z_]\w*)=(.*)", word.text)):
            document.add_setting(pair[1], pair[2], word.start, "data")
    document.add_pins(word.text for word in words)
    document.strings.extend(words)


def read_toml(document: Document, source: Fragment) -> None:
    try:
        table = toml_table(source.text)
    except ValueError as error:
        place = re.search(r"at line (\d+), column", str(error))
        line = int(place[1]) if place else source.text.rstrip().count("\n") + 1
        if format_by_name(document.name) == "toml":
            document.flags.append(("broken", document.lines.starts[line - 1]))
        return
    _TomlWalk(document, source).add((), table)


class _TomlWalk:
    """Adds values in their order; each is looked for behind the one before, since tomllib tells no places."""

    def __init__(self, document: Document, source: Fragment) -> None:
        self.document, self.source, self.position = document, source, 0

    def add(self, path: tuple[str, ...], value: object) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                self._advance(rf"(?m)(?:^|[{{,.\[\"'\s]){re.escape(key)}(?=[\"'\s.=\]])")
                if isinstance(inner, (dict, list)):
                    self.add((*path, key), inner)
                else:
                    word = self._word(inner)
                    _add_value(self.document, (*path, key), word, word.start, "")
        elif isinstance(value, list):
            if words := [self._word(item) for item in value if not isinstance(item, (dict, list))]:
                _add_list(self.document, path, words)
            for item in value:
                if isinstance(item, (dict, list)):
                    self.add(path, item)

    def _advance(self, pattern: str) -> None:
        match = re.compile(pattern).search(self.source.text, self.position)
        self.position = match.end() if match else self.position

    def _word(self, value: object) -> Word:
        text = {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
        start = self.source.text.find(text.split("\n")[0][:40], self.position)
        start = start if start >= 0 else max(self.source.text.find('"', self.position) + 1, self.position)
        places = align(text, self.source.text, start, len(self.source.text))
        self.position = places[-1]
        return Word(text, [self.source.offsets[i] for i in places], text)


# ---- YAML and JSON ----

_BEFORE_VALUE = re.compile(r"(?:[&!]\S*[ \t]*(?:#[^\n]*)?\s*)*(?:[|>][-+0-9]*[ \t]*(?:#[^\n]*)?\n)?[ \t]*")
_TEMPLATE = re.compile(r"^[ \t]*\{\{-?[^{}]*\}\}[ \t]*$|\{%.*?%\}|\{\{.*?\}\}|[^\n\x20-\x7e\x85\xa0-\U0010ffff]", re.M)
_RESYNCHRONIZED_WITHIN = 16  # characters: the longest escape of YAML, \UXXXXXXXX, and its neighbours


def read_yaml(document: Document, source: Fragment) -> None:
    """Read YAML or JSON, with the statements and expressions of a template left out; nothing of what is none."""
    for text in (source.text, _TEMPLATE.sub(_blank, source.text)):
        with contextlib.suppress(YAMLError, RecursionError):
            nodes = list(_compose(text))
            walk = _YamlWalk(document, source, text)
            for node in nodes:
                walk.add((), node)
            return


class _Composer(Composer, CBaseLoader):
    """PyYAML's composer over libyaml's parser: libyaml's own one ends the process on a deep document."""

    def __init__(self, text: str) -> None:
        CBaseLoader.__init__(self, text)
        Composer.__init__(self)


def _compose(text: str) -> Iterator[Node]:
    composer = _Composer(text)
    while composer.check_node():
        if node := composer.get_node():
            yield node


def _blank(match: re.Match[str]) -> str:
    """Return letters for an expression of a template that is a value, spaces for a statement."""
    is_value = ":" in match.string[: match.start()].rpartition("\n")[2]
    return re.sub(r"[^\n]", "o" if is_value and match.group().startswith("{{") else " ", match.group())


class _YamlWalk:
    """Adds nodes to a document; `text` is what was composed, as long as the source."""

    def __init__(self, document: Document, source: Fragment, text: str) -> None:
        self.document, self.source, self.text = document, source, text
        self.visited: set[tuple[int, tuple[str, ...]]] = set()

    def add(self, path: tuple[str, ...], node: Node) -> None:
        """Add a value; what an alias names is added wherever it is named, once under the same keys."""
        if (id(node), path[-2:]) in self.visited:
            return
        self.visited.add((id(node), path[-2:]))
        if isinstance(node, SequenceNode):
            if words := self._words(node):
                _add_list(self.document, path, words)
            for item in node.value:
                self.add(path, item)
        elif isinstance(node, MappingNode):
            self._add_mapping(path, node)

    def _words(self, *nodes: SequenceNode) -> list[Word]:
        return [self._word(item) for node in nodes for item in node.value if isinstance(item, ScalarNode)]

    def _add_mapping(self, path: tuple[str, ...], node: MappingNode) -> None:
        values = {key.value: value for key, value in node.value if isinstance(key, ScalarNode)}
        sibling = values["name"].value if isinstance(values.get("name"), ScalarNode) else ""
        for key, value in node.value:
            name = key.value if isinstance(key, ScalarNode) else "<<"
            deeper = path if name == "<<" or len(path) >= _DEEPEST else (*path, name)
            starter = values.get(_STARTERS.get(name, ""))
            if isinstance(value, ScalarNode):
                if value.value or value.style:
                    start = self.source.offsets[self._value_start(key)]
                    _add_value(self.document, deeper, self._word(value), start, sibling)
            elif isinstance(starter, SequenceNode) and isinstance(value, SequenceNode):
                _add_list(self.document, deeper, self._words(starter, value))
            else:
                self.add(deeper, value)

    def _value_start(self, node: Any) -> int:
        """Return where the text of a scalar begins, behind its anchor, tag and quote, or the head of a block."""
        before = _BEFORE_VALUE.match(self.text, node.start_mark.index, node.end_mark.index)
        start: int = before.end() if before else node.start_mark.index
        return start + (getattr(node, "style", "") in ("'", '"'))

    def _word(self, node: Any) -> Word:
        places = align(node.value, self.text, self._value_start(node), node.end_mark.index)
        text = node.value
        if node.style == ">":  # a folded line that stands deeper is meant to go on
            text = text.replace("\n ", "  ")
        raw = self.text[node.start_mark.index : node.end_mark.index] if node.style in ("'", '"') else text
        return Word(text, [self.source.offsets[i] for i in places], raw)


def align(value: str, text: str, start: int, end: int) -> list[int]:
    """Return where in `text` each character of a value stands that was folded or escaped there, and where it ends."""
    if text.startswith(value, start):
        return list(range(start, start + len(value) + 1))
    places = []
    i = start
    for character in value:
        while i < end and not character.isspace() and text[i] != character and text[i] in " \t\n\\":
            i += 1
        if not character.isspace() and text[i : i + 1] != character:
            i = max(text.find(character, i, min(i + _RESYNCHRONIZED_WITHIN, end)), i)
        places.append(min(i, end))
        i += text[i : i + 1] == character or (character.isspace() and text[i : i + 1].isspace())
    return [*places, min(i, end)]


# ---- Dockerfiles ----


def read_dockerfile(document: Document, source: Fragment) -> None:
    if re.match(r"#\s*syntax\s*=", source.text):
        document.flags.append(("syntax", source.start))
    kept: list[Fragment] = []
    for line in source.lines():  # comments and empty lines do not end an instruction that goes on
        is_nothing = not line.text.strip() or line.text.lstrip().startswith("#")
        if not (kept and kept[-1].text.rstrip().endswith("\\") and is_nothing):
            kept.append(line)
    reader = _DockerfileReader(document, SyntaxTree("containerfile", join(kept)))
    for node in reader.tree.root.named_children:
        reader.add(node)


class _DockerfileReader:
    def __init__(self, document: Document, tree: SyntaxTree) -> None:
        self.document, self.tree = document, tree
        self.stages = {"scratch"}

    def add(self, node: SyntaxNode, marks: frozenset[str] = frozenset({"image"})) -> None:
        kind = node.type.removesuffix("_instruction")
        parts = {child.type: self.tree.fragment(child) for child in node.named_children}
        if kind == "from" and "image_spec" in parts:
            name = self.document.resolve(parts["image_spec"].text, node.start_byte)
            self.stages |= {parts["image_alias"].text.lower()} if "image_alias" in parts else set()
            if name.lower() not in self.stages:
                self.document.images.append(Image(name, parts["image_spec"].start))
        elif kind in ("arg", "env"):
            self._add_variables(node, kind)
        elif kind in ("onbuild", "healthcheck"):
            for child in node.named_children:
                self.add(child, marks | ({"healthcheck"} if kind == "healthcheck" else HERE))
        elif kind in ("run", "cmd", "entrypoint"):
            is_entry = kind != "run" and "healthcheck" not in marks
            self._add_command(node, parts, marks | ({"entry"} if is_entry else HERE))
        elif kind == "shell" and "pipefail" in self.tree.fragment(node).text:
            self.document.pipefail_by_default = True

    def _add_variables(self, node: SyntaxNode, kind: str) -> None:
        self.document.block += 1
        for pair in node.named_children:
            name_and_value = [self.tree.fragment(part) for part in pair.named_children]
            if len(name_and_value) == 2:
                variable, value = name_and_value[0].text, name_and_value[1].text.strip("\"'")
                self.document.add_value(variable, value, name_and_value[0].start)
                if kind == "env":
                    self.document.add_setting(variable, value, name_and_value[0].start, "dockerfile")

    def _add_command(self, node: SyntaxNode, parts: dict[str, Fragment], marks: frozenset[str]) -> None:
        if array := parts.get("json_string_array"):
            walk = _YamlWalk(self.document, array, array.text)
            lists = [item for item in _compose(array.text) if isinstance(item, SequenceNode)]
            self.document.add_argv([word for item in lists for word in walk._words(item)], marks)
        elif command := parts.get("shell_command"):
            whole = self.tree.fragment(node)
            source = whole.cut(whole.text.index(command.text[:20]))
            if source.text.startswith("<<"):  # the here-document is the step itself
                source = source.cut(source.text.find("\n") + 1, source.text.rstrip().rfind("\n") + 1)
            self.document.add_shell(source, marks)


READERS: dict[str, Callable[[Document, Fragment], None]] = {
    "dockerfile": read_dockerfile,
    "env": Document.add_shell,
    "make": _read_make,
    "powershell": lambda document, source: document.add_shell(source, frozenset({"powershell"})),
    "python": Document.add_python,
    "shell": Document.add_shell,
    "toml": read_toml,
    "yaml": read_yaml,
}
"""What reads a file, or a fence, of a format that is no notes."""
