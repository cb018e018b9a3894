"""Read a command as the pinned program would: an argparse parser made from the list of its options.

A line of a list is an option, then the type of its values with their number as argparse has it (`float2`, `str+`) and,
behind `=`, the only values; a switch stands alone. The first lines say how the list was made.
"""

from __future__ import annotations

import argparse
import lzma
import re
from pathlib import Path
from typing import Any

TYPES = {"int": int, "float": float, "str": str}
_LINE = re.compile(r"(--\S+)(?: (int|float|str)(\d+|[*+?])?(?:=(\S+))?)?")


class Refused(Exception):
    """The program would not take the command."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise Refused(message)


def parser_of(path: Path) -> argparse.ArgumentParser:
    """Return the parser of a list, which may be compressed; options may not be abbreviated."""
    text = (lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()).decode()
    parser = _Parser(allow_abbrev=False, add_help=False)
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        assert match, line
        option, kind, number, choices = match.groups()
        if kind is None:
            parser.add_argument(option, action="store_true")
            continue
        nargs = int(number) if number and number.isdigit() else number
        among = [TYPES[kind](choice) for choice in choices.split("|")] if choices else None
        parser.add_argument(option, type=TYPES[kind], nargs=nargs, choices=among)
    return parser


def read(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    """Return a command's options; `Refused` when one is unknown, has a wrong value, or stands twice."""
    names = [word.partition("=")[0] for word in words if word.startswith("--")]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise Refused(f"given twice: {', '.join(twice)}")
    return parser.parse_args(words)
