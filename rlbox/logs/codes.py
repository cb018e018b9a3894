"""Terminal codes and what else stands in a line unseen: taken out, or a line is told in which it stands.

What a rule forbids is forbidden however it is written: with letters of no width between, with other blanks, with
control characters that a terminal passes over.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

from rlbox.printable import SEQUENCE

_ANSI = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # CSI: colours, the cursor, modes
    r"|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # OSC, DCS, SOS, PM, APC
    r"|[ -/]+[0-~]|[0-Z\\-~])"
)
_ANSI_BYTES = re.compile(_ANSI.pattern.encode())
_COLOUR = re.compile(rb"\x1b\[[0-9;]{0,16}m")
_FORWARD = re.compile(rb"\x1b\[\d{0,4}C")
"""The cursor goes on without a letter, which looks like a blank."""
_COLOUR_BYTES = 19
_COLOURS = 32
_WORDS = bytes(range(128)).replace(b" ", b"").replace(b"\n", b"")
"""What is left out of a test for UTF-8, which takes a quarter of the time then; blanks keep what is torn apart."""

_CONTROLS = bytes(code for code in (*range(32), 127) if code not in b"\t\b\n\r")
_ODD = (
    rb"\xc2[\x80-\xa0\xad]|\xcd\x8f|\xd8\x9c|\xe1(?:\x85[\x9f\xa0]|\x9a\x80|\x9e[\xb4\xb5]|\xa0[\x8b-\x8f])"
    rb"|\xe2(?:\x80[\x80-\x8f\xa8-\xaf]|\x81[\x9f-\xaf])|\xe3(?:\x80\x80|\x85\xa4)"
    rb"|\xef(?:\xb8[\x80-\x8f]|\xbb\xbf|\xbe\xa0|\xbf[\xb9-\xbd])|\xf3\xa0[\x80-\xbf]"
)
"""In UTF-8 what `_BLANK` and `_NOTHING` name beyond ASCII."""
_BLANK = re.compile("[\t\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_NOTHING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffd\U000e0000-\U000e0fff]"
)


def clean_text(text: str) -> str:
    """Return `text` without terminal colour and cursor codes."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def clean_bytes(data: bytes) -> bytes:
    """Return bytes without terminal codes, and as valid UTF-8."""
    if b"\x1b" in data:
        data = _without_codes(data)
    if data.isascii():
        return data
    try:
        data.translate(None, _WORDS).decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace").encode("utf-8")
    return data


def _without_codes(data: bytes) -> bytes:
    """Return bytes without terminal codes: colours first, of which a log has few, so that each is taken out at once."""
    at = 0
    for _ in range(_COLOURS):
        found = _COLOUR.search(data, at)
        if not found:
            break
        data, at = data.replace(found.group(), b""), max(0, found.start() - _COLOUR_BYTES)
        if b"\x1b" not in data:
            return data
    else:
        while (left := _COLOUR.sub(b"", data)) != data:
            data = left
    return _ANSI_BYTES.sub(b"", _FORWARD.sub(b" ", data)) if b"\x1b" in data else data


def shows(state: bytes) -> bool:
    """Return whether anything of a line can be seen."""
    if not state or state.isspace():
        return False
    return b"\x1b" not in state or bool(_without_codes(state).strip())


def odd_lines(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield lines of a block in which something stands unseen, by their indexes, in each way to read them without it.

    Backspaces and carriage returns are for who cuts lines.
    """
    if not _is_odd(body):
        return
    for index, line in enumerate(body.split(b"\n")):
        if _is_odd(line):
            text = line.decode("utf-8", "replace")
            ways = dict.fromkeys(_bare(way) for way in (text, SEQUENCE.sub("", text)))
            yield from ((index, way.encode()) for way in ways)


def bare_block(block: bytes) -> bytes:
    """Return lines without what stands in them unseen."""
    if not _is_odd(block):
        return block
    return b"\n".join(_bare(line.decode("utf-8", "replace")).encode() for line in block.split(b"\n"))


def _is_odd(data: bytes) -> bool:
    if len(data.translate(None, _CONTROLS)) < len(data):
        return True
    return not data.isascii() and _odd().search(data) is not None


def _bare(text: str) -> str:
    return _NOTHING.sub("", _BLANK.sub(" ", text))


@functools.cache
def _odd() -> Any:
    import re2

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    return re2.compile(_ODD, options)
