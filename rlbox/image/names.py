"""Names of images in an engine: `rlbox/TARGET:PROJECT`, so that no project takes another one's image away.

The project is in the name alone: no label and no digest depends on it.
"""

from __future__ import annotations

import hashlib
import re

from rlbox.errors import SpecError
from rlbox.i18n import _

NAMESPACE = "rlbox/"
NO_PROJECT = "latest"
"""Tag of an image that is of no project: in an archive, and in an engine where an rlbox of before kept it."""
VERIFY_MARK = ".verify"
"""End of the tag of a second build, which only lives until it is compared; no project's name has a dot."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")
_LONGEST = 40


def image_tag(target: str, project: str) -> str:
    """Return the name of a target's image in the engine."""
    return f"{NAMESPACE}{target}:{project}"


def split_tag(tag: str) -> tuple[str, str]:
    """Return target and project of the name of an image; two empty words for one that `image_tag` did not make."""
    name, __, project = tag.rpartition(":")
    target = name.removeprefix(NAMESPACE)
    return ("", "") if target == name or "/" in target or not project else (target, project)


def file_word(tag: str) -> str:
    """Return the name of an image as a part of a file's name."""
    return tag.removeprefix(NAMESPACE).replace("/", "_").replace(":", ".")


def unique_name(word: str, identity: str) -> str:
    """Return a name of a project that people recognise by `word`, and that no other `identity` has."""
    slug = re.sub(r"[^a-z0-9]+", "-", word.lower())[:_LONGEST].strip("-")
    return f"{slug or 'project'}-{hashlib.sha256(identity.encode('utf-8', 'replace')).hexdigest()[:6]}"


def check_name(name: str, where: str) -> str:
    """Return the name that somebody chose for a project; `SpecError` unless it can be a tag."""
    if not _NAME.fullmatch(name):
        raise SpecError(
            _("{name!r} cannot name a project: 1 to 100 letters, digits, '_' or '-', and not '-' first").format(
                name=name
            ),
            where=where,
            next_step=_("choose another, or unset {where}: the folder gives a name").format(where=where),
        )
    return name
