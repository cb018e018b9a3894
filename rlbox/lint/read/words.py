"""A tolerant reader of the words of a shell: quotes, escapes, expansions, substitutions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from rlbox.lint.read.text import Piece

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
