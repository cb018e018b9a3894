"""Text of others as a terminal may get it: without control sequences. Files keep the bytes that were written.

A log, a name or an answer can hold sequences that rename a window, write the clipboard, answer as if the user had
typed, hide a line or turn its order round.
"""

from __future__ import annotations

import codecs
import re

ESCAPE_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, the cursor, modes
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\r\n]*(?:\x07|\x1b\\|\x9c)"  # OSC, DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]?"
)
_BEGINS = re.compile("[\x1b\x90\x98\x9b\x9d\x9e\x9f]")
_RETURN = re.compile(r"\r+\n?")
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_HALF = re.compile("[\ud800-\udfff]")
_HELD = 4096
"""Characters of a line that wait for the end of a sequence; a longer one loses its beginning alone."""


def sanitize_for_terminal(text: str) -> str:
    """Return a text without control sequences, control characters (but tab and line feed) and signs that turn it round.

    A carriage return becomes a line feed: what it would overwrite stays to be seen. Half a character becomes U+FFFD.
    """
    if text.isascii() and text.isprintable():
        return text
    return _HALF.sub("\ufffd", _UNSEEN.sub("", _RETURN.sub("\n", ESCAPE_SEQUENCE.sub("", text))))


class IncrementalTerminalSanitizer:
    """`sanitize_for_terminal` for bytes cut anywhere: what may be the beginning of a sequence waits for the rest."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; return those that may be shown by now."""
        text = self._held + self._decoder.decode(data)
        cut = self._open(text)
        self._held = text[cut:]
        return sanitize_for_terminal(text[:cut]).encode()

    def close(self) -> bytes:
        """Return what was held back."""
        held, self._held = self._held + self._decoder.decode(b"", final=True), ""
        return sanitize_for_terminal(held).encode()

    def _open(self, text: str) -> int:
        """Return where the line that has not ended may begin a sequence, or ends with a carriage return."""
        line = max(text.rfind("\n"), text.rfind("\r", 0, -1)) + 1
        found = _BEGINS.search(text, line)
        if found and len(text) - found.start() <= _HELD:
            return found.start()
        return len(text) - 1 if text.endswith("\r") else len(text)
