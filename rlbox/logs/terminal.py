"""Take terminal codes out of text, and make valid UTF-8 of it."""

from __future__ import annotations

import re

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_ANSI_BYTES = re.compile(_ANSI.pattern.encode())
_COLOUR = re.compile(rb"\x1b\[[0-9;]{0,16}m")
_COLOUR_BYTES = 19
_COLOURS = 32
_WORDS = bytes(range(128)).replace(b" ", b"").replace(b"\n", b"")
"""What is left out of a test for UTF-8, which takes a quarter of the time then; blanks keep what is torn apart."""


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
    return _ANSI_BYTES.sub(b"", data) if b"\x1b" in data else data


def shows(state: bytes) -> bool:
    """Return whether anything of a line can be seen."""
    if not state or state.isspace():
        return False
    return b"\x1b" not in state or bool(_without_codes(state).strip())
