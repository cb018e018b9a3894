"""`rlbox mcp`: a server of the Model Context Protocol whose tools are read-only commands with `--json`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import click
from pydantic import Field

from rlbox import __version__
from rlbox.app import App
from rlbox.cli.options import pass_app_with_shared_options
from rlbox.errors import RlboxError, SpecError
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _
from rlbox.secrets.masks import SecretMasker, mask_tokens_and_random_text
from rlbox.system.command import run_command
from rlbox.values import Command

_PROGRAM = "import sys; sys.path[:] = filter(None, sys.path); from rlbox.cli import main; sys.exit(main())"
"""Not `-m rlbox`, which would import a `types.py` or `logging.py` of the project folder."""

OptionalTargetName = Annotated[str, Field(description="Name of a target; empty for none.")]
Json = dict[str, Any]


@click.command("mcp")
@pass_app_with_shared_options
def serve_mcp_over_stdio(app: App) -> None:
    """Serve the Model Context Protocol over standard input and output, until the client closes it.

    The tools are the read-only commands plan, stack, lint, diagnose, fixes and doctor, with the JSON that they print
    with --json. A client starts this command itself; paths are relative to the project folder and inside it.

    \b
    Examples:
      rlbox mcp
    """
    try:
        from mcp.server.mcpserver import MCPServer
        from mcp_types import ToolAnnotations
    except ImportError as error:
        raise SpecError(
            _("rlbox mcp needs the MCP SDK, which is not installed"),
            where=str(error.name),
            next_step="pip install 'rlbox[mcp]'",
        ) from error
    server: MCPServer[None] = MCPServer("rlbox", version=__version__, log_level="WARNING")
    tools = ReadOnlyTools(app.project.folder)
    for tool in (tools.plan, tools.stack, tools.lint, tools.diagnose, tools.fixes, tools.doctor):
        server.tool(annotations=ToolAnnotations(read_only_hint=True))(tool)
    server.run("stdio")


class _MaskerForStrangers(SecretMasker):
    """Lines of logs go to a model, as those of `rlbox diagnose --ask` do."""

    def mask_text(self, text: str) -> str:
        return mask_tokens_and_random_text(super().mask_text(text))


class ReadOnlyTools:
    """Names, docstrings and types of the methods are what a client sees."""

    def __init__(self, project_folder: Path) -> None:
        self._folder = project_folder

    def plan(
        self,
        job: Annotated[str, Field(description="Name of a job, such as `smoke`.")],
        target: OptionalTargetName = "",
        profiles: Annotated[tuple[str, ...], Field(description="Profiles of the job; later ones win.")] = (),
        settings: Annotated[tuple[str, ...], Field(description="Parameters of the job, each as NAME=VALUE.")] = (),
        machine: Annotated[str, Field(description="Another machine: 4x24 is four GPUs of 24 GB.")] = "",
    ) -> Json:
        """Show the resources that a job needs, its hours and cost, and whether the machine has them."""
        named = [f"--target={target}"] * bool(target) + [f"--machine={machine}"] * bool(machine)
        options = [*named, *(f"--profile={one}" for one in profiles), *(f"--set={one}" for one in settings)]
        return self._run("plan", options, [job])

    def stack(
        self,
        target: Annotated[str, Field(description="Name of a target, such as `local`.")],
        solve: Annotated[bool, Field(description="Ignore the lock, and return a set of versions that fits.")] = False,
    ) -> Json:
        """Check a target's versions against compatibility rules: GPU, driver, CUDA, torch, engines, kernels."""
        return self._run("stack", ["--solve"] * solve, [target])

    def lint(
        self,
        files: Annotated[tuple[str, ...], Field(description="Scripts or folders; empty: the project's specs.")] = (),
        target: OptionalTargetName = "",
    ) -> Json:
        """Find outdated or wrong variables, flags, ports and commands in scripts, specs and notes."""
        return self._run("lint", [f"--target={target}"] * bool(target), map(self._require_path_in_project, files))

    def diagnose(
        self,
        logs: Annotated[
            tuple[str, ...], Field(description="Log files, folders of logs, or names of runs; empty: the last run.")
        ] = (),
        target: OptionalTargetName = "",
    ) -> Json:
        """Find the first failure in the logs of a run: its cause, its rank and the next step."""
        options, arguments = [f"--target={target}"] * bool(target), map(self._require_path_in_project, logs)
        return dict(_MaskerForStrangers(os.environ).mask_json(self._run("diagnose", options, arguments)))

    def fixes(
        self,
        action: Annotated[
            Literal["ls", "show", "explain", "find"],
            Field(description="List all, show one, explain which fixes a target gets, or find the fix of a log line."),
        ] = "ls",
        name: Annotated[str, Field(description="Fix to show, target to explain, or line or words to find.")] = "",
    ) -> Json:
        """Look up the catalog of environment fixes."""
        return self._run("fixes", [], [action, *[name] * bool(name)])

    def doctor(self, target: OptionalTargetName = "") -> Json:
        """Find problems of this machine, and of a target's image. Takes seconds, at times a minute."""
        return self._run("doctor", [], [target] * bool(target))

    def _require_path_in_project(self, name: str) -> str:
        if (self._folder / name).resolve().is_relative_to(self._folder):
            return name
        what, step = f"{name} is outside the project folder", "rlbox mcp --project DIR, with a folder that contains it"
        raise _create_tool_error({"what": what, "where": str(self._folder), "next": step})

    def _run(self, command: str, options: Iterable[str], arguments: Iterable[str]) -> Json:
        """Return the JSON of a command.

        Arguments stand behind `--`, and options are one word with their value, so that no value can become an option.
        """
        words = [command, "--json", f"--project={self._folder}", *options, "--", *arguments]
        outcome = run_command(Command(argv=(sys.executable, "-c", _PROGRAM, *words), cwd=str(self._folder)))
        try:
            result: Json = parse_untrusted_json(outcome.stdout)
        except ValueError:  # a bug of rlbox, or a signal
            what = f"rlbox {command} ended with exit code {outcome.exit_code}: {outcome.stderr}"
            result = {"error": {"what": what, "where": "", "next": ""}}
        if "error" in result:
            raise _create_tool_error(result["error"])
        return result


def _create_tool_error(error: dict[str, str]) -> Exception:
    from mcp.server.mcpserver.exceptions import ToolError

    return ToolError(str(RlboxError(error["what"], where=error["where"], next_step=error["next"])))
