"""Find the values of a job's secrets: in a file that was named, the environment, and `.env` files, in this order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlbox.config.schema import did_you_mean_hint
from rlbox.errors import SpecError
from rlbox.i18n import _, join
from rlbox.secrets.env_file import parse_env_with_problems
from rlbox.values import Secret

ENV_FILE = ".env"
ENVIRONMENT = _("the environment")
_MOST_BYTES = 1 << 20
_STRONGER = _(
    "take one as services make them, with letters and digits in disorder; what everybody may "
    "read belongs into `env` of the job"
)


@dataclass(frozen=True, kw_only=True)
class _Place:
    """One place where secrets may be: what it is called, its values, and a word on it for messages."""

    title: str
    values: Mapping[str, str]
    note: str = ""


def find_secrets_rejecting_weak(
    required: Iterable[str],
    optional: Iterable[str],
    *,
    overriding_env_file: Path | None,
    fallback_env_file_dirs: Iterable[Path],
    environ: Mapping[str, str],
    aliases: Iterable[tuple[str, ...]],
    logged_texts: Iterable[str] = (),
) -> dict[str, Secret]:
    """Return the secrets of a job under every name that programs read them by.

    `overriding_env_file`: That of `--env-file`; it goes before the environment, the `.env` files after it.
    `aliases`: Groups of names that mean the same secret; any of them will do, and all are returned.
    `logged_texts`: What logs of the run say anyway: its parameters, names, machine; none of them is a secret.

    Raises SpecError: a required secret is nowhere (all that are), or one is so weak that it would be masked out of
      ordinary text; a file cannot be read, or has wrong lines. No message holds a value.
    """
    required, aliases, logged_texts = list(required), list(aliases), [text.casefold() for text in logged_texts]
    overriding = [_load(overriding_env_file, must=True)] if overriding_env_file else []
    if not (wanted := list(dict.fromkeys((*required, *optional)))):
        return {}
    files = [folder / ENV_FILE for folder in dict.fromkeys(fallback_env_file_dirs)]
    places = [*overriding, _Place(title=ENVIRONMENT, values=environ), *(_load(file, must=False) for file in files)]
    secrets: dict[str, Secret] = {}
    missing, weak = [], []
    for name in wanted:
        group = next((group for group in aliases if name in group), ())
        names = (name, *(other for other in group if other != name))
        # an empty one is as good as none
        hits = ((place, value) for place in places for each in names if (value := place.values.get(each)))
        place, value = next(hits, (None, ""))
        if place is None:
            missing += [_describe_missing(names, places)] if name in required else []
            continue
        reason = explain_secret_weakness(value)
        if not reason and any(value.strip().casefold() in text for text in logged_texts):
            reason = _("a word of the run's own names or parameters")
        if reason:
            weak.append(
                _("secret {name} of {title} is too weak to be kept out of logs: it is {why}").format(
                    name=name, title=place.title, why=reason
                )
            )
        secrets.update(dict.fromkeys(names, Secret(value)))
    if missing or weak:
        into = next((str(file) for file in (overriding_env_file, *files) if file), _("a file for --env-file"))
        step = _("write NAME=value into {into}, or export it").format(into=into) if missing else _STRONGER
        raise SpecError(join("\n  ", (*missing, *weak)), next_step=step)
    return secrets


def _describe_missing(names: tuple[str, ...], places: list[_Place]) -> str:
    seen = []
    for place in places:
        note = place.note
        if any(name in place.values for name in names):
            note = _(" (empty there)")
        elif place.title != ENVIRONMENT:
            note = note or did_you_mean_hint(names[0], list(place.values))
        seen.append(join("", (place.title, note)))
    also = _(" (or {names})").format(names=", ".join(names[1:])) if names[1:] else ""
    return _("secret {name}{also} is missing; looked in {seen}").format(name=names[0], also=also, seen=join(", ", seen))


def _load(path: Path, *, must: bool) -> _Place:
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError as error:
        if must:
            step = _("create the file, or pass another with --env-file")
            raise SpecError(_("the file of --env-file is missing"), where=str(path), next_step=step) from error
        return _Place(title=str(path), values={}, note=_(" (not there)"))
    except OSError as error:
        raise SpecError(
            _("the file cannot be read: {strerror}").format(strerror=error.strerror), where=str(path)
        ) from error
    if len(data) > _MOST_BYTES:
        raise SpecError(_("the file is no .env file: it has more than 1 MiB"), where=str(path))
    parsed = parse_env_with_problems(data)
    if parsed.problems:
        lines = "".join(f"\n  {path}: {problem}" for problem in parsed.problems)
        count = (
            _("1 problem") if len(parsed.problems) == 1 else _("{count} problems").format(count=len(parsed.problems))
        )
        raise SpecError(
            _("{path}: {count}{lines}").format(path=path, count=count, lines=lines),
            next_step=_("correct the lines named above"),
        )
    return _Place(title=str(path), values=parsed.values)


MIN_STRONG_LENGTH = 8
"""Characters that a secret must have."""

_MIN_WORDS_LENGTH = 24
"""Characters from which on words without a digit are strong: a sentence."""
_NUMBER = re.compile(r"[-+]?[\d.,:_ /eE-]+")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#@]*/?")
_PATH = re.compile(r"(?:~|\.{1,2})?/\D*")


def explain_secret_weakness(value: str) -> str | None:
    """Return why a value is too weak for a secret, in words that go on after "it is"; None when it is strong enough.

    What services make is strong: it has digits and letters.
    """
    value = value.strip()
    if len(value) < MIN_STRONG_LENGTH:
        return _("shorter than {shortest_secret} characters").format(shortest_secret=MIN_STRONG_LENGTH)
    if _NUMBER.fullmatch(value):
        return _("a number")
    if _ADDRESS.fullmatch(value):
        return _("an address")
    if _PATH.fullmatch(value):
        return _("a path")
    if len(value) < _MIN_WORDS_LENGTH and not any(character.isdigit() for character in value):
        return _("a word or a name without a digit")
    return None
