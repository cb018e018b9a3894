"""The messages in a compiled library: texts with holes, as C and C++ keep them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rlbox.inventory.messages import Message, holes_of, template_lines

_TEXT = re.compile(rb"[\x20-\x7e\t\n]{16,400}(?=\x00)")
_PROSE = re.compile(r"[A-Za-z]{2,}(?:[ ,:'/()-]+[A-Za-z%<][\w%<>.-]*){3,}")
_FMT = re.compile(r"\{(?:\d*(?::[^{}\s]{0,8})?)\}")
_SHORT = re.compile(r"[A-Za-z]{4,} [A-Za-z%]{2,}")
_CODE = re.compile(r"::|\bconst\b|[{};]|\(\)|^[_a-z0-9]+$|<\w+>|\\|=>|->|\*\)|__|^\s*[#@/]|\bdoc(?:s|string)\b|>>>")


def library_messages(data: bytes, file: str, wanted: re.Pattern[str] | None = None) -> Iterator[Message]:
    """Yield the texts of a library that read like messages; `wanted` keeps those that it finds alone."""
    seen = set()
    for hit in _TEXT.finditer(data):
        text = _FMT.sub("%s", hit.group().decode("ascii"))
        if (
            not (_SHORT if wanted else _PROSE).search(text)
            or _CODE.search(text)
            or (wanted and not wanted.search(text))
        ):
            continue
        for template in template_lines(holes_of(text)):
            if template not in seen:
                seen.add(template)
                yield Message(template=template, kind="native", name="", where=file)
