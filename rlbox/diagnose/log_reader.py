"""Read one log to its end, however long it and its lines are, in flat memory."""

from __future__ import annotations

from rlbox.diagnose.read.reader import EventReader, Read
from rlbox.logs.lines import LINE_LIMIT, Texts


class LogReader:
    """Takes bytes as they come, and hands whole lines to an `EventReader`.

    `offset` is how many bytes were taken, `lines` how many lines have ended.
    """

    def __init__(self, events: EventReader) -> None:
        self.events = events
        self.offset = self.lines = 0
        self._rest = bytearray()
        self._begun = 0

    def take(self, data: bytes) -> None:
        """Take the next bytes."""
        end = data.rfind(b"\n") + 1
        begin = 0
        if end and self._rest:
            begin = data.find(b"\n") + 1
            self._keep(data[: begin - 1])
            self._hand_over(bytes(self._rest))
            self._rest.clear()
            self._begun = self.offset + begin
        if end > begin:
            self._hand_over(data[begin : end - 1])
        if end:
            self._begun = self.offset + end
        self.offset += len(data)
        self._keep(data[end:])

    def close(self) -> Read:
        """Take the last line, which has no line feed, and return what was read."""
        if self._rest:
            self._hand_over(bytes(self._rest))
            self._rest.clear()
        return self.events.close()

    def _hand_over(self, lines: bytes) -> None:
        """Hand over whole lines, of which the last has lost its line feed."""
        count = lines.count(b"\n") + 1
        self.events.take(self.lines + 1, self._begun, Texts(lines, count))
        self.lines += count

    def _keep(self, data: bytes) -> None:
        """Keep the beginning of a line that goes on; what stands behind `LINE_LIMIT` of it is payload."""
        room = LINE_LIMIT - len(self._rest)
        if room > 0:
            self._rest += data[:room]
