"""Keep secret values out of everything that is written for people to read or to send, and tell text that holds one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rlbox.secrets.credentials import mask_credentials
from rlbox.secrets.encodings import encodings

SECRETS_VARIABLE = "RLBOX_SECRETS"
"""Environment variable that names, comma separated, the variables that were passed on as secrets."""

MASK = "***"
SHORTEST = 4
"""Characters that a value must have to be masked: shorter ones would eat ordinary text."""

_SECRET_NAME = re.compile(r"SECRET|TOKEN(?!IZER)|KEY|PASSW|CREDENTIAL", re.IGNORECASE)
_PLAIN = re.compile(r"[/.~].*|\d+|\S*\s.*", re.DOTALL)  # a path, a number, a sentence
_LIKELY = 16  # characters from which on the value of an undeclared variable is one even without a digit
_POSSIBLE = 8


class Masks:
    """Replaces the values of secrets, however they are written, and credentials in URLs and headers.

    Secrets are the variables that `RLBOX_SECRETS` names, and those whose names sound like one and whose values do too.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        named = {name.strip() for name in environment.get(SECRETS_VARIABLE, "").split(",")}
        self._named = named - {""}
        values = {environment.get(name, "") for name in self._named}
        values |= {value for name, value in environment.items() if self._hides(name) and _looks_secret(value)}
        self.forms: tuple[str, ...] = _forms(values)
        """Every way in which a secret may be written, the longest first."""

    def text(self, text: str) -> str:
        """Return `text` with every secret value replaced by `***`."""
        for form in self.forms:
            text = text.replace(form, MASK)
        return mask_credentials(text)

    def tree(self, value: Any) -> Any:
        """Return JSON types with every text in them masked."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self.tree(item) for key, item in value.items()}
        return [self.tree(item) for item in value] if isinstance(value, (list, tuple)) else value

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return `environment`, sorted, with the values of secrets and of names that sound like one replaced."""
        return {
            name: MASK if value and self._hides(name) else self.text(value)
            for name, value in sorted(environment.items())
        }

    def _hides(self, name: str) -> bool:
        sounds_secret = name != SECRETS_VARIABLE and _SECRET_NAME.search(name)
        return name in self._named or bool(sounds_secret)


def _looks_secret(value: str) -> bool:
    if len(value) < _POSSIBLE or _PLAIN.fullmatch(value):
        return False
    return len(value) >= _LIKELY or any(character.isdigit() for character in value)


def _forms(values: Iterable[str]) -> tuple[str, ...]:
    found = {form for value in values if len(value) >= SHORTEST for form in encodings(value)}
    return tuple(sorted((form for form in found if len(form) >= SHORTEST), key=lambda form: (-len(form), form)))


_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(\"[^\"]*\"|'[^']*'|[^\s;&|)]+)")
# Tokens that tell what they are: of Hugging Face, GitHub, OpenAI and the like, AWS; what follows `wandb login` has the
# form of a commit.
_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|sk-[A-Za-z0-9_-]{20,}"
    r"|AKIA[0-9A-Z]{16}|wandb login (?:\S+ )*[0-9a-f]{40})\b"
)


def secret_lines(text: str) -> tuple[int, ...]:
    """Return the numbers of the lines of shell text that hold what looks like a secret; the first line is 1."""
    return tuple(number for number, line in enumerate(text.splitlines(), start=1) if _holds_secret(line))


def is_secret(name: str, value: str) -> bool:
    """Whether the value of a variable looks like a secret; one that refers to another variable is none."""
    value = value.strip("\"'")
    return "$" not in value and (bool(_TOKEN.search(value)) or bool(Masks({name: value}).forms))


def _holds_secret(line: str) -> bool:
    assigned = any(is_secret(name, value) for name, value in _ASSIGNED.findall(line))
    return assigned or bool(_TOKEN.search(line)) or mask_credentials(line) != line
