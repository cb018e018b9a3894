"""The language of a command line."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

import click

from rlbox.messages.language import language_of, teller


def spoken(words: Sequence[str]) -> str:
    """Return the language that a command line, the environment or the locale asks for; English where letters lack."""
    language = language_of(words, os.environ)
    try:
        "，的".encode(sys.stderr.encoding)
    except (UnicodeEncodeError, LookupError):
        return "en"
    return language


_SENTENCE = re.compile(r"(?<=。)|(?<=\.) ")


class ToldGroup(click.Group):
    """Lists its verbs with the whole first sentence of each, which click would cut."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """As click's."""
        cmd.context_class = ToldContext
        super().add_command(cmd, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click's."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._short(ctx, name)) for name in self.list_commands(ctx)])

    def _short(self, ctx: click.Context, name: str) -> str:
        first = " ".join((self.commands[name].help or "").partition("\n\n")[0].split())
        return _SENTENCE.split(teller(spoken(ctx.find_root().obj or ()))(first))[0].rstrip("。.")


class ToldContext(click.Context):
    """Formats help in the language of the command line."""

    def make_formatter(self) -> click.HelpFormatter:
        """Return what lays out the help of a verb."""
        language = spoken(self.find_root().obj or ())
        if language == "en":
            return super().make_formatter()
        from rlbox.cli.told_help import ToldFormatter

        return ToldFormatter(teller(language), width=self.terminal_width, max_width=self.max_content_width)
