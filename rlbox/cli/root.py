"""The root group and the one place where errors become text and exit codes."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

import click

from rlbox import __version__
from rlbox.errors import RlboxError

VERBS = {
    "build": "build a target's image, unless nothing changed",
    "completion": "print the completion script of a shell",
    "lock": "pin every package of a target with its sha256",
    "logs": "print the logs of a run",
    "render": "write a target's Dockerfile",
    "run": "run a job stage by stage, stopping at the first fatal line",
    "runs": "list the runs on the data disk",
    "shell": "open a shell in a target's image, or run one command",
    "show": "print a target or job, completed and checked",
    "targets": "list targets and jobs",
}

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

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in alphabetical order."""
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the verb's command; each module has one named `verb`."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"rlbox.cli.{cmd_name}").verb
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, with a suggestion for a mistyped verb."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], VERBS, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            ctx.fail(f"unknown verb {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing them."""
        with formatter.section("Verbs"):
            formatter.write_dl(sorted(VERBS.items()))


@click.group(
    cls=LazyGroup,
    help=HELP,
    subcommand_metavar="VERB [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="rlbox %(version)s")
def root() -> None:
    """Carry the options that stand before a verb; the verbs do the work."""


def run_root(words: Sequence[str]) -> int:
    """Run a command line; every failure ends here as what / where / next and an exit code."""
    try:
        code = root.main(args=list(words), prog_name="rlbox", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except RlboxError as error:
        return _report(error, words)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        sys.stderr.write("rlbox: interrupted\n")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:  # the one place where a bug is caught
        return _report_bug(error)


def _report(error: RlboxError, words: Sequence[str]) -> int:
    own = words[: words.index("--")] if "--" in words else words  # behind it stand a command's own words
    if "--json" in own:
        import json

        facts = {"what": error.what, "where": error.where, "next": error.next_step, "exit_code": error.exit_code}
        sys.stdout.write(json.dumps({"schema": 1, "error": facts}, indent=2, ensure_ascii=False) + "\n")
    sys.stderr.write(f"rlbox: error: {error}\n")
    return error.exit_code


def _report_bug(error: Exception) -> int:
    import traceback

    from rlbox.act.folders import cache_folder, write_atomic

    path = cache_folder("logs", f"bug-{os.getpid()}.log")
    text = "".join(traceback.format_exception(error))
    try:
        write_atomic(path, f"rlbox {__version__}\n{text}", mode=0o600)
    except OSError:
        sys.stderr.write(text)
    sys.stderr.write(
        f"rlbox: bug: {type(error).__name__}: {error}\n  where: {path}\n  next:  report it with that file\n"
    )
    return 3
