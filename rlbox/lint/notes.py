"""Notes in Markdown: the commands of their fences, and what the prose around them recommends."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from rlbox.config.toml_files import load_toml
from rlbox.lint.document import PROSE, Document, Image
from rlbox.lint.text import Fragment, join

Readers = Mapping[str, Callable[[Document, Fragment], None]]
"""What reads a fence of a format."""
_LONGEST = 2_000  # characters of a line of prose; a longer one is data
_TABLE = load_toml(Path(__file__).with_name("formats.toml"))
_LANGUAGES = {language: kind for kind, languages in _TABLE["languages"].items() for language in languages.split()}
_PATTERN = {name: re.compile(pattern) for name, pattern in _TABLE["notes"].items()}


def read_notes(document: Document, source: Fragment, readers: Readers) -> None:
    """Read notes: what stands in fences by its language, and what the prose around them sets or runs."""
    lines = source.lines()
    i = 0
    while i < len(lines):
        fence = _PATTERN["fence"].match(lines[i].text)
        if fence is None:
            i = _read_prose(document, lines, i)
            continue
        closing = re.compile(rf"[ \t>]*{re.escape(fence['fence'][0])}{{{len(fence['fence'])},}}[ \t]*$").match
        end = next((n for n in range(i + 1, len(lines)) if closing(lines[n].text.rstrip("\n"))), len(lines))
        body = lines[i + 1 : end]
        i = end + 1
        if body:
            lines_inside = [_without_margin(line, fence["margin"]) for line in body]
            _read_fence(document, lines_inside, fence["language"].lower(), readers)


def _without_margin(line: Fragment, margin: str) -> Fragment:
    """Return a line without the margin that its fence has: indentation, or the marks of a quotation."""
    if line.text.startswith(margin):
        return line.cut(len(margin))
    quoted = re.match(r"[ \t>]*", line.text) if ">" in margin else None
    return line.cut(quoted.end()) if quoted else line


def _read_fence(document: Document, body: list[Fragment], language: str, readers: Readers) -> None:
    kind = _LANGUAGES.get(language, language or "any")
    if kind == "shell":
        document.add_shell(join(_typed_lines(body, _prompt) or body))
    elif kind in readers:
        readers[kind](document, join(body))
    elif kind == "any":  # the lines of it that are commands, and images that stand alone
        typed = _typed_lines(body, lambda text: is_command_text(text.strip()))
        for line in body:
            if line not in typed and _PATTERN["image"].fullmatch(text := line.text.strip()):
                document.images.append(Image(text, line.offsets[line.text.index(text)]))
        if typed:
            document.add_shell(join(typed))


def _prompt(text: str) -> re.Match[str] | None:
    return _PATTERN["prompt"].match(text[:200])


def _typed_lines(body: list[Fragment], begins: Callable[[str], object]) -> list[Fragment]:
    """Return the lines that begin a command, without their prompts, and those that continue one."""
    typed: list[Fragment] = []
    is_continued = False
    for line in body:
        if is_continued or begins(line.text):
            prompt = _prompt(line.text)
            typed.append(line.cut(prompt.end() if prompt else 0))
            is_continued = line.text.rstrip().endswith("\\")
    return typed


def is_command_text(text: str) -> bool:
    """Whether a line or a span of a text is a command or a setting rather than words about one."""
    prompt = _prompt(text)
    text = text[prompt.end() :] if prompt else text
    if _PATTERN["export"].match(text):
        return not _PATTERN["sentence"].search(text)
    return bool(_PATTERN["program"].match(text)) and not _PATTERN["sentence"].search(text.partition(" #")[0])


def _read_prose(document: Document, lines: list[Fragment], i: int) -> int:
    """Read what stands outside fences from line `i` on; return the number of the line to go on with."""
    line = lines[i]
    below = lines[i + 1].text[:_LONGEST] if i + 1 < len(lines) else ""
    if line.text.lstrip(" >").startswith("|") and re.match(r"[ >]*\|?[ :|-]*-[ :|-]*$", below):
        return _read_table(document, lines, i)
    text = line.text.strip()
    is_typed = _prompt(line.text) or text.startswith("export ") or _PATTERN["export"].match(text)
    if (is_typed or line.text.startswith(("    ", "\t"))) and is_command_text(text):
        end = i + 1
        while end < len(lines) and lines[end - 1].text.rstrip().endswith("\\"):
            end += 1
        prompt = _prompt(line.text)
        document.add_shell(join([line.cut(prompt.end() if prompt else 0), *lines[i + 1 : end]]), PROSE)
        return end
    if not text.startswith("#") and not _PATTERN["warning"].search(_PATTERN["span"].sub("", line.text)):
        for span in _PATTERN["span"].finditer(line.text):
            if is_command_text(span["text"].strip()):
                document.add_shell(line.cut(*span.span("text")), PROSE)
    return i + 1


def _read_table(document: Document, lines: list[Fragment], i: int) -> int:
    """Read a table whose head says that its rows give parameters and values, or images."""
    head = [cell.text for cell in _cells(lines[i])]
    has_values = (
        bool(head)
        and bool(_PATTERN["name_column"].search(head[0]))
        and any(map(_PATTERN["value_column"].search, head[1:]))
    )
    images = {number for number, cell in enumerate(head) if _PATTERN["image_column"].search(cell)} | (
        {1} if has_values else set()
    )
    i += 2
    while i < len(lines) and lines[i].text.lstrip(" >").startswith("|"):
        cells = _cells(lines[i])
        spans = [_PATTERN["span"].search(cell.text) for cell in cells]
        for number, (cell, span) in enumerate(zip(cells, spans, strict=True)):
            if span and number in images and _PATTERN["image"].fullmatch(span["text"]):
                document.images.append(Image(span["text"], cell.offsets[span.start("text")], PROSE))
        name = _PATTERN["span"].fullmatch(cells[0].text.strip("* ")) if cells and has_values else None
        if name and _PATTERN["variable"].fullmatch(name["text"]) and not _PATTERN["warning"].search(lines[i].text):
            document.block += 1
            start = cells[0].offsets[cells[0].text.index(name["text"])]
            value = spans[1]["text"] if spans[1:] and spans[1] else cells[1].text.strip() if cells[1:] else ""
            document.add_setting(name["text"], value, start, "table", PROSE)
        i += 1
    return i


def _cells(row: Fragment) -> list[Fragment]:
    bars = [match.start() for match in re.finditer(r"(?<!\\)\|", row.text)]
    return [row.cut(start + 1, end) for start, end in itertools.pairwise(bars)]
