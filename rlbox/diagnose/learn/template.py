"""What of a line is of its message, and what is of one run: a template, and the expression that finds its like.

Paths, numbers, names, hosts, addresses, shapes and whatever stands in quotation marks are of one run: a hole stands in
their place. What is left are the words that a program was written with.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from rlbox.diagnose.literals import SHORTEST

Kind = Literal["text", "number", "quoted", "word", "list"]
_HOLES: dict[Kind, tuple[str, str]] = {
    "number": (r"[\w.,:+-]{1,40}", "1"),
    "quoted": (r".{0,200}", "NAME"),
    "word": (r"\S{1,200}", "NAME"),
    "list": (r".{0,200}", "1"),
}
"""What each kind of hole takes, and what stands for it in an example."""
_SHOWN: dict[Kind, str] = {"number": "<number>", "quoted": "<text>", "word": "<name>", "list": "<list>"}
MOST_LETTERS = 120
"""Characters of a message that are asked for; what comes later is mostly advice, and changes with versions."""
LEAST_LETTERS = 16
"""Letters from which on a message tells its failure from others by itself."""
LEAST_CLAUSE = 48
"""Letters from which on what stands before a colon says enough: behind it follow details, in words that change."""
_MOST_READ = 600
_RAISED = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Z]\w*)(?=:|$)")
_QUOTED = re.compile(r"(?<![\w'\"`])(['\"`])(?:(?!\1).){0,300}?\1(?!\w)")
_LISTED = re.compile(r"\[[^\[\]]{0,300}\]|\{[^{}]{0,300}\}|\((?=[^()]{0,300}\d)[^()]{0,300}\)")
_WORD = re.compile(r"\S+")
_PLAIN = re.compile(r"[A-Za-z]+(?:[-_'][A-Za-z]+)*(?:\(\))?")
_ASSIGNED = re.compile(r"(--?)?[A-Za-z]+(?:[-_][A-Za-z]+)*=")
_NUMBER = re.compile(r"[-+]?(?:0x[0-9a-fA-F]+|\d[\d.,:eE+-]*)[A-Za-z%]{0,4}")
_MODEL = re.compile(r"(?i)qwen|llama|deepseek|mixtral|mistral|gemma|chatglm|internlm|\bphi-")
_LONGEST_WORD = 40
_NAMES = re.compile(r"(?i)(?:node|host|hostname|user|team|account|bucket|project)[:=]?")
"""Words behind which a name stands."""
_SIGNS = re.compile(r"([.\\+*?()\[\]{}^$|])")
_BEFORE, _BEHIND = "([{<\"'`,;:=", ".,;:!?)]}>\"'`="
_EDGES = _BEFORE + _BEHIND


@dataclass(frozen=True, slots=True)
class LinePart:
    """A piece of a line: words that are kept, or what stood in a hole's place."""

    kind: Kind
    text: str


def template_of(text: str, private: Collection[str] = ()) -> tuple[LinePart, ...]:
    """Return a line as words and holes; `private` are words that are nobody else's business."""
    head = _RAISED.match(text)
    parts = [LinePart("text", head.group(1))] if head else []
    rest = text[head.end() if head else 0 :][:_MOST_READ]
    parts += _message(rest, {word.casefold() for word in private})
    return tuple(_joined(parts))


def shown(parts: Collection[LinePart]) -> str:
    """Return a template for people: `ValueError: no weights below <name>`."""
    return "".join(part.text if part.kind == "text" else _SHOWN[part.kind] for part in parts).strip()


def example_of(parts: Collection[LinePart]) -> str:
    """Return a line of that template that nobody ever wrote."""
    return "".join(part.text if part.kind == "text" else _HOLES[part.kind][1] for part in parts).strip()


def pattern_of(parts: Collection[LinePart]) -> str:
    """Return a linear expression that fits the lines of a template."""
    said = [_SIGNS.sub(r"\\\1", part.text) if part.kind == "text" else _HOLES[part.kind][0] for part in parts]
    return "".join(said).strip(" ")


def letters(parts: Collection[LinePart]) -> int:
    """Return how many letters of a message its template keeps, the exception's name not counted."""
    said = "".join(part.text if part.kind == "text" else " " for part in parts)
    head = _RAISED.match(said)
    return sum(map(str.isalpha, said[head.end() if head else 0 :]))


def cut(parts: Collection[LinePart], most: int = MOST_LETTERS) -> tuple[LinePart, ...]:
    """Return the beginning of a template: its first sentences, whole words of at most that many characters.

    It ends with words, and with the first sentence that says enough, or the first clause that says much.
    """
    found: list[LinePart] = []
    left = most
    for part in parts:
        text = part.text
        if part.kind == "text" and len(text) > left:
            text = text[: text.rfind(" ", 0, left)] if " " in text[:left] else text[:left]
        said = ((at, letters([*found, LinePart("text", text[:at])]), least) for at, least in _ends(text))
        end = next((at for at, count, least in said if count >= least), -1)
        if part.kind == "text" and end >= 0:
            found.append(LinePart("text", text[:end]))
            break
        found.append(LinePart(part.kind, text))
        left -= len(part.text) if part.kind == "text" else 0
        if left <= 0:
            break
    while len(found) > 1 and (found[-1].kind != "text" or not found[-1].text.strip()):
        found.pop()
    return tuple(found)


def unnamed(parts: Collection[LinePart]) -> tuple[LinePart, ...]:
    """Return a template without the exception's name, from its first words on."""
    found = list(parts)
    while found and (found[0].kind != "text" or _RAISED.match(found[0].text) or not found[0].text.strip()):
        head = _RAISED.match(found[0].text) if found[0].kind == "text" else None
        rest = found[0].text[head.end() :].lstrip(": ") if head else ""
        found[:1] = [LinePart("text", rest)] if rest else []
    return tuple(found)


def _ends(text: str) -> Iterator[tuple[int, int]]:
    """Yield where sentences and clauses of a text end, each with the letters from which on it says enough."""
    for found in re.finditer(r"[.!:](?= |$)", text):
        yield found.start(), LEAST_CLAUSE if found.group() == ":" else LEAST_LETTERS


def longest(parts: Collection[LinePart]) -> str:
    """Return the longest text that a template keeps, without blanks around it; empty where it is too short to seek."""
    best = max((part.text.strip() for part in parts if part.kind == "text"), key=len, default="")
    return best if len(best) >= SHORTEST else ""


def _message(text: str, private: Collection[str]) -> Iterator[LinePart]:
    """Yield the parts of a message: what stands in quotation marks, then lists, then word by word."""
    for quoted, piece in _split(text, _QUOTED):
        if quoted:
            yield from (LinePart("text", piece[0]), LinePart("quoted", piece[1:-1]), LinePart("text", piece[-1]))
            continue
        for listed, rest in _split(piece, _LISTED):
            if listed:
                yield from (LinePart("text", rest[0]), LinePart("list", rest[1:-1]), LinePart("text", rest[-1]))
            else:
                yield from _words(rest, private)


def _split(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[bool, str]]:
    """Yield the pieces of a text in order, each with whether the pattern found it."""
    at = 0
    for found in pattern.finditer(text):
        yield False, text[at : found.start()]
        yield True, found.group()
        at = found.end()
    yield False, text[at:]


def _words(text: str, private: Collection[str]) -> Iterator[LinePart]:
    at, named = 0, False
    for found in _WORD.finditer(text):
        word = found.group()
        yield LinePart("text", " " if found.start() > at else "")
        yield from _word(word, {*private, word.strip(_EDGES).casefold()} if named else private)
        at, named = found.end(), bool(_NAMES.fullmatch(word))
    yield LinePart("text", " " if len(text) > at else "")


def _word(word: str, private: Collection[str]) -> Iterator[LinePart]:
    begin, end = len(word) - len(word.lstrip(_BEFORE)), len(word.rstrip(_BEHIND))
    if begin >= end:
        yield LinePart("text", word)
        return
    if word[end : end + 1] == ")" and word[end - 1] == "(":
        end += 1
    core = word[begin:end]
    assigned = _ASSIGNED.match(core)
    yield LinePart("text", word[:begin])
    if assigned and assigned.end() < len(core):
        yield from (LinePart("text", assigned.group()), LinePart("word", core[assigned.end() :]))
    else:
        yield LinePart(_kind(core, private), core)
    yield LinePart("text", word[end:])


def _kind(core: str, private: Collection[str]) -> Kind:
    if _NUMBER.fullmatch(core):
        return "number"
    if len(core) > _LONGEST_WORD or not _PLAIN.fullmatch(core) or _MODEL.search(core) or core.casefold() in private:
        return "word"
    return "text"


def _joined(parts: Collection[LinePart]) -> Iterator[LinePart]:
    """Yield parts with neighbouring texts as one, and of neighbouring holes the first."""
    kept: LinePart | None = None
    for part in parts:
        if part.kind == "text" and not part.text:
            continue
        if kept is None:
            kept = part
        elif kept.kind == part.kind == "text":
            kept = LinePart("text", kept.text + part.text)
        elif kept.kind != "text" and part.kind != "text":
            continue
        else:
            yield kept
            kept = part
    if kept is not None:
        yield kept
