"""Read shell text: its words with their quotes, and its commands with pipes, settings and redirects."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from rlbox.lint.text import Piece

SPACE = " \t\r\f\v"
_PLAIN = re.compile(r"[^\s;|&()<>\\'\"$`]+")
_QUOTED = re.compile(r"[^\\$`\"]+")
_BRACKETS = re.compile(r"'[^']*'|\\.|[()]")
# A word in angle brackets that the reader is to replace, as notes write it; `<input >output` is none.
PLACEHOLDER = re.compile(
    r"<(?=[^<>\n]{1,60}>)(?:[^<>\s|&;()\"'`$]*[-_ ])?(?:your|my|PORT|HOST(?:NAME)?|IP|USER(?:NAME)?|NAME|PATH|DIR|TOKEN"
    r"|KEY|ID|URL|ADDR(?:ESS)?|PASS(?:WORD)?|SECRET|REPO|BRANCH|INSTANCE|HEAD|NODE|DIGEST|VERSION|TAG|REGISTRY|FILE"
    r"|FOLDER|EMAIL|PROJECT|ORG|NAMESPACE|MODEL|DATASET|[^\x00-\x7f]{1,30})(?:[-_ ][^<>\s|&;()\"'`$]*)?[0-9]?>",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Word:
    """A word without its quotes; `mask` has p, s, d, e or c for each character: plain, in single or double quotes,
    escaped, or part of a command substitution; `inner` are the texts of those."""

    value: str
    mask: str
    at: Sequence[int]
    inner: tuple[Piece, ...] = ()

    @property
    def start(self) -> int:
        """Where it begins in the document."""
        return self.at[0]

    @property
    def piece(self) -> Piece:
        """The word as text to read again."""
        return Piece(self.value, self.at)

    def cut(self, start: int, end: int | None = None) -> Word:
        """Return a part of the word."""
        end = len(self.value) if end is None else end
        return Word(self.value[start:end], self.mask[start:end], self.at[start : end + 1], self.inner)


@dataclass
class _Taken:
    """The parts of a word so far."""

    value: list[str] = field(default_factory=list)
    mask: list[str] = field(default_factory=list)
    at: list[int] = field(default_factory=list)
    inner: list[Piece] = field(default_factory=list)

    def add(self, char: str, mask: str, i: int) -> None:
        self.value.append(char)
        self.mask.append(mask)
        self.at.append(i)


class WordReader:
    """Reads words from a text; `i` is where it stands."""

    def __init__(self, piece: Piece) -> None:
        self.piece, self.text = piece, piece.text
        self.i = 0
        self.unclosed = False  # a `$(` without its end was met: later ones are letters

    def line_end(self) -> int:
        """Return where the line ends."""
        end = self.text.find("\n", self.i)
        return len(self.text) if end < 0 else end

    def continues(self, i: int) -> bool:
        """Whether the backslash at `i` joins two lines."""
        return self.text.startswith(("\n", "\r\n"), i + 1)

    def read_word(self) -> Word:
        """Return the word that begins here; empty when none does."""
        taken = _Taken()
        while self.i < len(self.text) and self._part(taken):
            pass
        at = [self.piece.at[i] for i in taken.at]
        at.append(self.piece.at[min(self.i, len(self.text))])
        return Word("".join(taken.value), "".join(taken.mask), at, tuple(taken.inner))

    def _part(self, taken: _Taken) -> bool:
        """Take the next part of a word; False where the word ends."""
        char = self.text[self.i]
        if char in SPACE or char == "\n" or char in ";|&()":
            return False
        if char in "<>":
            return self._angle(taken)
        if char == "\\":
            return self._escape(taken)
        if char == "'":
            return self._single(taken, self.i + 1)
        if char == '"':
            return self._double(taken)
        if char == "$":
            return self._dollar(taken, "p")
        if char == "`":
            return self._backtick(taken)
        hit = _PLAIN.match(self.text, self.i)
        self._plain(taken, hit.end() if hit else self.i + 1)
        return True

    def _angle(self, taken: _Taken) -> bool:
        hit = PLACEHOLDER.match(self.text, self.i)
        if hit:
            self._plain(taken, hit.end())
            return True
        if self.text.startswith(("<(", ">("), self.i) and not taken.value:
            return self._substitution(taken, self.i + 1, "c")
        return False

    def _plain(self, taken: _Taken, end: int, mask: str = "p") -> None:
        taken.value.append(self.text[self.i : end])
        taken.mask.append(mask * (end - self.i))
        taken.at.extend(range(self.i, end))
        self.i = end

    def _escape(self, taken: _Taken) -> bool:
        if self.continues(self.i):
            self.i = self.text.index("\n", self.i) + 1
            return True
        if self.i + 1 < len(self.text):
            taken.add(self.text[self.i + 1], "e", self.i + 1)
        self.i += 2
        return True

    def _single(self, taken: _Taken, start: int) -> bool:
        end = self.text.find("'", start)
        closed = end >= 0
        if not closed:
            end = self.line_end()
        self.i = start
        self._plain(taken, max(end, start), "s")
        self.i += closed
        return True

    def _double(self, taken: _Taken) -> bool:
        end = self._closing_quote(self.i + 1)
        closed = end >= 0
        if not closed:
            end = self.line_end()
        self.i += 1
        while self.i < end:
            char = self.text[self.i]
            if char == "\\" and self.text[self.i + 1 : self.i + 2] in ('"', "\\", "$", "`", "\n"):
                if self.text[self.i + 1] != "\n":
                    taken.add(self.text[self.i + 1], "d", self.i + 1)
                self.i += 2
            elif char == "$":
                self._dollar(taken, "d")
            elif char == "`":
                self._backtick(taken)
            else:
                hit = _QUOTED.match(self.text, self.i, end)
                self._plain(taken, hit.end() if hit else self.i + 1, "d")
        self.i = max(self.i, end) + closed
        return True

    def _closing_quote(self, i: int) -> int:
        """Return where the double quotes that `i` is in are closed; -1 when they never are."""
        while (end := self.text.find('"', i)) >= 0:
            begin = self.text.find("$(", i, end)
            if begin >= 0 and (close := self._closing_bracket(begin + 2)) >= 0:
                i = close + 1
                continue
            slashes = end
            while slashes > i and self.text[slashes - 1] == "\\":
                slashes -= 1
            if (end - slashes) % 2 == 0:
                return end
            i = end + 1
        return -1

    def _dollar(self, taken: _Taken, mask: str) -> bool:
        text, i = self.text, self.i
        if text.startswith("$((", i) and (end := text.find("))", i, i + 4000)) > 0:
            self._plain(taken, end + 2, mask)
        elif text.startswith("$(", i):
            return self._substitution(taken, i + 1, mask)
        elif text.startswith("${", i) and (end := text.find("}", i, i + 4000)) > 0:
            self._plain(taken, end + 1, mask)
        elif text.startswith("$'", i) and mask == "p":
            return self._single(taken, i + 2)
        else:
            taken.add("$", mask, i)
            self.i += 1
        return True

    def _substitution(self, taken: _Taken, bracket: int, mask: str) -> bool:
        end = self._closing_bracket(bracket + 1)
        if end < 0:
            self._plain(taken, bracket + 1, mask)
            return True
        taken.inner.append(self.piece.cut(bracket + 1, end))
        self._plain(taken, end + 1, "c")
        return True

    def _closing_bracket(self, i: int) -> int:
        """Return where the bracket that `i` stands behind is closed; -1 when it never is."""
        if self.unclosed:
            return -1
        depth = 1
        for hit in _BRACKETS.finditer(self.text, i):
            found = hit.group()
            depth += (found == "(") - (found == ")")
            if depth == 0:
                return hit.start()
        self.unclosed = True
        return -1

    def _backtick(self, taken: _Taken) -> bool:
        end = self.text.find("`", self.i + 1)
        if end < 0:
            taken.add("`", "p", self.i)
            self.i += 1
            return True
        taken.inner.append(self.piece.cut(self.i + 1, end))
        self._plain(taken, end + 1, "c")
        return True


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
_DEEPEST_SHELL = 8


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
        if self.depth < _DEEPEST_SHELL:
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
