"""Fill a document from data files (TOML, JSON, YAML): variables, commands, images and patterns by their keys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from yaml import AliasEvent, CBaseLoader, MappingNode, Node, ScalarNode, SequenceNode, YAMLError
from yaml.composer import Composer
from yaml.error import MarkedYAMLError

from rlbox.lint.reader import PIN, Reader
from rlbox.lint.shell import Word
from rlbox.lint.text import Piece

_COMMAND = re.compile(
    r"commands?|cmd|run|args|argv|entrypoint|script|setup|exec|before_script|after_script|on_?start|onstart_cmd|shell|bash|plot"
    r"|postStart|start|test|.*(?:_commands?|_cmd|_script|Commands?|Script)"
)
_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*_\w+|PATH")
_PAIR = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_TOKEN = re.compile(
    r'(?P<long>"""(?:[^"\\]|\\.|"(?!""))*"""|\'\'\'(?:[^\']|\'(?!\'\'))*\'\'\')'
    r'|(?P<string>"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\')'
    r"|(?P<comment>#[^\n]*)|(?P<mark>[=:,\[\]{}\n])|(?P<bare>[^\s=:,\[\]{}\"'#]+)",
    re.DOTALL,
)
DEEPEST = 40  # keys on the way to a value
_CHARACTER = re.compile(r"\\(.)|.", re.DOTALL)
_TOML_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


@dataclass
class _Box:
    """A table (with the keys that lead to it) or a list (with its items) that is open."""

    path: tuple[str, ...]
    is_list: bool
    items: list[Word] = field(default_factory=list)


def _is_command(key: str) -> bool:
    """Whether a key names what is run: `command`, `start_ray_commands`, `preStopCommand`, `ansible.builtin.shell`."""
    return _COMMAND.fullmatch(key.rpartition(".")[2]) is not None


class DataCollector:
    """Takes keys and values of any format and tells the document what they mean."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._name: tuple[tuple[str, ...], str] = ((), "")

    def scalar(self, path: Sequence[str], word: Word, start: int | None = None) -> None:
        """Take one value; `path` are the keys that lead to it, `start` is where the last one stands if that is told."""
        document, key, value = self.reader.document, path[-1] if path else "", word.value
        above = path[-2] if len(path) > 1 else ""
        if _VARIABLE.fullmatch(key):
            self.reader.set(key, value, word.start if start is None else start, "data")
        elif _is_command(key) or key.endswith((".sh", ".bash", ".env")):
            self.reader.shell(word.piece, _within(path))
            return
        elif key.endswith(".py"):
            self.reader.python(word.piece, "file")
        elif key == "image" and re.search(r"[/:]", value):
            self.reader.image(value, word.start)
        elif key == "pattern":
            document.patterns.append(word)
            return
        elif key == "privileged" and value == "true":
            document.flags.append((key, word.start))
        if above == "ports":
            document.names.note(f"port.{key}", value, word.start)
            self.reader.set(f"ports.{key}", value, word.start, "data")
        elif key == "default":
            document.names.note(f"param.{above}", value, word.start)
        self._pair(tuple(path[:-1]), key, word)
        document.strings.append(word)

    def _pair(self, above: tuple[str, ...], key: str, word: Word) -> None:
        """Take `name: X` with `value: Y`, as Kubernetes writes variables."""
        if key == "name":
            self._name = (above, word.value)
        elif key == "value" and self._name[0] == above and _VARIABLE.fullmatch(self._name[1]):
            self.reader.set(self._name[1], word.value, word.start, "data")

    def array(self, path: Sequence[str], words: list[Word]) -> None:
        """Take a list of texts."""
        key = path[-1] if path else ""
        document = self.reader.document
        if _is_command(key) and words:
            spaced = [word for word in words if re.search(r"\s", word.value)]
            if words[0] in spaced or (spaced and not any(word.value.startswith("-") for word in words)):
                for word in words:
                    self.reader.shell(word.piece)
            else:
                self.reader.argv(words, _within(path))
        for word in words:
            if key in ("env", "environment", "envs") and (hit := _PAIR.fullmatch(word.value)):
                self.reader.set(hit.group(1), hit.group(2), word.start, "data")
            if hit := PIN.match(word.value):
                document.pins[hit.group(1)] = hit.group(2)
        document.strings.extend(words)


def _within(path: Sequence[str]) -> frozenset[str]:
    """Return `entry` for the command of a service, which runs for as long as it does."""
    return frozenset({"entry"}) if "services" in path else frozenset()


def parse_toml(reader: Reader, piece: Piece) -> None:
    """Read TOML, as far as it goes."""
    _Tables(DataCollector(reader), piece).read()


class _Tables:
    """Walks over the tokens of TOML with the open tables and lists on a stack."""

    def __init__(self, facts: DataCollector, piece: Piece) -> None:
        self.facts, self.piece = facts, piece
        self.boxes = [_Box((), is_list=False)]
        self.key: list[str] = []
        self.ready = False  # the next token is the value of `key`
        self.fresh = True  # a line begins

    def read(self) -> None:
        for hit in _TOKEN.finditer(self.piece.text):
            if hit["comment"]:
                continue
            if hit["mark"]:
                self._mark(hit)
            else:
                self._text(hit)
            self.fresh = hit["mark"] == "\n"

    def _mark(self, hit: re.Match[str]) -> None:
        mark, box = hit["mark"], self.boxes[-1]
        if mark == "[" and self.fresh and len(self.boxes) == 1 and not self.ready:
            end = self.piece.text.find("]", hit.start())
            line = self.piece.text[hit.start() : end if end > 0 else len(self.piece.text)]
            box.path = (
                tuple(part.strip().strip("\"'") for part in line.strip("[ ").split(".")) if "\n" not in line else ()
            )
        elif mark == "=" and not box.is_list:
            self.ready = bool(self.key)
        elif mark in "[{":
            deeper = not box.is_list and len(box.path) < DEEPEST
            path = (*box.path, *self.key[-1:]) if deeper else box.path
            self.boxes.append(_Box(path, is_list=mark == "["))
            self._forget()
        elif mark in "]}" and len(self.boxes) > 1:
            self.boxes.pop()
            if box.is_list:
                self.facts.array(box.path, box.items)
            self._forget()
        elif mark == "," or (mark == "\n" and len(self.boxes) == 1):
            self._forget()

    def _forget(self) -> None:
        self.key, self.ready = [], False

    def _text(self, hit: re.Match[str]) -> None:
        word, box = _word(self.piece, hit), self.boxes[-1]
        if box.is_list:
            box.items.append(word)
        elif self.ready:
            self.facts.scalar((*box.path, *self.key), word)
            self._forget()
        elif hit["bare"]:
            self.key += [part for part in word.value.split(".") if part]
        else:
            self.key.append(word.value)


def _word(piece: Piece, hit: re.Match[str]) -> Word:
    """Return the text of a token without its quotes and escapes."""
    text, start = hit.group(), hit.start()
    quotes = 3 if hit["long"] else 1 if hit["string"] else 0
    inner = piece.cut(start + quotes, start + len(text) - quotes)
    return _unescape(inner, "d" if quotes and text[0] == '"' else "s" if quotes else "p")


def _unescape(piece: Piece, mask: str) -> Word:
    """Return a text as a word; in double quotes a backslash escapes."""
    if mask != "d" or "\\" not in piece.text:
        return Word(piece.text, mask * len(piece.text), piece.at)
    parts = list(_CHARACTER.finditer(piece.text))
    value = "".join(_TOML_ESCAPES.get(part[1], part[1]) if part[1] else part[0] for part in parts)
    return Word(value, mask * len(value), [*(piece.at[part.start()] for part in parts), piece.at[-1]])


_BEFORE_VALUE = re.compile(r"(?:[&!]\S*\s+(?:#.*\s+)?)*(?:[|>][^\n]*\n)?")  # anchor, tag, head of a block
_ESCAPES = {'"': re.compile(r"\\(?:x..|u.{4}|U.{8}|.)", re.DOTALL), "'": re.compile("''")}  # by style of the scalar
_SKIPPED = re.compile(r"\\\n[ \t]*|\s")
# What programs fill in before it is YAML: whole lines and statements go, an expression stands for a word.
_STATEMENT = re.compile(
    r"^[ \t]*\{\{[^{}]*\}\}[ \t]*$|\{%.*?%\}|\{#.*?#\}|<%.*?%>|[^\n\x20-\x7e\x85\xa0-\U0010ffff]", re.M
)
_EXPRESSION = re.compile(r"\{\{.*?\}\}|(?<=[:\-,\[{] )[@`%]")
_MOST_ERRORS = 200
_MOST_READ = 4_000_000  # characters, over all that is read again
_STARTERS = {"args": "command", "command": "entrypoint"}  # words of the first key are put behind those of the second


def read_yaml(reader: Reader, piece: Piece) -> None:
    """Read YAML; what is no YAML, such as lines of a template, is left out."""
    text, documents = _composed(piece.text)
    walk = _Walk(DataCollector(reader), piece, text)
    for node in documents:
        walk.value((), node)


def parse_json_words(reader: Reader, piece: Piece) -> list[Word]:
    """Return the words of a text that is a JSON list of texts; none of every other text."""
    try:
        nodes = list(_Composer(piece.text).documents()) if piece.text.lstrip().startswith("[") else []
    except (YAMLError, RecursionError):
        return []
    walk = _Walk(DataCollector(reader), piece, piece.text)
    lists = [node for node in nodes[:1] if isinstance(node, SequenceNode)]
    texts = all(getattr(item, "style", "") == '"' for node in lists for item in node.value)
    return [word for node in lists if texts for word in walk.words(node)]


class _Composer(Composer, CBaseLoader):
    """PyYAML's composer over libyaml's parser. An anchor may be given again, as YAML 1.2 allows, or never."""

    def __init__(self, text: str) -> None:
        CBaseLoader.__init__(self, text)
        Composer.__init__(self)

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        """Return the next node."""
        event: Any = self.peek_event()
        alias = self.check_event(AliasEvent)
        if alias and event.anchor not in self.anchors:
            self.get_event()
            return ScalarNode("", "", event.start_mark, event.end_mark)
        if not alias:
            self.anchors.pop(event.anchor, None)
        return super().compose_node(parent, index)

    def documents(self) -> Iterator[Node]:
        """Yield the root of every document."""
        while self.check_node():
            if node := self.get_node():
                yield node


def _composed(text: str) -> tuple[str, list[Node]]:
    """Return the documents of a text, and the text that they are of, in which what is no YAML is blank."""
    tries = min(_MOST_ERRORS, _MOST_READ // (len(text) + 1))
    for turn in range(tries):
        try:
            return text, list(_Composer(text).documents())
        except RecursionError:
            break
        except YAMLError as error:
            text = _without_error(text, error) if turn else _without_template(text)
    return "", []


def _without_template(text: str) -> str:
    text = _STATEMENT.sub(lambda hit: re.sub(r"[^\n]", " ", hit.group()), text)
    return _EXPRESSION.sub(lambda hit: re.sub(r"[^\n]", "x", hit.group()), text)


def _without_error(text: str, error: YAMLError) -> str:
    """Return the text without the line of an error: where it shows, or where a bracket or quote was opened."""
    lines = text.split("\n")
    marks = [error.problem_mark, error.context_mark] if isinstance(error, MarkedYAMLError) else []
    if isinstance(error, MarkedYAMLError) and re.search("flow|quoted", error.context or ""):
        marks.reverse()
    numbers = [min(mark.line, len(lines) - 1) for mark in marks if mark]
    numbers += range(numbers[-1] if numbers else 0, -1, -1)
    for number in numbers:
        if lines[number].strip():
            lines[number] = " " * len(lines[number])
            break
    return "\n".join(lines)


class _Walk:
    """Tells the facts of nodes; `text` is what was composed, as long as the piece it is of."""

    def __init__(self, facts: DataCollector, piece: Piece, text: str) -> None:
        self.facts, self.piece, self.text = facts, piece, text
        self.seen: set[tuple[int, tuple[str, ...]]] = set()

    def value(self, path: tuple[str, ...], node: Node) -> None:
        """Take a value; what an alias names is taken wherever it is named, once under the same keys."""
        if (id(node), path[-2:]) in self.seen:
            return
        self.seen.add((id(node), path[-2:]))
        if isinstance(node, SequenceNode):
            self._sequence(path, node)
        elif isinstance(node, MappingNode):
            self._mapping(path, node)

    def _sequence(self, path: tuple[str, ...], node: SequenceNode) -> None:
        words = self.words(node)
        if words:
            self.facts.array(path, words)
        for item in node.value:
            self.value(path, item)

    def words(self, node: SequenceNode) -> list[Word]:
        """Return the texts of a list."""
        return [self._word(item) for item in node.value if isinstance(item, ScalarNode)]

    def _mapping(self, path: tuple[str, ...], node: MappingNode) -> None:
        """Take the keys, the one that names what the others give first."""
        keys = {key.value: value for key, value in node.value if isinstance(key, ScalarNode)}
        for key, value in sorted(node.value, key=lambda pair: pair[0].value != "name"):
            name = key.value if isinstance(key, ScalarNode) else "<<"
            deeper = path if name == "<<" or len(path) >= DEEPEST else (*path, name)
            starter = keys.get(_STARTERS.get(name, ""))
            template = isinstance(value, MappingNode) and self.text.startswith("{{", value.start_mark.index)
            if isinstance(value, ScalarNode) or template:
                if value.value or value.style:
                    self.facts.scalar(deeper, self._word(value), self.piece.at[self._begin(key)])
            elif isinstance(starter, SequenceNode) and isinstance(value, SequenceNode):
                self.facts.array(deeper, [*self.words(starter), *self.words(value)])
            else:
                self.value(deeper, value)

    def _begin(self, node: Any) -> int:
        """Return where the text of a scalar begins, behind its anchor, tag and quote, or the head of a block."""
        hit = _BEFORE_VALUE.match(self.text, node.start_mark.index, node.end_mark.index)
        return (hit.end() if hit else node.start_mark.index) + (node.style in ("'", '"'))

    def _word(self, node: Any) -> Word:
        """Return a scalar, each character with the place where it stands; an expression of a template is one, too."""
        start, end = node.start_mark.index, node.end_mark.index
        if not isinstance(node, ScalarNode):
            return self._plain(start, end, "p")
        start, mask = self._begin(node), "d" if node.style == '"' else "s" if node.style else "p"
        if self.text.startswith(node.value, start):
            return self._plain(start, start + len(node.value), mask)
        places = _places(node.value, self.text, start, end, node.style)
        filled = [
            self.piece.text[i] if self.text[i : i + 1] != self.piece.text[i : i + 1] else char
            for i, char in zip(places, node.value, strict=False)
        ]
        if node.style == ">":  # a folded line that stands deeper is meant to go on
            filled = [" " if char == "\n" and filled[i + 1 : i + 2] == [" "] else char for i, char in enumerate(filled)]
        return Word("".join(filled), mask * len(filled), [self.piece.at[i] for i in places])

    def _plain(self, start: int, end: int, mask: str) -> Word:
        cut = self.piece.cut(start, end)
        return Word(cut.text, mask * len(cut.text), cut.at)


def _places(value: str, text: str, i: int, end: int, style: str | None) -> list[int]:
    """Return where in `text` from `i` on each character of a scalar stands, and where it ends."""
    places: list[int] = []
    for char in value:
        while i < end and text[i] != char and (hit := _SKIPPED.match(text, i)):
            if char.isspace() and text[i] == "\n":  # a folded line
                break
            i = hit.end()
        places.append(min(i, end))
        hit = _ESCAPES[style].match(text, i, end) if style in _ESCAPES else None
        i = hit.end() if hit else i + 1
    return [*places, min(i, end)]
