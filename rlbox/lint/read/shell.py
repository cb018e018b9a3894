"""A tolerant reader of shell text: commands and pipelines; it never gives up.

Notes and half-written scripts are read as well as sound ones, in time that grows with the text alone: a quote that is
never closed ends with its line, a bracket that is never closed is a letter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rlbox.lint.read.text import Piece
from rlbox.lint.read.words import PLACEHOLDER, SPACE, Word, WordReader

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[^\]]*\])?\+?=")
_OPERATORS = (";;", "&&", "||", "|&", ";", "|", "&", "(", ")")
_REDIRECTION = re.compile(r"(?:\d{0,4}|&)(?:>>|>\||>&|>|<<<|<<-|<<|<&|<>|<)")
# Lines of PowerShell where a command begins.
_POWERSHELL = re.compile(
    r"\$\{?(?i:env):\w+\}?\s*\+?=|\[(?:System\.)?Environment\]::|\$[A-Za-z_]\w*\s*=(?!=)"
    r"|(?:Get|Set|New|Remove|Copy|Move|Out|Write|Start|Stop|Invoke|Test|Select|Where|ForEach|Import|Export|Add|Clear|Join"
    r"|Split|Expand|Compress|Read|Rename|Format|Sort|Measure|Wait|Resolve|Push|Pop|ConvertTo|ConvertFrom|Enable|Disable"
    r"|Install|Uninstall|Update|Restart|Tee|Compare|Group|Receive|Register|Show)-[A-Z][A-Za-z]+(?![\w.=/-])"
)
_KEYWORDS = ("if", "then", "elif", "else", "while", "until", "do", "!", "time", "{", "}", "fi", "done", "esac")
_ASKING = ("if", "elif", "while", "until", "!")
_DEEPEST = 8


@dataclass
class SimpleCommand:
    """A simple command as written."""

    start: int
    assigns: list[Word] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    redirects: list[tuple[str, Word]] = field(default_factory=list)
    documents: list[Piece] = field(default_factory=list)
    array: str = ""  # the name when it is NAME=( … )


@dataclass
class Pipeline:
    """Commands joined by `|`, what stands after them, and whether a keyword asks for their status."""

    commands: list[SimpleCommand]
    after: str = "\n"
    asked: bool = False


@dataclass(frozen=True)
class Stray:
    """Text that is no shell: a line of PowerShell, or the backtick that continues one."""

    kind: str
    piece: Piece


@dataclass
class Script:
    """What a shell text says."""

    pipelines: list[Pipeline] = field(default_factory=list)
    strays: list[Stray] = field(default_factory=list)


def read_shell(piece: Piece, powershell: bool = True) -> Script:
    """Return the pipelines of a shell text, those of command substitutions after the one they stand in.

    Parameters
    ----------
    powershell
        Whether lines of PowerShell are told apart as strays.
    """
    script = Script()
    _Reader(piece, script, powershell, 0).read()
    return script


class _Reader(WordReader):
    """Reads one text once, from left to right."""

    def __init__(self, piece: Piece, script: Script, powershell: bool, depth: int) -> None:
        super().__init__(piece)
        self.script, self.powershell, self.depth = script, powershell, depth
        self.pipeline = Pipeline([])
        self.command: SimpleCommand | None = None
        self.waiting: list[tuple[str, SimpleCommand]] = []  # here-documents that begin on the next line

    def read(self) -> None:
        while self.i < len(self.text):
            self._step()
        self._end_pipeline("\n")

    def _step(self) -> None:
        char = self.text[self.i]
        if char in SPACE:
            self.i += 1
        elif char == "\n":
            self._end_pipeline("\n")
            self.i += 1
            self._read_documents()
        elif char == "\\" and self.continues(self.i):
            self.i = self.text.index("\n", self.i) + 1
        elif char == "#":
            self.i = self.line_end()
        elif self._stray():
            pass
        elif not self._operator():
            self._word()

    def _stray(self) -> bool:
        """Take a line of PowerShell, or the backtick at a line's end that continues one."""
        if not self.powershell:
            return False
        if self.command is None and (hit := _POWERSHELL.match(self.text, self.i)):
            end = self.line_end()
            self.script.strays.append(Stray("powershell", self.piece.cut(hit.start(), end)))
            self.i = end
            return True
        if self.text[self.i] == "`" and self.i and self.text[self.i - 1] in SPACE:
            end = self.line_end()
            if end < len(self.text) and not self.text[self.i + 1 : end].strip():
                self.script.strays.append(Stray("backtick", self.piece.cut(self.i, self.i + 1)))
                self.i = end + 1
                return True
        return False

    # ---- commands ----

    def _operator(self) -> bool:
        text, i = self.text, self.i
        if text.startswith("((", i) and self.command is None and (end := text.find("))", i, i + 4000)) > 0:
            self.i = end + 2  # arithmetic
            return True
        if (hit := _REDIRECTION.match(text, i)) and not PLACEHOLDER.match(text, i):
            if text.startswith("(", hit.end()):  # process substitution
                return False
            self.i = hit.end()
            self._redirect(hit.group())
            return True
        for operator in _OPERATORS:
            if text.startswith(operator, i):
                self.i = i + len(operator)
                self.command = None
                if operator not in ("|", "|&"):
                    self._end_pipeline(operator)
                return True
        return False

    def _redirect(self, operator: str) -> None:
        while self.i < len(self.text) and self.text[self.i] in SPACE:
            self.i += 1
        command = self._current(self.piece.at[self.i])
        word = self.read_word()
        if operator.endswith(("<<", "<<-")):
            self.waiting.append((word.value, command))
        command.redirects.append((operator.lstrip("0123456789"), word))

    def _current(self, start: int) -> SimpleCommand:
        if self.command is None:
            self.command = SimpleCommand(start)
            self.pipeline.commands.append(self.command)
        return self.command

    def _end_pipeline(self, operator: str) -> None:
        self.command = None
        if self.pipeline.commands:
            self.pipeline.after = operator
            self.script.pipelines.append(self.pipeline)
            for command in self.pipeline.commands:
                self._descend(command)
            self.pipeline = Pipeline([])

    def _descend(self, command: SimpleCommand) -> None:
        if self.depth < _DEEPEST:
            for word in (*command.assigns, *command.words, *(word for _, word in command.redirects)):
                for inner in word.inner:
                    _Reader(inner, self.script, self.powershell, self.depth + 1).read()

    def _read_documents(self) -> None:
        for end, command in self.waiting:
            start = self.i
            while self.i < len(self.text):
                line_end = self.line_end()
                line = self.text[self.i : line_end]
                here, self.i = self.i, min(line_end + 1, len(self.text))
                if line.strip() == end:
                    command.documents.append(self.piece.cut(start, here))
                    break
            else:
                command.documents.append(self.piece.cut(start, self.i))
        self.waiting = []

    def _word(self) -> None:
        fresh = self.command is None or not (self.command.words or self.command.assigns)
        start = self.i
        if fresh and self.text.startswith("[[", start) and self.text[start + 2 : start + 3] in (" ", "\t"):
            self._test()
            return
        word = self.read_word()
        if self.i == start:  # nothing was taken: a letter that means nothing here
            self.i += 1
            return
        if fresh and word.value in _KEYWORDS and set(word.mask) == {"p"}:
            self.pipeline.asked |= word.value in _ASKING
            return
        command = self._current(word.start)
        hit = ASSIGNMENT.match(word.value)
        if hit and not command.words and set(word.mask[: hit.end()]) <= {"p"}:
            command.assigns.append(word)
            if hit.end() == len(word.value) and self.text.startswith("(", self.i):
                self._array(command, hit.group(1))
        else:
            command.words.append(word)

    def _test(self) -> None:
        """Take `[[ … ]]`, in which `<`, `|` and `(` are no operators."""
        end = self.line_end()
        close = self.text.find("]]", self.i, end)
        stop = close + 2 if close > 0 else end
        command = self._current(self.piece.at[self.i])
        command.words += [Word(self.text[self.i : stop], "s" * (stop - self.i), self.piece.at[self.i : stop + 1])]
        self.i = stop

    def _array(self, command: SimpleCommand, name: str) -> None:
        command.array = name
        self.i += 1
        while self.i < len(self.text) and self.text[self.i] != ")":
            char, start = self.text[self.i], self.i
            if char == "#":
                self.i = self.line_end()
            elif char in SPACE or char == "\n" or char == "\\":
                self.i += 1
            else:
                command.words.append(self.read_word())
                self.i += self.i == start
        self.i += 1
