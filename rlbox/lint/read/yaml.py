"""Fill a document from YAML and JSON, as PyYAML composes them; no tag or type matters to what a lint looks for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from yaml import AliasEvent, CBaseLoader, MappingNode, Node, ScalarNode, SequenceNode, YAMLError
from yaml.composer import Composer
from yaml.error import MarkedYAMLError

from rlbox.lint.read.data import DEEPEST, Facts
from rlbox.lint.read.reader import Reader
from rlbox.lint.read.text import Piece
from rlbox.lint.read.words import Word

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
    walk = _Walk(Facts(reader), piece, text)
    for node in documents:
        walk.value((), node)


def json_words(reader: Reader, piece: Piece) -> list[Word]:
    """Return the words of a text that is a JSON list of texts; none of every other text."""
    try:
        nodes = list(_Composer(piece.text).documents()) if piece.text.lstrip().startswith("[") else []
    except (YAMLError, RecursionError):
        return []
    walk = _Walk(Facts(reader), piece, piece.text)
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

    def __init__(self, facts: Facts, piece: Piece, text: str) -> None:
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
