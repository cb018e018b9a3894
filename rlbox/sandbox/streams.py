"""The descriptors of a plan's programs: input, outputs, and the pipe on which the checker alone gives its verdict."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from typing import Any

IsOpen = bool

_CHUNK = 1 << 16


class ProgramStreams:
    """What the programs get as their descriptors (`child_fds`, by program), and what is read of them (`reader_fds`).

    A program gets input, output and error output. With a check the first program is the checker: it also gets the
    socket to the program under test (3), the pipe for its verdict (4) and what it has to check (5). The program under
    test gets 3 alone.
    """

    def __init__(self, stdin: str, check: Mapping[str, Any] | None, max_output: int) -> None:
        self._max_output = max_output
        self._received: dict[int, bytearray] = {}
        self._nonce = os.urandom(16).hex()
        self.child_fds: list[list[int]] = []
        self.is_full = False
        if check is None:
            self._add_program(stdin)
        else:
            checker, program = (end.detach() for end in socket.socketpair())
            tests = _open_content(json.dumps({**check, "nonce": self._nonce}).encode())
            self._add_program("", checker, self._open_pipe(), tests)
            self._add_program("", program)

    def _add_program(self, stdin: str, *more: int) -> None:
        content = _open_content(stdin.encode("utf-8", "surrogatepass"))
        self.child_fds.append([content, self._open_pipe(), self._open_pipe(), *more])

    def _open_pipe(self) -> int:
        reader, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reader, False)
        self._received[reader] = bytearray()
        return writer

    @property
    def reader_fds(self) -> list[int]:
        """With a check: the verdict, then output and error output of each program."""
        return list(self._received)

    def __enter__(self) -> ProgramStreams:
        return self

    def __exit__(self, *error: object) -> None:
        self.close_child_fds()
        for fd in self.reader_fds:
            os.close(fd)

    def close_child_fds(self) -> None:
        """Close what the programs have by now."""
        for fds in self.child_fds:
            while fds:
                os.close(fds.pop())

    def read_available(self, fd: int) -> IsOpen:
        """Read what has come, and keep as much as the limit allows; return False when the stream has ended."""
        content = self._received[fd]
        try:
            while chunk := os.read(fd, _CHUNK):
                content += chunk
                if len(content) > self._max_output:
                    del content[self._max_output :]
                    self.is_full = True
                    return True
        except BlockingIOError:
            return True
        return False

    def outputs(self, program: int) -> tuple[str, str]:
        first = 2 * program + (len(self.child_fds) > 1)
        stdout, stderr = (self._received[fd].decode("utf-8", "replace") for fd in self.reader_fds[first : first + 2])
        return stdout, stderr

    def read_checker_verdict(self) -> str:
        """Return the checker's line behind the number that was drawn for it, or nothing."""
        if len(self.child_fds) == 1:
            return ""
        line = self._received[self.reader_fds[0]].decode("utf-8", "replace")
        nonce, _, verdict = line.partition(" ")
        return verdict if nonce == self._nonce else ""


def _open_content(content: bytes) -> int:
    """Return a descriptor from which `content` can be read, and that cannot be written to."""
    file = os.memfd_create("input")
    with open(file, "wb") as stream:
        stream.write(content)
        stream.flush()
        return os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
