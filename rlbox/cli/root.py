"""The root group: which commands there are, and where each is."""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem

from rlbox import __version__
from rlbox.cli.failure import run_and_report_failures
from rlbox.cli.help import TranslatedContext, detect_and_set_language
from rlbox.i18n import LANGUAGES, _

HELP = """
Reproducible images and checked training runs for LLM RL post-training.

\b
Examples:
  rlbox build local          build the image of target `local`
  rlbox run smoke            three gated stages: train, roll out, RL loop
  rlbox shell local          open a shell in the image
"""


COMPLETION = "_RLBOX_COMPLETE"
"""A shell that completes calls without arguments, and asks by this variable."""

SECTIONS = {
    "Start": {"init": "create your own target and job"},
    "Images: lock, build, inspect, publish": {
        "build": "build a target's image, unless nothing changed",
        "compile": "compile a target's wheels that no index has, once",
        "egress": "list the hosts that a target contacts, with the reason",
        "export": "print a target as compose.yaml or as an Apptainer definition",
        "fetch": "download the files of a target's lock into the store",
        "images": "list the images that rlbox built in this engine, or remove some",
        "load": "load an image from an archive of `rlbox save`",
        "lock": "pin every package of a target with its sha256",
        "mirrors": "list the mirrors of a sources profile, or measure them",
        "push": "push a target's image to a registry",
        "render": "write a target's Dockerfile",
        "save": "write a target's image to an archive",
        "shell": "open a shell in a target's image, or run one command",
        "show": "print a target or job, or explain an image",
        "store": "list or verify the store of fetched files",
        "targets": "list targets and jobs",
    },
    "Runs: start, follow, diagnose": {
        "attach": "watch a run in progress, from any shell",
        "bundle": "write an archive with the logs and records of a run",
        "diagnose": "find the first failure in logs, its cause and the next step",
        "logs": "print or follow the logs of a run",
        "plan": "show the resources a job needs, and whether a machine has them",
        "report": "write a run as one HTML file",
        "run": "run a job stage by stage, stopping at the first fatal line",
        "runs": "list the runs on the data disk, or compare two",
        "stop": "stop a run in progress, from any shell",
        "watch": "show a run as a live page in a browser",
    },
    "Evaluation, with confidence intervals": {"eval": "evaluate checkpoints, compare their scores, choose the best"},
    "Machines: inspect them, and install a target": {
        "apply": "install a target's lock on a machine without Docker",
        "ckpt": "list checkpoints, or check that they are complete",
        "components": "test the parts of a stack: torch, CUDA, Ray, each framework",
        "data": "check training data, or create a tiny dataset",
        "doctor": "find problems of this machine, a container, or a target's image",
        "engine": "start a Docker engine if none runs, or show its state",
        "gpus": "show the processes on each GPU, and whether a split fits",
        "prune": "delete unused images, downloads and caches",
        "warm": "read files into the page cache",
    },
    "Clusters of several machines": {"cluster": "start a private Ray cluster on several machines, or stop it"},
    "Rented machines (vast.ai)": {
        "onstart": "print the start script of a target for its platform",
        "vast": "rent a machine on vast.ai, run a job, download the results, stop it",
    },
    "Rules: fixes, outdated settings, compatible versions": {
        "fixes": "list the fixes, show one, or explain the fixes of a target",
        "lint": "find outdated settings in scripts, notes, targets and jobs",
        "stack": "check that a target's versions fit together, or find a set that does",
    },
    "Other": {
        "completion": "print the completion script of a shell",
        "mcp": "serve read-only commands to clients of the Model Context Protocol",
    },
}
"""Title in `--help` to its commands, and what each does."""

COMMANDS = {command: text for commands in SECTIONS.values() for command, text in commands.items()}

_MODULE_COMMANDS = {
    "build": ("build", "compile"),
    "data": ("data", "ckpt", "warm"),
    "doctor": ("doctor", "components", "engine", "gpus"),
    "images": ("images", "export", "load", "push", "save", "shell"),
    "lint": ("lint", "stack"),
    "lock": ("lock", "egress", "fetch", "mirrors"),
    "options": ("completion",),
    "report": ("report", "bundle", "watch"),
    "run": ("run", "attach", "plan", "stop"),
    "store": ("store", "prune"),
    "targets": ("targets", "render", "show"),
}
"""Commands of the modules of `rlbox.cli` that have several; any other is in the module of its name."""


class _LazyGroup(click.Group):
    """Imports a command's module when the command is used, so that `--help` costs no more than click."""

    context_class = TranslatedContext

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command, which its module defines by this name."""
        if cmd_name not in COMMANDS:
            return None
        module = next((name for name, commands in _MODULE_COMMANDS.items() if cmd_name in commands), cmd_name)
        objects = vars(importlib.import_module(f"rlbox.cli.{module}")).values()
        command = next(one for one in objects if isinstance(one, click.Command) and one.name == cmd_name)
        command.context_class = TranslatedContext
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, with a suggestion for a mistyped command."""
        if args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = _(" (did you mean {command!r}?)").format(command=near[0]) if near else ""
            ctx.fail(_("unknown command {command!r}{hint}").format(command=args[0], hint=hint))
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer the commands without importing them, and the root's own options."""
        names = [name for name in sorted(COMMANDS) if name.startswith(incomplete)]
        return [CompletionItem(name, help=COMMANDS[name]) for name in names] + click.Command.shell_complete(
            self, ctx, incomplete
        )

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{command:<{width}}", text) for command, text in sorted(commands.items())])


@click.group(
    cls=_LazyGroup,
    help=HELP,
    subcommand_metavar="COMMAND [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--lang", type=click.Choice(LANGUAGES), expose_value=False, help="Language of help, errors and findings.")
@click.version_option(__version__, message="rlbox %(version)s")
def root() -> None:
    """Hold the options that go before a command; the commands do the work."""


def run_root(words: Sequence[str]) -> int:
    detect_and_set_language(words)
    if words and words[0] == "help":  # as of other tools: `help`, `help run`
        words = [*words[1:2], "--help"]
    return run_and_report_failures(words, lambda: _run_click(words))


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
