"""Every command line of rlbox's own that it advises, in its messages, shipped files and pages: its verb knows it."""

from __future__ import annotations

import ast
import itertools
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import pytest
from fakes import CHECKOUT
from following import ADVISED

from rlbox.cli.help import DefaultLsGroup
from rlbox.cli.root import root

_CODE = re.compile(r"```console\n(.*?)```", re.DOTALL)
_DEFINITION = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_END = re.compile(r"[^\x00-\x7f]|\"|\. ")  # letters and marks of another script, a text's end, a sentence's
_PROSE = frozenset({"runs in was restarted {when}"})  # sentences in which `rlbox` is no command


def texts_of(path: Path) -> Iterator[str]:
    """Yield the texts of a module that are no docstrings; X stands for what is filled in."""
    tree = ast.parse(path.read_text("utf-8"))
    nodes = list(ast.walk(tree))
    passed = set(_docstrings(nodes))
    passed |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in passed:
            yield node.value


def _docstrings(nodes: Iterable[ast.AST]) -> Iterator[int]:
    for node in nodes:
        first = node.body[0] if isinstance(node, _DEFINITION) and node.body else None
        if isinstance(first, ast.Expr):
            yield id(first.value)


def verb_texts() -> Iterator[str]:
    """Yield the help of every verb, whose examples people copy."""
    for module in (CHECKOUT / "rlbox/cli").rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef):
                yield ast.get_docstring(node) or ""


_PARAMETER = re.compile(r"\{\w+(?:![rs])?\}")


def advice() -> Iterator[tuple[str, str]]:
    """Yield where a command line of rlbox's stands, and what is behind the word `rlbox`."""
    for path in sorted((CHECKOUT / "rlbox").rglob("*.py")):
        for text in texts_of(path):
            yield from ((path.name, found[1]) for found in ADVISED.finditer(_PARAMETER.sub("X", text)))
    for text in verb_texts():
        yield from (("help", found[1]) for found in ADVISED.finditer(text))
    for folder in ("rlbox", "jobs", "images"):
        for path in sorted((CHECKOUT / folder).rglob("*.toml")):
            yield from ((path.name, found[1]) for found in ADVISED.finditer(path.read_text("utf-8")))
    yield from advice_in_templates()
    for path in (*sorted((CHECKOUT / "docs").rglob("*.md")), *sorted(CHECKOUT.glob("README*.md"))):
        text = path.read_text("utf-8")
        quoted = re.findall(r"`(rlbox [^`\n]+)`", text)
        for line in (*quoted, *(line for block in _CODE.findall(text) for line in block.splitlines())):
            yield from ((path.name, found[1]) for found in ADVISED.finditer(line.partition(" #")[0]))


def advice_in_templates() -> Iterator[tuple[str, str]]:
    """Yield the command lines of templates, up to what no command line holds."""
    files = sorted(path for path in (CHECKOUT / "templates").rglob("*") if path.is_file() and path.suffix != ".pyc")
    for path in files:
        text = path.read_text("utf-8")
        yield from ((path.name, _END.split(found[1])[0]) for found in ADVISED.finditer(text))


def wrong_in(typed: str) -> str:
    """Return what of a command line its verb does not know: an option, a choice or a verb below it."""
    try:
        words = shlex.split(typed)
    except ValueError:  # an apostrophe of the sentence around it
        words = typed.split()
    words = list(itertools.takewhile(lambda word: word not in ("&&", "--"), words))
    command: click.Command = root
    context = click.Context(root)
    while isinstance(command, click.Group) and words and (below := command.get_command(context, words[0])):
        command, words = below, words[1:]
    if isinstance(command, DefaultLsGroup):
        command = command.commands["ls"]
    first = next((param for param in command.params if isinstance(param, click.Argument)), None)
    if isinstance(command, click.Group) and not command.invoke_without_command and words:
        return f"no verb {words[0]}"
    if first and words and isinstance(first.type, click.Choice) and words[0].islower() and words[0][0] != "-":
        return "" if words[0] in first.type.choices else f"{words[0]} is not one of {', '.join(first.type.choices)}"
    known = {"-h", "--help", *(name for param in command.params for name in (*param.opts, *param.secondary_opts))}
    asked = [word.partition("=")[0] for word in words if word.startswith("-")]
    return next((f"no option {word}" for word in asked if _is_strange(word, known)), "")


def _is_strange(word: str, known: set[str]) -> bool:
    """Whether a word that looks like an option is none of them; short flags may stand together."""
    if word.startswith("--"):
        return word.rstrip(".X") not in known  # the end of a sentence, or what is filled in right behind it
    return bool(re.fullmatch(r"-[a-z]+", word)) and not all(f"-{letter}" in known for letter in word[1:])


def test_what_is_advised_can_be_typed() -> None:
    found = list(advice())
    assert len(found) > 300
    assert [(where, typed, why) for where, typed in found if typed not in _PROSE and (why := wrong_in(typed))] == []


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("build X --place here", "no option --place"),
        ("ckpt tidy", "tidy is not one of ls, check"),
        ("vast rent X", "no verb rent"),
        ("logs -fq X", ""),
        ("run X --resumed Y", "no option --resumed"),
        ("lock X && rlbox build X", ""),
    ],
)
def test_what_cannot_is_noticed(typed: str, why: str) -> None:
    assert wrong_in(typed) == why
