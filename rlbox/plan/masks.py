"""Keep secret values out of everything that is written for people to read or to send."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

SECRETS_VARIABLE = "RLBOX_SECRETS"
"""Environment variable that names, comma separated, the variables that were passed on as secrets."""

MASK = "***"
_SECRET_NAME = re.compile(r"SECRET|TOKEN(?!IZER)|KEY|PASSW|CREDENTIAL", re.IGNORECASE)
_SHORTEST = 4


class Masks:
    """Replaces the values of secrets; values under 4 characters are left, they would eat ordinary text."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        named = {name.strip() for name in environment.get(SECRETS_VARIABLE, "").split(",")}
        self._named = named - {""}
        values = {environment.get(name, "") for name in self._named}
        self._values = sorted((value for value in values if len(value) >= _SHORTEST), key=len, reverse=True)

    def text(self, text: str) -> str:
        """Return `text` with every secret value replaced by `***`."""
        for value in self._values:
            text = text.replace(value, MASK)
        return text

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
