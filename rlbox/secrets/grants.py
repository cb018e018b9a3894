"""Which of a run's secrets each of its stages and services is given: those that it names, under all their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rlbox.secrets.mask_stream import MASK
from rlbox.secrets.masks import SECRETS_VARIABLE


class Grants:
    """The secrets of a run, name to value, and what a part of it that names some of them finds in its environment.

    `aliases` are groups of names that mean the same secret: who names one of them gets all.
    """

    def __init__(self, secrets: Mapping[str, str], aliases: Iterable[tuple[str, ...]] = ()) -> None:
        self._secrets = dict(secrets)
        self._aliases = tuple(aliases)

    def environment(self, names: Iterable[str]) -> dict[str, str]:
        """Return the variables for a part that names these secrets; an optional one that is not there is left out.

        In a run with secrets, `RLBOX_SECRETS` names those of the part, be it none.
        """
        asked = set(names)
        asked |= {name for group in self._aliases if asked & set(group) for name in group}
        given = {name: value for name, value in self._secrets.items() if name in asked}
        return {**given, SECRETS_VARIABLE: ",".join(given)} if self._secrets else {}

    def hidden(self, names: Iterable[str]) -> dict[str, str]:
        """Return what `environment` does, with `***` for the values."""
        return {name: text if name == SECRETS_VARIABLE else MASK for name, text in self.environment(names).items()}
