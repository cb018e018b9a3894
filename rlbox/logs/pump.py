"""Carry what the processes of a stage write, through pipes and out of Ray's driver logs, into the stage's logs.

One thread reads, so that a stage is read whatever the supervisor is busy with: a process that is told to end may have
much to write first. Nothing is lost and nothing piles up in memory: when the reader cannot keep up, the writers wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rlbox.logs.lines import LineBlock, LineSplitter
from rlbox.logs.log_file import MaskedLogFile
from rlbox.secrets.masks import SecretMasker
from rlbox.system.tail import FileFollower

_PIPE_BYTES = 1 << 20
"""What a pipe may hold: all that Linux gives without privileges, so that writers seldom wait."""
_AHEAD_BYTES = 32 << 20
"""How far the logs may be ahead of their reader."""
_OUTSIDER_BYTES = 64 << 20
"""What is still taken at the end from a process that is not of the run, holds a pipe and never stops to write."""

_LOOK_S = 0.04
_SHARE = 40
"""The thread rests this many times as long as the process has worked since it last rested (and `_LOOK_S` at most)."""
_MUCH_BYTES = 1 << 17


@dataclass
class _Source:
    log: MaskedLogFile
    handle: int = -1
    tail: FileFollower | None = None
    ended: bool = False


class MaskingLogPump:
    """The logs of one stage by name, and the thread that fills them.

    `write_error` is the first error in writing one; from then on output is thrown away, so that processes can end.
    """

    def __init__(self, masks: SecretMasker) -> None:
        self.logs: dict[str, MaskedLogFile] = {}
        self.write_error: OSError | None = None
        self._masks = masks
        self._sources: dict[str, _Source] = {}
        self._lock = threading.Lock()
        self._guests = 0
        self._grown = threading.Event()
        self._closing = threading.Event()
        self._free = False
        self._epoll = select.epoll()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    @contextmanager
    def open_pipe(self, name: str, log_path: Path) -> Iterator[int]:
        """Begin the log `name` in the file `log_path`; give the handle that a process started in it may write to.

        Raises OSError: The log cannot be written.
        """
        log = self._open(name, log_path)
        out, into = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(out, False)
        with contextlib.suppress(OSError):  # the user's pipes hold much already: this one stays small
            fcntl.fcntl(out, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._sources[name] = _Source(log, out)
        self._epoll.register(out, select.EPOLLIN)
        try:
            yield into
        finally:
            os.close(into)

    def start_copying_growing_file(self, name: str, source: Path, log_path: Path) -> None:
        self._sources[name] = _Source(self._open(name, log_path), tail=FileFollower(source, follow_links=True))

    def detach_pipe_or_none_if_closed(self, name: str) -> int | None:
        """End a log whose writer goes on; return the end of its pipe, which `attach_pipe` of another pump goes on with.

        It is None when the writer has closed its output.
        """
        with self._lock:
            source = self._sources.pop(name)
            if not source.ended:
                self._epoll.unregister(source.handle)
            self._write(source, b"")
        return None if source.ended else source.handle

    def attach_pipe(self, name: str, log_path: Path, read_handle: int | None) -> None:
        """Begin the log `name` in the file `log_path` with what comes out of a pipe that another pump has released.

        Raises OSError: The log cannot be written.
        """
        self._sources[name] = _Source(self._open(name, log_path), -1 if read_handle is None else read_handle)
        self._sources[name].ended = read_handle is None
        if read_handle is not None:
            self._epoll.register(read_handle, select.EPOLLIN)

    def wait_for_growth(self, timeout_s: float) -> None:
        """Wait until a log has grown or cannot be written; `timeout_s` at most."""
        self._grown.wait(timeout_s)
        self._grown.clear()

    def disable_writer_backpressure(self) -> None:
        """Make no writer wait from now on: the reader is busy, and processes must be able to end."""
        self._free = True

    def copy_everything_written(self) -> None:
        """Bring all that was written before this call into the logs."""
        self._guests += 1
        with self._lock:
            self._guests -= 1
            for name, source in self._sources.items():
                self._take(name, sys.maxsize if source.tail else _PIPE_BYTES)

    def drain_and_close_all_but_logs(self) -> None:
        """Take what is left, wait for nobody who holds a pipe open, and let go of all but the logs."""
        self._closing.set()
        self._thread.join()
        for name, source in self._sources.items():
            self._take(name, _OUTSIDER_BYTES)
            self._write(source, b"")
            self._end(source)
        self._epoll.close()

    def _open(self, name: str, path: Path) -> MaskedLogFile:
        log = self.logs[name] = MaskedLogFile(path, self._masks.create_mask_stream_keeping_url_credentials())
        return log

    def _work(self) -> None:
        worked = time.process_time()
        while not self._closing.is_set():
            ready = {handle for handle, _ in self._epoll.poll(_LOOK_S)}
            while self._guests:
                self._closing.wait(0.001)
            with self._lock:
                count = sum(
                    self._take(name, _PIPE_BYTES)
                    for name, source in tuple(self._sources.items())
                    if source.tail or source.handle in ready
                )
            now = time.process_time()
            if count < _MUCH_BYTES:
                self._closing.wait(min(_LOOK_S, _SHARE * (now - worked)))
            worked = now
            while (
                not self._free
                and not self._closing.is_set()
                and sum(log.unread_bytes for log in tuple(self.logs.values())) > _AHEAD_BYTES
            ):
                self._closing.wait(_LOOK_S / 4)

    def _take(self, name: str, limit: int) -> int:
        """Bring up to `limit` bytes (a little more) of one source into its log; return how many came."""
        source, count = self._sources[name], 0
        while not source.ended and count < limit:
            data = self._read(source)
            if not data:
                break
            count += len(data)
            self._write(source, data)
        if count:
            self._grown.set()
        return count

    def _read(self, source: _Source) -> bytes:
        if source.tail:
            return source.tail.read_next_block_or_empty()
        try:
            data = os.read(source.handle, _PIPE_BYTES)
        except BlockingIOError:
            return b""
        if not data:
            self._end(source)
        return data

    def _write(self, source: _Source, data: bytes) -> None:
        if self.write_error:
            return
        try:
            source.log.mask_and_append(data) if data else source.log.flush_held_back_bytes()
        except OSError as error:
            self.write_error = OSError(error.errno, error.strerror, str(source.log.path))
            self._grown.set()

    def _end(self, source: _Source) -> None:
        """Let go of a source; of a pipe at its end, or when nobody of the run can write to it any more."""
        source.ended = True
        if source.tail:
            source.tail.close()
        elif source.handle >= 0:
            with contextlib.suppress(OSError, ValueError):
                self._epoll.unregister(source.handle)
            os.close(source.handle)
            source.handle = -1
        self._grown.set()


STAGE_LOG_FILE = "stage.log"


LineConsumer = Callable[[str, LineBlock], object]
"""Looks at the lines of a log, by its name, that ended; there may be none, but overwritten states of a progress bar."""


class LineDispatcher:
    """Reads the logs of a pump in the order `names`: what a service says comes before what its clients make of it."""

    def __init__(self, pump: MaskingLogPump, names: Sequence[str], consumers: Sequence[LineConsumer]) -> None:
        self._pump = pump
        self._names = names
        self._consumers = consumers
        self._splitters: dict[str, LineSplitter] = {}

    @property
    def bytes_read_per_log(self) -> dict[str, int]:
        """How many bytes of each log were handed over, lines that have not ended yet included."""
        return {name: log.read_offset for name, log in self._pump.logs.items()}

    def get_partial_line(self, name: str) -> str:
        return self._splitters[name].partial_line if name in self._splitters else ""

    @property
    def has_unread(self) -> bool:
        return any(log.unread_bytes for log in self._pump.logs.values())

    def dispatch_next_blocks(self) -> bool:
        """Hand over one block of each log; return whether there was anything."""
        grown = [self._read(name) for name in self._names]
        return any(grown)

    def copy_and_dispatch_everything_written(self) -> None:
        """Hand over all that was written before this call."""
        self._pump.copy_everything_written()
        due = {name: log.size for name, log in self._pump.logs.items()}
        for name in self._names:
            while name in due and self._pump.logs[name].read_offset < due[name] and self._read(name):
                pass

    def dispatch_partial_line(self, name: str) -> None:
        """Hand over the last line of a log that ends without a line feed: whoever wrote it will not end it."""
        if name in self._splitters:
            self._hand_over(name, self._splitters[name].close())

    def dispatch_remaining(self) -> None:
        while self.dispatch_next_blocks():
            pass
        for name in self._names:
            self.dispatch_partial_line(name)

    def _read(self, name: str) -> bool:
        log = self._pump.logs.get(name)
        if log is None:
            return False
        splitter = self._splitters.setdefault(name, LineSplitter())
        offset, truncations = log.read_offset, log.truncations
        data = log.read_next_block_or_empty()
        if log.truncations != truncations:
            splitter.restart_byte_offsets()
        self._hand_over(name, splitter.feed(data))
        return log.read_offset != offset

    def _hand_over(self, name: str, block: LineBlock) -> None:
        if block or block.overwritten_states:
            for consume in self._consumers:
                consume(name, block)
