"""Shell text as commands, read with tree-sitter's grammar of Bash."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlbox.lint.text import Fragment, SyntaxTree

if TYPE_CHECKING:
    from tree_sitter import Node

# A word in angle brackets that the reader is to replace, as notes write it; `<input >output` is none.
PLACEHOLDER = re.compile(
    r"<(?=[^<>\n]{1,60}>)(?:[^<>\s|&;()\"'`$]*[-_ ])?(?:your|my|PORT|HOST(?:NAME)?|IP|USER(?:NAME)?|NAME|PATH|DIR|TOKEN"
    r"|KEY|ID|URL|ADDR(?:ESS)?|PASS(?:WORD)?|SECRET|REPO|BRANCH|INSTANCE|HEAD|NODE|DIGEST|VERSION|TAG|REGISTRY|FILE"
    r"|FOLDER|EMAIL|PROJECT|ORG|NAMESPACE|MODEL|DATASET|[^\x00-\x7f]{1,30})(?:[-_ ][^<>\s|&;()\"'`$]*)?[0-9]?>",
    re.IGNORECASE,
)
_EXPRESSION = re.compile(r"\$\{\{.*?\}\}")  # of GitHub, in the steps of a workflow
_LINE_END_BACKTICK = re.compile(r"(?m)(?<=[ \t])`(?=[ \t]*$)")
_SIMPLE_COMMANDS = {
    *("command", "declaration_command", "unset_command", "test_command"),
    *("variable_assignment", "variable_assignments"),
}
_ESCAPES = {"word": re.compile(r"\\(\n|.)", re.DOTALL), "string": re.compile(r'\\([\n"\\$`])')}
_LARGEST = 400_000  # characters; a longer program is data


@dataclass(frozen=True)
class Word(Fragment):
    """A word: `text` without its quotes, `raw` as it is written."""

    raw: str = ""


@dataclass(eq=False)
class Command:
    """A simple command as written; `array` is the name of a `NAME=( … )`, whose items are the words."""

    words: list[Word] = field(default_factory=list)
    assignments: list[Word] = field(default_factory=list)
    redirects: list[tuple[str, Word]] = field(default_factory=list)
    here_documents: list[Fragment] = field(default_factory=list)
    array: str = ""


@dataclass(eq=False)
class Pipeline:
    """Commands joined by `|`, and their source.

    `marks` are background, status-used (by `if`, `&&`, …), followed (by a command), unchecked (by it: `;`).
    """

    commands: list[Command]
    source: Fragment
    marks: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Script:
    """The pipelines of a shell text, and the offsets of backticks with which PowerShell continues a line."""

    pipelines: list[Pipeline]
    continuations: list[int]


def read_shell(source: Fragment) -> Script:
    """Return the commands of a shell text, those of command substitutions behind the one they stand in."""
    source = source.cut(0, _LARGEST)
    text = source.text
    backticks = [match.start() for match in _LINE_END_BACKTICK.finditer(text)]  # with which PowerShell continues a line
    backticks = [i for i in backticks if text.count("`", text.rfind("\n", 0, i) + 1, i) % 2 == 0]
    for i in backticks:
        text = f"{text[:i]}\\{text[i + 1 :]}"
    text = _EXPRESSION.sub(lambda match: re.sub(r"[!-/:-@\[-`{-~ ]", "_", match.group()), text)
    text = PLACEHOLDER.sub(lambda match: f"_{match.group()[1:-1].replace(' ', '_')}_", text)
    pipelines = list(_CommandReader(SyntaxTree("bash", source, text)).pipelines())
    return Script(pipelines, [source.offsets[i] for i in backticks])


class _CommandReader:
    def __init__(self, tree: SyntaxTree) -> None:
        self.tree = tree

    def pipelines(self) -> Iterator[Pipeline]:
        stack: list[tuple[Node, frozenset[str]]] = [(self.tree.root, frozenset())]
        while stack:
            node, marks = stack.pop()
            if node.type in ("comment", "heredoc_body"):
                continue
            if node.type in ("pipeline", "redirected_statement") or node.type in _SIMPLE_COMMANDS:
                commands, nested = self._commands(node)
                if commands:
                    yield Pipeline(commands, self.tree.fragment(node), marks)
                stack += [(child, frozenset()) for child in reversed(nested)]
                continue
            stack += reversed(list(_marked_children(node, marks)))

    def _commands(self, node: Node) -> tuple[list[Command], list[Node]]:
        """Return the simple commands of a pipeline, and the nodes in which further ones may stand."""
        commands: list[Command] = []
        nested: list[Node] = []
        if node.type in _SIMPLE_COMMANDS:
            commands.append(self._simple(node))
            for child in node.children:
                nested += child.children if child.type == "variable_assignment" else [child]
            return commands, nested
        for child in node.named_children:
            if child.type in ("file_redirect", "heredoc_redirect", "herestring_redirect"):
                self._redirect(child, commands, nested)
            elif child.type in ("pipeline", "redirected_statement") or child.type in _SIMPLE_COMMANDS:
                inner, more = self._commands(child)
                commands += inner
                nested += more
            else:
                nested.append(child)
        return commands, nested

    def _simple(self, node: Node) -> Command:
        command = Command()
        for part in [node] if node.type in ("variable_assignment", "test_command") else node.children:
            if part.type == "variable_assignment" and not command.words:
                command.assignments.append(self._word(part))
                for array in part.named_children:
                    if array.type == "array":
                        command.array = self.tree.fragment(part.named_children[0]).text
                        command.words = [self._word(item) for item in array.named_children if item.type != "comment"]
            elif part.type.endswith("_redirect"):
                self._redirect(part, [command], [])
            elif part.type != "comment":
                command.words.append(self._word(part))
        return command

    def _redirect(self, node: Node, commands: list[Command], nested: list[Node]) -> None:
        command = commands[-1] if commands else Command()
        operator = ""
        for child in node.children:
            if child.type == "heredoc_body":
                command.here_documents.append(self.tree.fragment(child))
            elif child.type in ("file_redirect", "heredoc_redirect"):
                self._redirect(child, [command], nested)
            elif child.type == "pipeline":  # `cat <<EOF | python`
                inner, more = self._commands(child)
                commands += inner
                nested += more
            elif not child.is_named:
                operator = child.type
            elif child.type not in ("file_descriptor", "heredoc_start", "heredoc_end"):
                if operator:
                    command.redirects.append((operator, self._word(child)))
                    operator = ""
                else:
                    command.words.append(self._word(child))
                nested.append(child)

    def _word(self, node: Node) -> Word:
        pieces = list(self._unquoted(node))
        end = self.tree.source.offsets[self.tree.index(node.end_byte)]
        offsets = [offset for piece in pieces for offset in piece.offsets[:-1]]
        return Word("".join(piece.text for piece in pieces), [*offsets, end], self.tree.fragment(node).text)

    def _unquoted(self, node: Node) -> Iterator[Fragment]:
        if node.type in ("concatenation", "command_name", "variable_assignment"):
            for child in node.children:
                yield from self._unquoted(child)
            return
        source = self.tree.fragment(node)
        if node.type in ("raw_string", "string", "ansi_c_string", "translated_string"):
            source = source.cut(1 if source.text[:1] in "\"'" else 2, len(source.text) - 1)
        start = 0
        pattern = _ESCAPES.get(node.type)
        for escape in pattern.finditer(source.text) if pattern else ():
            yield source.cut(start, escape.start())
            start = escape.end() if escape[1] == "\n" else escape.start(1)
        yield source.cut(start)


def _marked_children(node: Node, inherited: frozenset[str]) -> Iterator[tuple[Node, frozenset[str]]]:
    """Yield the children with what follows from the operator behind each and from the keyword around."""
    children = node.children
    if node.type not in ("list", "negated_command"):
        inherited = frozenset()
    asks = node.type in ("if_statement", "elif_clause", "while_statement")
    last = max((i for i, child in enumerate(children) if child.is_named and child.type != "comment"), default=0)
    for i, (child, after) in enumerate(itertools.zip_longest(children, children[1:])):
        asks = asks and child.type not in ("then", "do_group")
        operator = after.type if after is not None else ""
        marks = set(inherited)
        if asks or node.type == "negated_command" or operator in ("&&", "||"):
            marks.add("status-used")
        if i < last:
            marks |= {"followed", "unchecked"} if operator == ";" else {"followed"}
        if operator == "&":
            marks.add("background")
        yield child, frozenset(marks)
