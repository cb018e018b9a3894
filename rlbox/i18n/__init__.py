"""Messages that people read in their language, while records, logs, reports and `--json` are English.

`_("no target {name}").format(name=name)` is a string in English that keeps its msgid and parameters. Whatever prints
for a person passes it through `translate`. An f-string around a message is plain English again: use `_` or `join`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")
_LOCALE = Path(__file__).parent / "locale"
_VARIABLES = ("RLBOX_LANG", "LC_ALL", "LC_MESSAGES", "LANG")
"""Which comes first: setlocale(3)."""


class EnglishMessage(str):
    msgid: str
    parameters: Mapping[str, object]

    def __new__(cls, text: str, msgid: str = "", parameters: Mapping[str, object] | None = None) -> EnglishMessage:
        message = super().__new__(cls, text)
        message.msgid, message.parameters = msgid or text, parameters or {}
        return message

    def __str__(self) -> str:
        return self  # str(error) is the message that the error was raised with, and not a copy in English

    def __add__(self, other: str) -> str:
        return join("", (self, other))

    def __radd__(self, other: str) -> str:
        return join("", (other, self))

    def format(self, *values: object, **parameters: object) -> EnglishMessage:
        """Fill the parameters in, beside those given before; one that is a message is translated with this one."""
        given = {**self.parameters, **parameters}
        kept = {name: str(value) if isinstance(value, Exception) else value for name, value in given.items()}
        return EnglishMessage(self.msgid.format(*values, **kept), self.msgid, kept)


class _Language:
    """The language of this process, its translations, and where to look for those that are not in its catalogue."""

    name: Language = "en"
    translations: Mapping[str, str] = {}
    more: Callable[[], Mapping[str, str]] | None = None

    def find(self, msgid: str) -> str | None:
        if msgid not in self.translations and self.more and self.name != "en":
            self.translations, self.more = {**self.more(), **self.translations}, None
        return self.translations.get(msgid)


_current = _Language()


def _(text: str) -> str:
    """Mark a text for translation; one that is a message already stays what it is."""
    return text if isinstance(text, EnglishMessage) else EnglishMessage(text)


def ngettext(singular: str, plural: str, count: int) -> EnglishMessage:
    """Mark a text with a number in it; Chinese has one form, under either msgid."""
    return EnglishMessage(singular if count == 1 else plural)


def join(separator: str, parts: Iterable[object]) -> EnglishMessage:
    """Join texts, of which some are messages."""
    texts = {f"part{number}": str(part) for number, part in enumerate(parts)}
    template = separator.replace("{", "{{").replace("}", "}}").join(f"{{{name}}}" for name in texts)
    return EnglishMessage(template).format(**texts)


def translate(text: str) -> str:
    """Return a message in the language of this process, any other text as it is."""
    if not isinstance(text, EnglishMessage):
        return text
    template = _current.translations.get(text.msgid) or text.msgid
    if not text.parameters:
        return _current.find(text.msgid) or template
    values = {name: translate(one) if isinstance(one, str) else one for name, one in text.parameters.items()}
    return template.format(**values)


def render_message(template: str, render: Callable[[str], str]) -> EnglishMessage:
    """Return a filled-in template as a message; its translation, filled in as well, takes the place of the msgid."""
    return EnglishMessage(render(template), render(translate(_(template))))


def message_or_text_to_json(text: str) -> Any:
    """Return a message as its msgid and parameters, any other text as it is."""
    if not isinstance(text, EnglishMessage):
        return text
    values = {
        name: message_or_text_to_json(one) if isinstance(one, str) else one for name, one in text.parameters.items()
    }
    return {"msgid": text.msgid, "parameters": values}


def message_or_text_from_json(data: Any) -> Any:
    """Return what `message_or_text_to_json` was given; raises what `str.format` does for a damaged message."""
    if not isinstance(data, Mapping):
        return data
    values = {name: message_or_text_from_json(one) for name, one in data["parameters"].items()}
    return EnglishMessage(data["msgid"]).format(**values) if values else EnglishMessage(data["msgid"])


def detect_language(argv: Sequence[str], environ: Mapping[str, str]) -> Language:
    """Return the language of `--lang`, else of RLBOX_LANG or the locale; English for one that rlbox does not have."""
    name = next((environ[variable] for variable in _VARIABLES if environ.get(variable)), "")
    for word, following in zip_longest(argv, argv[1:], fillvalue=""):
        if word == "--":
            break
        if word.startswith("--lang="):
            name = word.partition("=")[2]
        elif word == "--lang" and following:
            name = following
    return next((language for language in LANGUAGES if name.lower().startswith(language)), "en")


def read_translations_and_set_language(name: Language) -> None:
    _current.name, _current.more = name, None
    _current.translations = (
        {} if name == "en" else parse_po((_LOCALE / name / "LC_MESSAGES/rlbox.po").read_text("utf-8"))
    )


def set_fallback_translations(read_translations: Callable[[], Mapping[str, str]]) -> None:
    """Name what reads further translations, once a text is not in the catalogue: those that fixes bring along."""
    _current.more = read_translations


def get_language() -> Language:
    return _current.name


def parse_po(text: str) -> dict[str, str]:
    """Return the translations of a .po file by msgid, and by msgid_plural; its strings are JSON strings as well."""
    found: dict[str, str] = {}
    for entry in text.split("\n\n"):
        fields, field = {"msgid": "", "msgstr": ""}, ""
        for line in entry.splitlines():
            if line.startswith("#"):
                continue
            if not line.startswith('"'):
                field, _space, line = line.partition(" ")
                field = field.removesuffix("[0]")
            fields[field] = fields.get(field, "") + json.loads(line)
        found |= {fields[name]: fields["msgstr"] for name in ("msgid", "msgid_plural") if fields.get(name)}
    return found
