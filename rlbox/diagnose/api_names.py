"""Which releases of a package have the name that an error says is missing; scripts/api_names.py writes the table."""

from __future__ import annotations

import functools
import json
import lzma
import re
from pathlib import Path
from typing import Any

from rlbox.i18n import _, join

_TABLE = Path(__file__).with_name("api_names.json.xz")
_FORMS = tuple(
    (re.compile(pattern), key)
    for pattern, key in (
        (r"cannot import name ['\"]?(\w+)['\"]? from ['\"]?([\w.]+)", r"\2:\1"),
        (r"module ['\"]?([\w.]+)['\"]? has no attribute ['\"]?(\w+)", r"\1:\2"),
        (r"No module named ['\"]([\w.]+)", r"\1:"),
        (r"([\w.]+)\(\) got an unexpected keyword argument ['\"](\w+)", r"\1(\2"),
        (r"(?:type object )?['\"](\w+)['\"](?: object)? has no attribute ['\"](\w+)", r"\1.\2"),
    )
)
"""How Python tells that a name is missing, and the key of the table that it stands for."""


@functools.cache
def _load() -> dict[str, Any]:
    return dict(json.loads(lzma.decompress(_TABLE.read_bytes())))


def explain_missing_name(error: str) -> str:
    """Return which releases have what an error lacks, and what to install; empty where the table does not tell."""
    key = next((found.expand(form) for pattern, form in _FORMS if (found := pattern.search(error))), "")
    word = re.split(r"[:(]", key)[-1] or key.rstrip(":")
    for package, table in _load().items() if key else ():
        versions = table["versions"]
        for span, names in table["names"].items():
            if key in names:
                first, last = map(int, span.split("-"))
                since, until = versions[first], versions[last + 1] if last + 1 < len(versions) else ""
                if not until:
                    text = _(
                        "{package} has {name} since {since}: install {package}>={since}, or an older release of what asks for it."
                    )
                elif not first:
                    text = _(
                        "{package} has no {name} since {until}: install {package}<{until}, or a newer release of what asks for it."
                    )
                else:
                    text = _(
                        "{package} has {name} from {since} on, and no more in {until}: install {package}>={since},<{until}, or a release of what asks for it that fits yours."
                    )
                return text.format(package=package, name=word, since=since, until=until)
    return ""


def suggest_next_step(error: str, remedy: str, *, is_own_remedy: bool) -> str:
    """Return what to do: which releases have a missing name, else the remedy; one that is of this error alone follows."""
    explained = explain_missing_name(error)
    return join(" ", (explained, _(remedy))) if explained and is_own_remedy else explained or _(remedy)
