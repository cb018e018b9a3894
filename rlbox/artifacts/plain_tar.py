"""Entries of a tar as bytes that no version of Python's own writer can change: they are summed in locks.

Source: POSIX.1-2008, pax: the ustar header, and extended headers for what does not fit into it.
"""

from __future__ import annotations

EPOCH = 315_532_800
"""Time stamp of every entry, 1980-01-01: the first that a zip, and so a wheel built from the files, can hold."""

FILE, SYMLINK, FOLDER = b"0", b"2", b"5"
END = bytes(1024)
_BLOCK = 512
_LARGEST = 8**11 - 1


def tar_header(name: str, kind: bytes, mode: int, size: int = 0, link: str = "") -> bytes:
    """Return the header of one entry; its `size` bytes follow, then `padding(size)`."""
    values = {"path": name, "linkpath": link}
    records = [(key, text) for key, text in values.items() if len(text.encode()) > 100 or not text.isascii()]
    records += [("size", str(size))] if size > _LARGEST else []
    body = b"".join(_record(key, text) for key, text in records)
    before = _ustar(b"", b"x", 0o644, len(body), b"") + body + padding(len(body)) if body else b""
    return before + _ustar(name.encode(), kind, mode, min(size, _LARGEST), link.encode())


def padding(size: int) -> bytes:
    """Return what fills the last block of `size` bytes."""
    return bytes(-size % _BLOCK)


def _record(key: str, text: str) -> bytes:
    rest = f" {key}={text}\n".encode()
    length = len(rest)
    while len(str(length)) + len(rest) != length:
        length = len(str(length)) + len(rest)
    return str(length).encode() + rest


def _ustar(name: bytes, kind: bytes, mode: int, size: int, link: bytes) -> bytes:
    def number(value: int, digits: int) -> bytes:
        return b"%0*o\0" % (digits, value)

    fields = [name[:100].ljust(100, b"\0"), number(mode, 7), number(0, 7), number(0, 7), number(size, 11)]
    fields += [number(EPOCH, 11), b" " * 8, kind, link[:100].ljust(100, b"\0"), b"ustar\x0000"]
    block = b"".join(fields).ljust(_BLOCK, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]
