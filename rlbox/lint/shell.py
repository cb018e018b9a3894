"""Shell text as simple commands, read with tree-sitter's grammar of Bash."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from rlbox.errors import SpecError
from rlbox.i18n import _

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

# A word in angle brackets that the reader is to replace, as guides write it; `<input >output` is none.
_PLACEHOLDER = re.compile(r"<[^\W\d_][\w-]*(?: [\w-]+)*>")
_COMMANDS = {"command", "declaration_command", "unset_command", "test_command", "variable_assignment"}
_ESCAPES = {"word": re.compile(r"\\(?:\n|(.))", re.DOTALL), "string": re.compile(r'\\(?:\n|(["\\$`]))')}
_LARGEST = 400_000  # characters; a longer program is data


class Position(NamedTuple):
    """A place in a file; both count from 1."""

    line: int
    column: int


_BEGIN = Position(1, 1)


class Source(NamedTuple):
    """A part of a file, which begins at `start`; of its later lines the first `margin` characters are cut off."""

    text: str
    start: Position = _BEGIN
    margin: int = 0

    def position_at(self, index: int) -> Position:
        row = self.text.count("\n", 0, index)
        column = index - (self.text.rfind("\n", 0, index) + 1)
        return Position(self.start.line + row, column + (self.margin + 1 if row else self.start.column))


class Word(NamedTuple):
    """A word: `text` without its quotes, `raw` as it is written."""

    text: str
    raw: str
    position: Position

    def to_source_inside_quotes(self) -> Source:
        return Source(self.text, Position(self.position.line, self.position.column + self.raw.startswith(("'", '"'))))


@dataclass(eq=False)
class Command:
    """A simple command as written.

    `array_name` is that of a `NAME=( … )`, whose items are the words. `statement` is the pipeline that it stands in.
    `exit_status_use_tags` are status-used (by `if`, `&&`, …), followed (by a command), unchecked (by it: `;`).
    """

    statement: Source
    exit_status_use_tags: frozenset[str] = frozenset()
    words: list[Word] = field(default_factory=list)
    assignments: list[Word] = field(default_factory=list)
    here_documents: list[Source] = field(default_factory=list)
    array_name: str = ""


@cache
def load_bash_parser() -> Parser:
    """Return tree-sitter's parser; `SpecError` when the extra `lint` is not installed."""
    try:
        import tree_sitter_bash
        from tree_sitter import Language, Parser
    except ImportError as error:
        what = _("rlbox lint needs tree-sitter, which is not installed")
        raise SpecError(what, where=str(error.name), next_step="pip install 'rlbox[lint]'") from error
    return Parser(Language(tree_sitter_bash.language()))


def replace_angle_bracket_placeholders(text: str) -> str:
    """Return a text in which `<your name>`, for a shell a redirection, is a word of the same length."""
    return _PLACEHOLDER.sub(lambda match: f"_{match.group()[1:-1].replace(' ', '_')}_", text)


def parse_shell_commands(source: Source) -> Iterator[Command]:
    """Yield the commands of a shell text, those of command substitutions behind the one they stand in."""
    text = source.text[:_LARGEST]
    parsed = replace_angle_bracket_placeholders(text)  # the words of commands keep their text
    reader = _Reader(source, text.encode("utf-8", "replace"))
    nodes = [load_bash_parser().parse(parsed.encode("utf-8", "replace")).root_node]
    while nodes:
        node = nodes.pop()
        if node.type not in ("comment", "heredoc_body"):
            is_part = node.type == "variable_assignment" and node.parent and node.parent.type in _COMMANDS
            if node.type in _COMMANDS and not is_part:
                yield reader.command(node)
            nodes += reversed(node.children)


class _Reader:
    def __init__(self, source: Source, data: bytes) -> None:
        self.source, self.data = source, data
        self.statements: dict[int, tuple[Source, frozenset[str]]] = {}
        self.line_starts = [0, *(match.end() for match in re.finditer(b"\n", data))]

    def raw(self, node: Node) -> str:
        return self.data[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def position(self, node: Node) -> Position:
        row = node.start_point[0]
        column = len(self.data[self.line_starts[row] : node.start_byte].decode("utf-8", "replace"))
        first = self.source.margin + 1 if row else self.source.start.column
        return Position(self.source.start.line + row, column + first)

    def word(self, node: Node) -> Word:
        return Word(self.unquoted(node), self.raw(node), self.position(node))

    def unquoted(self, node: Node) -> str:
        if node.type in ("concatenation", "command_name", "variable_assignment"):
            return "".join(map(self.unquoted, node.children))
        text = self.raw(node)
        if node.type in ("raw_string", "string", "ansi_c_string", "translated_string"):
            text = text[1 if text[:1] in "\"'" else 2 : -1]
        return _ESCAPES[node.type].sub(lambda escape: escape[1] or "", text) if node.type in _ESCAPES else text

    def command(self, node: Node) -> Command:
        outermost = end = node  # its pipeline, and the last that redirections behind reach: the end of a list, too
        redirects: list[Node] = []
        while (parent := end.parent) and (  # a redirection behind a list is that of its last command
            parent.type in ("pipeline", "redirected_statement")
            or (parent.type == "list" and parent.children[-1] == end)
        ):
            if parent.type == "redirected_statement":
                redirects += [child for child in parent.named_children if child.type.endswith("_redirect")]
            outermost, end = parent if outermost is end and parent.type != "list" else outermost, parent
        if outermost.id not in self.statements:
            text = self.data[outermost.start_byte : end.end_byte].decode("utf-8", "replace")
            statement = Source(text, self.position(outermost), self.source.margin)
            self.statements[outermost.id] = statement, _marks(outermost)
        command = Command(*self.statements[outermost.id])
        for part in [node] if node.type in ("variable_assignment", "test_command") else node.children:
            if part.type == "variable_assignment" and not command.words:
                command.assignments.append(self.word(part))
                for array in (child for child in part.named_children if child.type == "array"):
                    command.array_name = self.raw(part.named_children[0])
                    command.words = [self.word(item) for item in array.named_children if item.type != "comment"]
            elif part.type.endswith("_redirect"):
                redirects.append(part)
            elif part.type != "comment":
                command.words.append(self.word(part))
        for redirect in redirects:
            self.add_redirect(command, redirect)
        return command

    def add_redirect(self, command: Command, redirect: Node) -> None:
        places = [part for part in redirect.named_children if part.type != "file_descriptor"]
        if redirect.type == "file_redirect":  # words behind the place are still those of the command
            command.words += map(self.word, places[1:])
        bodies = (part for part in places if part.type == "heredoc_body")
        command.here_documents += (Source(self.raw(body), self.position(body), self.source.margin) for body in bodies)


def _marks(node: Node) -> frozenset[str]:
    context_tags: set[str] = set()
    while parent := node.parent:
        operator = node.next_sibling.type if node.next_sibling else ""
        is_condition = parent.type in ("if_statement", "elif_clause", "while_statement") and not any(
            sibling.type in ("then", "do_group") and sibling.start_byte <= node.start_byte
            for sibling in parent.children
        )
        if is_condition or parent.type == "negated_command" or operator in ("&&", "||"):
            context_tags.add("status-used")
        if any(one.is_named and one.type != "comment" and one.start_byte > node.start_byte for one in parent.children):
            context_tags |= {"followed", "unchecked"} if operator == ";" else {"followed"}
        if parent.type not in ("list", "negated_command"):
            break
        node = parent
    return frozenset(context_tags)
