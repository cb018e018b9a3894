"""Credentials that nobody declared, where their place tells what they are: in URLs and in Authorization headers."""

from __future__ import annotations

import re

_GAP = r"[ \t]{0,3}"
_HEADER = rf"""\bauthorization\\?["']?{_GAP}[:=,]{_GAP}(?:b?\\?["'])?"""
_SCHEME = r"(?:bearer|basic|token|digest|negotiate|apikey)[ \t]+"
_WORD = r"""[^\s"',;}\\]+"""
_LONG = r"[A-Za-z0-9._~+/-]{16,}=*"
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    # the password of user:password@host, up to the last @ before the path
    (re.compile(r"""(://[^\s/:@'"<>]*:)[^\s/'"<>]+(@)"""), r"\1***\2"),
    # https://TOKEN@host: over HTTP, who comes without a password is a token (ssh://git@host is not)
    (re.compile(r"""(https?://)[^\s/:@'"<>]+(@)""", re.IGNORECASE), r"\1***\2"),
    # a scheme that is not known is taken for the token; the long word behind it goes too
    (re.compile(rf"({_HEADER}{_SCHEME}){_WORD}|({_HEADER}){_WORD}(?:[ \t]+{_LONG})?", re.IGNORECASE), r"\1\2***"),
)
_IN_URL = rb"""://[^\s/'"<>]*@"""


def mask_url_and_header_credentials(text: str) -> str:
    """Return `text` with passwords and tokens in URLs and in Authorization headers replaced by `***`."""
    if "://" not in text and "authorization" not in text.lower():
        return text
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text


_HELD = 2048
_TRIGGERS = ("https://", "http://", "://", "authorization")
_BEGINNINGS = {word[:size] for word in _TRIGGERS for size in range(1, len(word))}
_LONGEST = max(map(len, _BEGINNINGS))
_STARTED = re.compile(
    r"""(?:https?)?://[^\s/'"<>]*\Z"""
    rf"""|\bauthorization\\?["']?{_GAP}\Z|{_HEADER}(?:{_WORD}[ \t]+)?(?:{_WORD})?\Z"""
    r"""|\bauthorization[^:=,]{0,5}[:=,][ \t]{0,3}b?\\?\Z""",
    re.IGNORECASE,
)


def compile_re2_bytes(pattern: bytes) -> re.Pattern[bytes]:
    """Return an expression of RE2, which searches bytes at memory speed where Python's own looks at each of them."""
    import re2  # who has no log and no secret does not pay for it

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # a log holds bytes that are no UTF-8
    compiled: re.Pattern[bytes] = re2.compile(pattern, options)
    return compiled


class UrlAndHeaderMaskStream:
    """`mask_url_and_header_credentials` for bytes that are cut anywhere: what may be the beginning of a credential
    waits for the rest.

    At most 2 KiB are held back, and never a line that has ended. Of the ways to write `authorization` those are found
    that programs write: with a capital, without, all in capitals.
    """

    def __init__(self) -> None:
        self._in_url = compile_re2_bytes(_IN_URL)
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        data = self._held + data
        line = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        cut = len(data) - (self._open(data[max(len(data) - _HELD, line) :]) if line < len(data) else 0)
        self._held = data[cut:]
        return self._masked(data[:cut])

    def close(self) -> bytes:
        held, self._held = self._held, b""
        return self._masked(held)

    def _open(self, tail: bytes) -> int:
        """Return how many bytes at the end of an unfinished line may be the beginning of a credential."""
        text = tail.decode("latin-1").lower()
        if ("://" in text or "authorization" in text) and (found := _STARTED.search(text)):
            return len(text) - found.start()
        last = text[-_LONGEST:]
        return next((size for size in range(len(last), 0, -1) if last[-size:] in _BEGINNINGS), 0)

    def _masked(self, data: bytes) -> bytes:
        in_url = b"@" in data and b"://" in data and self._in_url.search(data)
        if not in_url and b"uthorization" not in data and b"UTHORIZATION" not in data:
            return data
        return mask_url_and_header_credentials(data.decode("latin-1")).encode("latin-1")
