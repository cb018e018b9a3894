"""The ways in which programs write a value: in URLs, JSON, base64, shell words, Python's and HTML's escapes."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
from urllib.parse import quote, quote_plus

_SHORTEST_BASE64 = 6
_SHORTEST_LINE = 8


def encodings(value: str) -> frozenset[str]:
    """Return `value` and the other ways in which it may be written; of several lines, each long one by itself too."""
    lines = [line.strip() for line in value.splitlines()]
    found = set[str]()
    for text in {value, value.strip(), *(line for line in lines if len(line) >= _SHORTEST_LINE)}:
        found |= {text, *_escapes(text), *_url_forms(text), *_base64_forms(text)}
    return frozenset(found - {""})


def _escapes(text: str) -> set[str]:
    return {
        json.dumps(text)[1:-1],
        json.dumps(text, ensure_ascii=False)[1:-1],
        json.dumps(text)[1:-1].replace("/", "\\/"),
        json.dumps(json.dumps(text)[1:-1])[1:-1],  # JSON in JSON
        repr(text)[1:-1],
        ascii(text)[1:-1],
        repr(text.encode("utf-8", "surrogateescape"))[2:-1],
        html.escape(text),
        html.escape(text, quote=False),
        html.escape(text).replace("&quot;", "&#34;").replace("&#x27;", "&#39;"),
        shlex.quote(text).removeprefix("'").removesuffix("'"),
    }


def _url_forms(text: str) -> set[str]:
    data = text.encode("utf-8", "surrogateescape")
    forms = {quote(data, safe=""), quote(data), quote_plus(data), quote(data, safe=":/?#[]@!$&'()*+,;=")}
    return forms | {re.sub(r"%[0-9A-F]{2}", lambda match: match.group().lower(), form) for form in forms}


def _base64_forms(text: str) -> set[str]:
    """Return what base64 makes of `text` wherever it stands in what is encoded (as the password of `user:password`).

    A piece of three bytes becomes four characters; what stands before shifts it by nought to two bytes. The characters
    that depend on the neighbours are left out.
    """
    data = text.encode("utf-8", "surrogateescape")
    found = set[str]()
    for shift in range(3):
        coded = base64.b64encode(b"\0" * shift + data).decode("ascii")
        first = (0, 2, 3)[shift]
        last = (shift + len(data)) * 8 // 6  # characters that hold nothing but bytes of ours
        form = coded[first:last]
        if len(form) >= _SHORTEST_BASE64:
            found |= {form, form.replace("+", "-").replace("/", "_")}
    return found
