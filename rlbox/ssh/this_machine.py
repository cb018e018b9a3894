"""This machine, asked as another one is over ssh: for what lies on a data disk that it has itself."""

from __future__ import annotations

from rlbox.errors import NodeError
from rlbox.machine.act.command import PIPE, Started, run_command, start_command
from rlbox.values import Command

_ASK_S = 120.0


class ThisMachine:
    """A way to the files of this machine."""

    name = "this machine"

    def need(self, command: str, what: str, stdin: str = "", *, timeout_s: float = _ASK_S) -> str:
        """Run a shell command and return what it printed; `NodeError` when it fails, with its last words."""
        outcome = run_command(Command(argv=("sh", "-c", command), timeout_s=timeout_s), stdin)
        if outcome.ok:
            return outcome.stdout
        said = (outcome.stderr or outcome.stdout).strip().splitlines()
        raise NodeError(f"{what}: {said[-1] if said else f'exit code {outcome.exit_code}'}", where=self.name)

    def start(self, command: str, *, stdin: int, stdout: int) -> Started:
        """Start a shell command whose streams are the caller's to read and write."""
        return start_command(Command(argv=("sh", "-c", command)), stdin=stdin, stdout=stdout, stderr=PIPE)
