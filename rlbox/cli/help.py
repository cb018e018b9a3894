"""The language of a command line, and help in it."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

import click

from rlbox.i18n import _, detect_language, get_language, ngettext, read_translations_and_set_language, translate

_CLICK = (click.core, click.decorators, click.exceptions, click.formatting, click.parser, click.types)
_SENTENCE = re.compile(r"(?<=。)|(?<=\.) ")
_PIECE = re.compile(r"[!-\u10ff]+|\s+|.[、。，；：？！）」』”]*", re.DOTALL)
"""What is not broken: a word of letters one cell wide, a gap, another letter with signs that begin no line."""
_MIN_WIDTH = 20
_NAMES_OF_CLICK = {
    "integer range": _("an integer"),
    "float range": _("a number"),
    "integer": _("an integer"),
    "float": _("a number"),
    "File '": _("file") + " '",
    "Directory '": _("directory") + " '",
}
"""What click puts into its messages in English: names of types."""


def _set_gettext_of_click(mark: Callable[[str], str], mark_plural: Callable[[str, str, int], str]) -> None:
    for module in _CLICK:
        vars(module).update(_=mark, ngettext=mark_plural)


_set_gettext_of_click(_, ngettext)  # the standard one translates at once, and by the locale alone


def translate_usage_message(error: click.UsageError) -> str:
    vars(error)["message"] = translate(error.message)
    _set_gettext_of_click(lambda text: translate(_(text)), lambda *texts: translate(ngettext(*texts)))
    try:
        text = " ".join(error.format_message().split())
    finally:
        _set_gettext_of_click(_, ngettext)
    if get_language() == "en":
        return text
    for english, word in _NAMES_OF_CLICK.items():
        text = text.replace(english, translate(word))
    text = re.sub(r"(?<=')\.(?: |$)", "。", text)  # click ends a sentence behind a quoted name
    return text.replace("。 ", "。")


def detect_and_set_language(argv: Sequence[str]) -> None:
    """Set the language that a command line, the environment or the locale asks for; English where letters lack."""
    language = detect_language(argv, os.environ)
    try:
        "，的".encode(sys.stderr.encoding)
    except (UnicodeEncodeError, LookupError):
        language = "en"
    read_translations_and_set_language(language)


class TranslatedContext(click.Context):
    def make_formatter(self) -> click.HelpFormatter:
        if get_language() == "en":
            return super().make_formatter()
        return _TranslatedFormatter(width=self.terminal_width, max_width=self.max_content_width)


class TranslatedGroup(click.Group):
    """Lists its commands with the whole first sentence of each, which click would cut."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        cmd.context_class = TranslatedContext
        super().add_command(cmd, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _summary(self.commands[name])) for name in self.list_commands(ctx)])


class DefaultLsGroup(TranslatedGroup):
    """Runs its command `ls` where none is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        names_none = not args or (args[0].startswith("-") and args[0] not in ("-h", "--help"))
        return super().parse_args(ctx, ["ls", *args] if names_none and not ctx.resilient_parsing else args)


def _summary(command: click.Command) -> str:
    paragraph = next(unwrap_help_paragraphs_unless_marked(command.help or ""), "")
    return _SENTENCE.split(_translated(paragraph))[0].rstrip("。.")


class _TranslatedFormatter(click.HelpFormatter):
    """Translates each paragraph before it is broken into lines, which count what letters are wide."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, args, prefix=f"{_translated(prefix or 'Usage:')} ")

    def write_heading(self, heading: str) -> None:
        self.write(f"{'':>{self.current_indent}}{_translated(heading)}：\n")

    def write_text(self, text: str) -> None:
        for number, paragraph in enumerate(unwrap_help_paragraphs_unless_marked(text)):
            self.write("\n" if number else "")
            text = _translated(paragraph)
            lines = text.split("\n") if "\n" in text else self._wrap(text, self.current_indent)
            self.write("".join(f"{'':>{self.current_indent}}{line}\n" for line in lines))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """As click's, of two columns."""
        rows = list(rows)
        first = min(max((len(name) for name, __ in rows), default=0), col_max) + col_spacing
        for name, text in rows:
            help_text, bracket, extra = text.partition("  [")
            for word in (_("default"), _("required")):
                extra = extra.replace(word, translate(word))
            lines = self._wrap(_translated(help_text) + bracket + extra, self.current_indent + first)
            if lines and len(name) <= first - col_spacing:
                lines[0] = f"{name:<{first}}{lines[0]}"
            else:
                lines.insert(0, name)
            lines[1:] = [f"{'':>{first}}{line}" for line in lines[1:]]
            self.write("".join(f"{'':>{self.current_indent}}{line}".rstrip() + "\n" for line in lines))

    def _wrap(self, text: str, indent: int) -> list[str]:
        return wrap_text_by_cell_width(text, max(self.width - indent, _MIN_WIDTH))


def _translated(text: str) -> str:
    return translate(_(text))


def unwrap_help_paragraphs_unless_marked(text: str) -> Iterator[str]:
    r"""Yield the paragraphs of a help text, each of one line; one below `\b` keeps its lines."""
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        kept = block.startswith("\b\n")
        yield block.removeprefix("\b\n") if kept else " ".join(block.split())


def wrap_text_by_cell_width(text: str, width: int) -> list[str]:
    """Return a paragraph as lines of at most `width` cells, but for a word that is longer."""
    from rich.cells import cell_len

    lines, line = [], ""
    for piece in _PIECE.findall(" ".join(text.split())):
        if cell_len(line + piece.rstrip()) > width and line.strip():
            lines.append(line.rstrip())
            line = piece.lstrip()
        else:
            line += piece
    return [*lines, line.rstrip()] if line.strip() else lines
