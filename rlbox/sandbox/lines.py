"""The lines between a keeper and its programs: input, outputs, and the word of the checker, which alone holds it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_PART = 1 << 16
_WORD = 1 << 16


@dataclass
class ProgramLines:
    """What a program gets as its descriptors, and what the keeper reads of it.

    A program gets input, output and error output. With a check the first program is the checker: it also gets the line
    to the second one (3), the line for its word (4) and what it has to check (5). The second one gets 3 alone.
    """

    nonce: str
    outputs: dict[int, bytearray] = field(default_factory=dict)
    word: int = -1
    full: bool = False
    _said: bytearray = field(default_factory=bytearray)
    _given: list[tuple[int, ...]] = field(default_factory=list)
    _order: list[int] = field(default_factory=list)

    @classmethod
    @contextlib.contextmanager
    def drawn(cls, stdin: str, check: Mapping[str, Any] | None) -> Iterator[ProgramLines]:
        """Yield the lines of one program, or of a checker and the program it checks; all are closed at the end."""
        lines = cls(nonce=os.urandom(16).hex())
        if check is None:
            lines._add(readable(stdin.encode("utf-8", "surrogatepass")))
        else:
            ours, theirs = (end.detach() for end in socket.socketpair())
            lines.word, word = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(lines.word, False)
            given = json.dumps({**check, "nonce": lines.nonce}).encode()
            lines._add(readable(b""), ours, word, readable(given))
            lines._add(readable(b""), theirs)
        try:
            yield lines
        finally:
            lines.close_given()
            for fd in (*lines.outputs, lines.word):
                if fd >= 0:
                    os.close(fd)

    def _add(self, stdin: int, *more: int) -> None:
        pairs = [os.pipe2(os.O_CLOEXEC) for _ in range(2)]
        for ours, _ in pairs:
            os.set_blocking(ours, False)
            self.outputs[ours] = bytearray()
            self._order.append(ours)
        self._given.append((stdin, *(theirs for _, theirs in pairs), *more))

    def of_program(self, number: int) -> tuple[int, ...]:
        """Return what a program gets, as 0, 1, 2 and so on."""
        return self._given[number]

    def close_given(self) -> None:
        """Close what the programs have now."""
        for fds in self._given:
            for fd in fds:
                os.close(fd)
        self._given.clear()

    def take(self, fd: int, limit: int) -> bool:
        """Read what has come, and keep `limit` bytes of it; return False when the line is closed."""
        kept = self._said if fd == self.word else self.outputs[fd]
        while True:
            try:
                part = os.read(fd, _PART)
            except BlockingIOError:
                return True
            if not part:
                return False
            kept += part
            if len(kept) > (limit := _WORD if fd == self.word else limit):
                del kept[limit:]
                self.full = True
                return True

    def texts(self, number: int) -> dict[str, str]:
        """Return what a program printed."""
        pair = self._order[2 * number : 2 * number + 2]
        return {
            name: self.outputs[fd].decode("utf-8", "replace")
            for name, fd in zip(("stdout", "stderr"), pair, strict=True)
        }

    def word_text(self) -> str:
        """Return the checker's word behind the number drawn for it, or nothing."""
        if self.word >= 0:
            self.take(self.word, _WORD)
        number, _, word = self._said.decode("utf-8", "replace").partition(" ")
        return word if number == self.nonce else ""


def readable(content: bytes) -> int:
    """Return a descriptor from which `content` can be read and nothing can be written."""
    file = os.memfd_create("input")
    try:
        with open(file, "wb", closefd=False) as stream:
            stream.write(content)
        return os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(file)
