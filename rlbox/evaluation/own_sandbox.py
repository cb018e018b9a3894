"""A code sandbox of one's own for as long as a block lasts, where no service of a run has started one."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator

from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.system.command import PIPE, ProcessHandle, start_command, wait_for_exit
from rlbox.system.http import NoResponseError
from rlbox.values import Command

_PATIENCE_S = 30.0


@contextlib.contextmanager
def sandbox_here(python: str, cpu_s: float, memory_mb: int) -> Iterator[str]:
    """Yield the address of a sandbox that is started on loopback, and ended behind the block.

    Parameters
    ----------
    python
        Interpreter of the programs; empty: rlbox's own.
    cpu_s, memory_mb
        What a program may take at most, in seconds of a processor and MB; a request may ask for less.

    Raises
    ------
    NoResponseError
        Programs have no wall here, or it did not start; the text says why.
    """
    own = [sys.executable, "-m", "rlbox.sandbox", "serve", "--port", "0", "--python", python or sys.executable]
    with tempfile.TemporaryDirectory(prefix="rlbox-sandbox-") as scratch:
        limits = ["--cpu-s", f"{cpu_s:g}", "--memory-mb", str(memory_mb), "--scratch", scratch]
        process = start_command(Command(argv=(*own, *limits)), stdout=PIPE, dies_with_us=True)
        try:
            strength, listens = _lines(process)
            port = listens.rpartition(b":")[2].strip()
            if not port.isdigit():
                raise NoResponseError(_why(strength), "unreached")
            yield f"http://127.0.0.1:{int(port)}"
        finally:
            process.terminate()
            if wait_for_exit(process, _PATIENCE_S) is None:
                process.kill()
                process.wait()
            if process.stdout:
                process.stdout.close()


def _lines(process: ProcessHandle) -> tuple[bytes, bytes]:
    """Return what the sandbox says first: its strength, and where it listens; empty where it has ended."""
    said = process.stdout
    return (said.readline(), said.readline()) if said else (b"", b"")


def _why(strength: bytes) -> str:
    """Return what the sandbox says that is wrong."""
    try:
        wrong = str(parse_json(strength).get("wrong") or "")
    except (ValueError, AttributeError):
        wrong = ""
    return wrong or _("the code sandbox did not start")
