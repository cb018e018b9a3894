"""What keys and values of data files mean: variables, commands, images, patterns; and how TOML is read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from rlbox.lint.read.reader import PIN, Reader
from rlbox.lint.read.text import Piece
from rlbox.lint.read.words import Word

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
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


@dataclass
class _Box:
    """A table (with the keys that lead to it) or a list (with its items) that is open."""

    path: tuple[str, ...]
    is_list: bool
    items: list[Word] = field(default_factory=list)


def _is_command(key: str) -> bool:
    """Whether a key names what is run: `command`, `start_ray_commands`, `preStopCommand`, `ansible.builtin.shell`."""
    return _COMMAND.fullmatch(key.rpartition(".")[2]) is not None


class Facts:
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
    _Tables(Facts(reader), piece).read()


class _Tables:
    """Walks over the tokens of TOML with the open tables and lists on a stack."""

    def __init__(self, facts: Facts, piece: Piece) -> None:
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
    value = "".join(_ESCAPES.get(part[1], part[1]) if part[1] else part[0] for part in parts)
    return Word(value, mask * len(value), [*(piece.at[part.start()] for part in parts), piece.at[-1]])
