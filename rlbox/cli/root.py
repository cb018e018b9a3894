"""The root group: which verbs there are, and where each is."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem

from rlbox import __version__
from rlbox.cli.failure import answer_failures
from rlbox.cli.help import TranslatedContext, choose_language
from rlbox.cli.verbs import COMPLETION, OTHER_WORDS, SECTIONS, TITLES, module_of
from rlbox.cli.verbs import VERBS as VERBS
from rlbox.i18n import LANGUAGES, _

HELP = """
Containers, runs and causes for RL post-training: one spec per machine, every fix baked in.

\b
Examples:
  rlbox build local          build the image of target `local`
  rlbox run smoke            three gated stages: train, roll out, RL loop
  rlbox shell local          look around in the image
"""


class LazyGroup(click.Group):
    """Imports a verb's module when the verb is used, so that `--help` costs no more than click."""

    context_class = TranslatedContext

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in alphabetical order."""
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the verb's command; each module has one named `verb`."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(module_of(cmd_name)).verb
        command.context_class = TranslatedContext
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, with a suggestion for a mistyped verb."""
        if args[0] not in VERBS and not args[0].startswith("-") and not ctx.resilient_parsing:
            ctx.fail(_("unknown verb {verb!r}{hint}").format(verb=args[0], hint=_hint(args[0])))
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer the verbs without importing them, and the root's own options."""
        verbs = [CompletionItem(verb, help=VERBS[verb]) for verb in sorted(VERBS) if verb.startswith(incomplete)]
        return verbs + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs by what they are for, without importing them."""
        width = max(map(len, VERBS))
        for folder, title in TITLES.items():
            with formatter.section(title):
                formatter.write_dl([(f"{verb:<{width}}", text) for verb, text in sorted(SECTIONS[folder].items())])


def _hint(word: str) -> str:
    import difflib

    if word in OTHER_WORDS:
        return _(": here it is `rlbox {verb}`").format(verb=OTHER_WORDS[word])
    near = difflib.get_close_matches(word, VERBS, n=1)
    return _(" (did you mean {verb!r}?)").format(verb=near[0]) if near else ""


@click.group(
    cls=LazyGroup,
    help=HELP,
    subcommand_metavar="VERB [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--lang", type=click.Choice(LANGUAGES), expose_value=False, help="Language of help, errors and findings.")
@click.version_option(__version__, message="rlbox %(version)s")
def root() -> None:
    """Hold the options that go before a verb; the verbs do the work."""


def run_root(words: Sequence[str]) -> int:
    """Run a command line and return its exit code; every failure becomes text on the way."""
    choose_language(words)
    if words and words[0] == "help":  # as of other tools: `help`, `help run`
        words = [*words[1:2], "--help"]
    return answer_failures(words, lambda: _run_click(words))


def _run_click(words: Sequence[str]) -> object:
    """As `root.main`, which would end the process where any pipe is broken."""
    if os.environ.get(COMPLETION):
        return root.main(args=list(words), prog_name="rlbox", standalone_mode=False)
    try:
        with root.make_context("rlbox", list(words) or ["--help"], obj=tuple(words)) as ctx:
            return root.invoke(ctx)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
