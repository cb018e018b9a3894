"""The descriptors of a plan's programs: input, outputs, and the line on which the checker alone gives its verdict."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from typing import Any

_CHUNK = 1 << 16
_MAX_VERDICT = 1 << 16


class ProgramStreams:
    """What the programs get as their descriptors (`fds`, by program), and what is read of them.

    A program gets input, output and error output. With a check the first program is the checker: it also gets the
    socket to the program under test (3), the pipe for its verdict (4) and what it has to check (5). The program under
    test gets 3 alone.
    """

    def __init__(self, stdin: str, check: Mapping[str, Any] | None, max_output: int) -> None:
        self._max_output = max_output
        self._received: dict[int, bytearray] = {}  # by descriptor: two outputs for each program, then the verdict
        self._verdict = -1
        self._nonce = os.urandom(16).hex()
        self.fds: list[tuple[int, ...]] = []
        self.is_full = False
        if check is None:
            self._add_program(_open_content(stdin.encode("utf-8", "surrogatepass")))
            return
        checker, program = (end.detach() for end in socket.socketpair())
        tests = _open_content(json.dumps({**check, "nonce": self._nonce}).encode())
        self._add_program(_open_content(b""), checker, self._open_verdict(), tests)
        self._add_program(_open_content(b""), program)

    def _add_program(self, stdin: int, *more: int) -> None:
        outputs = [self._open_output(), self._open_output()]
        self.fds.append((stdin, *outputs, *more))

    def _open_output(self) -> int:
        reader, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reader, False)
        self._received[reader] = bytearray()
        return writer

    def _open_verdict(self) -> int:
        writer = self._open_output()
        self._verdict = next(reversed(self._received))
        return writer

    @property
    def readers(self) -> list[int]:
        return list(self._received)

    def close_fds(self) -> None:
        """Close what the programs have by now."""
        for fd in (fd for fds in self.fds for fd in fds):
            os.close(fd)
        self.fds.clear()

    def close(self) -> None:
        self.close_fds()
        for fd in self._received:
            os.close(fd)

    def read(self, fd: int) -> bool:
        """Read what has come, and keep as much as the limit allows; return False when the stream has ended."""
        content = self._received[fd]
        limit = _MAX_VERDICT if fd == self._verdict else self._max_output
        while True:
            try:
                chunk = os.read(fd, _CHUNK)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            content += chunk
            if len(content) > limit:
                del content[limit:]
                self.is_full = True
                return True

    def read_rest(self) -> None:
        for fd in self._received:
            self.read(fd)

    def outputs(self, program: int) -> tuple[str, str]:
        """Return the standard output and the standard error of a program."""
        readers = [fd for fd in self._received if fd != self._verdict][2 * program : 2 * program + 2]
        stdout, stderr = (self._received[fd].decode("utf-8", "replace") for fd in readers)
        return stdout, stderr

    def verdict(self) -> str:
        """Return the checker's line behind the number that was drawn for it, or nothing."""
        content = self._received.get(self._verdict, bytearray())
        nonce, _, verdict = content.decode("utf-8", "replace").partition(" ")
        return verdict if nonce == self._nonce else ""


def _open_content(content: bytes) -> int:
    """Return a descriptor from which `content` can be read, and that cannot be written to."""
    file = os.memfd_create("input")
    try:
        with open(file, "wb", closefd=False) as stream:
            stream.write(content)
        return os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(file)
