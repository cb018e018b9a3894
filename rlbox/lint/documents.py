"""Find what does not work, or no longer works, in scripts, notes, specs and jobs, by the table of `drift.toml`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from rlbox.foreign import toml_table
from rlbox.lint.drift import DriftRule
from rlbox.lint.hits import Where
from rlbox.lint.read.document import Document
from rlbox.lint.read.notes import READERS, read_notes
from rlbox.lint.read.reader import Reader
from rlbox.lint.read.text import SEVERITIES, Defect, Lines, Piece, ignored, join
from rlbox.lint.rules import find

_SUFFIXES = {
    **dict.fromkeys(("sh", "bash", "zsh", "ksh", "slurm", "sbatch", "pbs", "bashrc", "profile"), "shell"),
    **dict.fromkeys(("md", "markdown", "rst", "txt", "mdx"), "notes"),
    **dict.fromkeys(("yaml", "yml"), "yaml"),
    **dict.fromkeys(("ps1", "psm1"), "powershell"),
    "py": "python",
    "toml": "toml",
    "json": "json",
    "env": "env",
    "mk": "make",
    "dockerfile": "dockerfile",
}


def kind_of(name: str, text: str) -> str:
    """Return the format of a document, by its name, else by its first lines."""
    return kind_by_name(name) or _guess(text[:4000])


def kind_by_name(name: str) -> str:
    """Return the format of a file by its name; empty when that says nothing."""
    base = name.replace("\\", "/").rsplit("/", 1)[-1].lower()
    if hit := re.match(r"(?:gnu)?(makefile)(?![a-z])|(dockerfile|containerfile)(?![a-z])", base):
        return "make" if hit.group(1) else "dockerfile"
    if base.startswith(".env"):
        return "env"
    return _SUFFIXES.get(base.rpartition(".")[2], "") if "." in base else ""


def _guess(text: str) -> str:
    first = text.lstrip().partition("\n")[0]
    if first.startswith("#!"):
        return "python" if "python" in first else "shell"
    if re.search(r"^[ \t>]*```", text, re.MULTILINE) or re.match(r"# .*\n+[^#\n]*[.。]", text):
        return "notes"
    if re.search(r"^FROM \S+", text, re.MULTILINE) and re.search(r"^(RUN|ENV|COPY|CMD|WORKDIR) ", text, re.MULTILINE):
        return "dockerfile"
    if first.startswith(("{", "[ ")):
        return "json"
    if re.match(r"\[{1,2}[\w.-]+\]{1,2}\s*(#.*)?$", first) or re.match(r"[\w.-]+ = [\"'\[{\d]", first):
        return "toml"
    if re.match(r"(import|from) \w+|def \w+\(|class \w+[(:]|\"\"\"", first):
        return "python"
    return "yaml" if re.match(r"(---|[\w-]+:(\s|$))", first) else "shell"


def _read_make(reader: Reader, piece: Piece) -> None:
    recipes = [line.cut(1, len(line.text)) for line in piece.lines() if line.text.startswith("\t")]
    if recipes:
        reader.shell(join(recipes), powershell=False)


_READERS: dict[str, Callable[[Reader, Piece], None]] = {
    **READERS,
    "env": lambda reader, piece: reader.shell(piece, powershell=False),
    "make": _read_make,
    "notes": read_notes,
    "powershell": lambda reader, piece: reader.shell(piece, frozenset({"powershell"})),
    "shell": lambda reader, piece: reader.shell(piece),
}


def read_document(name: str, text: str) -> Document:
    """Return what a text sets, runs and names; the end of a line may be either system's."""
    crlf = "\r\n" in text
    text = text.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")
    document = Document(name=name, kind=kind_of(name, text), text=text, lines=Lines.of(text))
    if crlf and document.kind == "shell":
        document.flags.append(("crlf", 0))
    if kind_by_name(name) == "toml" and (broken := _broken_at(document)) is not None:
        document.flags.append(("broken", broken))
    _READERS[document.kind](Reader(document), Piece.whole(text))
    return document


def _broken_at(document: Document) -> int | None:
    """Return where a TOML file ceases to be one; None for a whole one."""
    try:
        toml_table(document.text)
    except ValueError as error:
        place = re.search(r"at line (\d+), column", str(error))
        line = int(place[1]) if place else document.text.rstrip().count("\n") + 1
        return document.lines.starts[line - 1]
    return None


def lint_text(
    name: str,
    text: str,
    rules: Iterable[DriftRule],
    versions: Mapping[str, str] | None = None,
    where: Where | None = None,
) -> tuple[Defect, ...]:
    """Return what is wrong in a text, in the order of its lines.

    Parameters
    ----------
    name
        The file's name, which decides how the text is read.
    versions
        Distribution to version, as pinned by a target; what the text itself installs by `==` is known as well.
    where
        What is known of the machine.
    """
    document = read_document(name, text)
    known = {**document.pins, **(versions or {})}
    found: dict[tuple[str, int, int], Defect] = {}
    for rule in rules:
        for finding, begin in find(rule, document, known, where or Where()):
            off = ignored(document.lines, finding.line) | ignored(document.lines, begin)
            if not {rule.id, "all"} & off:
                found.setdefault((rule.id, finding.line, finding.column), finding)
    order = {severity: number for number, severity in enumerate(SEVERITIES)}
    return tuple(sorted(found.values(), key=lambda one: (one.line, one.column, order[one.severity], one.rule)))
