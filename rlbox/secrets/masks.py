"""Keep secret values out of everything that is written for people to read or to send, and tell text that holds one."""

from __future__ import annotations

import base64
import functools
import html
import json
import re
import shlex
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, quote_plus

from rlbox.secrets.mask_stream import MASK, MIN_SECRET_LENGTH, MaskPatterns, MaskStream
from rlbox.secrets.url_credentials import mask_url_and_header_credentials

SECRETS_VARIABLE = "RLBOX_SECRETS"
"""Environment variable that names, comma separated, the variables that were passed on as secrets."""

_SECRET_NAME = re.compile(r"SECRET|TOKEN(?!IZER)|KEY|PASSW|CREDENTIAL", re.IGNORECASE)
_PLAIN = re.compile(r"[/.~].*|\d+|\S*\s.*", re.DOTALL)  # a path, a number, a sentence
_LIKELY = 16  # characters from which on the value of an undeclared variable is one even without a digit
_POSSIBLE = 8
_SHORTEST_BASE64 = 6
_SHORTEST_LINE = 8
# Tokens that tell what they are by how they begin; what follows `wandb login` has the form of a commit.
_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|sk-[A-Za-z0-9_-]{20,}"
    r"|A[KS]IA[0-9A-Z]{16}|(?:rpa|dckr_pat|nvapi|gsk|r8|npm|api_org)[-_][A-Za-z0-9_-]{20,}"
    r"|wandb login (?:\S+ )*[0-9a-f]{40})\b"
)


class SecretMasker:
    """Replaces the values of secrets, however they are written, and credentials in URLs and headers.

    Secrets are the variables that `RLBOX_SECRETS` names, and those whose names sound like one and whose values do too.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        named = {name.strip() for name in environment.get(SECRETS_VARIABLE, "").split(",")}
        self._named = named - {""}
        values = {environment.get(name, "") for name in self._named}
        values |= {value for name, value in environment.items() if self._hides(name) and _looks_secret(value)}
        self.values: tuple[str, ...] = tuple(sorted({value for value in values if len(value) >= MIN_SECRET_LENGTH}))
        """The secrets that are masked."""

    @functools.cached_property
    def _patterns(self) -> MaskPatterns:
        texts = {text for value in self.values for text in _pieces(value)}
        return MaskPatterns({form for text in texts for form in _encodings(text)})

    def open_stream(self) -> MaskStream:
        """Return what replaces every secret in a log by `***`, whatever it is cut into; credentials are left alone."""
        return MaskStream(self._patterns if self.values else None)

    def mask_text(self, text: str) -> str:
        if self.values:
            lone = "surrogateescape" if _whole(text) else "surrogatepass"
            stream, data = self.open_stream(), text.encode("utf-8", lone)
            text = (stream.feed(data) + stream.close()).decode("utf-8", lone)
        return mask_url_and_header_credentials(text)

    def mask_json(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.mask_text(value)
        if isinstance(value, Mapping):
            return {self.mask_json(key): self.mask_json(item) for key, item in value.items()}
        return [self.mask_json(item) for item in value] if isinstance(value, (list, tuple)) else value

    def mask_environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        return {
            name: MASK if value and self._hides(name) else self.mask_text(value)
            for name, value in sorted(environment.items())
        }

    def _hides(self, name: str) -> bool:
        return name in self._named or is_secret_name(name)


def is_secret_name(name: str) -> bool:
    return name != SECRETS_VARIABLE and bool(_SECRET_NAME.search(name))


def _looks_secret(value: str) -> bool:
    if len(value) < _POSSIBLE or _PLAIN.fullmatch(value):
        return False
    return len(value) >= _LIKELY or any(character.isdigit() for character in value)


def _whole(text: str) -> bool:
    """Whether a text can be written as bytes: JSON may hold halves of characters."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def looks_like_secret(name: str, value: str) -> bool:
    """Whether the value of a variable looks like a secret; one that refers to another variable is none."""
    value = value.strip("\"'")
    return "$" not in value and (bool(_TOKEN.search(value)) or bool(SecretMasker({name: value}).values))


def _pieces(value: str) -> set[str]:
    """Return a secret, and of one of several lines each long one by itself too."""
    lines = [line.strip() for line in value.splitlines()]
    return {value, value.strip(), *(line for line in lines if len(line) >= _SHORTEST_LINE)} - {""}


def _encodings(text: str) -> set[str]:
    return {text, *_escapes(text), *_url_forms(text), *_base64_forms(text), *_number_forms(text)}


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


def _number_forms(text: str) -> set[str]:
    """Return its bytes in hexadecimal and as a list of decimal numbers, and its characters as JSON may escape them.

    `remove_separators` takes out blanks and backslashes first, so that `\\x68\\x66` is found as `x68x66`.
    """
    data = text.encode("utf-8", "surrogateescape")
    hex_forms = {separator.join(f"{byte:02x}" for byte in data) for separator in ("", ":", "-", ",0x", "0x", "x", "%")}
    escaped = "".join(f"u{unit:04x}" for unit in memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H"))
    upper = {form.upper().replace("X", "x") for form in hex_forms}
    return {*hex_forms, *upper, ",".join(map(str, data)), escaped}
