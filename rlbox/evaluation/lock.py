"""What decides a score, all of it, as one document with a digest: the evaluation lock.

Two results with one lock are of the same thing; the machine they were made on is written beside it. The weights, which
a comparison is about, are the lock's `subject` and no part of the digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlbox.i18n import _

LOCK_PARTS = ("suites", "prompts", "tokenizer", "decoding", "engine", "extraction", "sandbox", "scoring")
"""What every lock has; a result that lacks one is not comparable with anything."""


@dataclass(frozen=True, kw_only=True)
class LockDifference:
    """A field in which two locks differ, dotted, with both values as JSON types; None where one lacks it."""

    field: str
    one: Any
    other: Any


@dataclass(frozen=True, kw_only=True)
class EvaluationLock:
    """`parts` by name, JSON types alone; `subject` says which weights were judged, by content."""

    parts: Mapping[str, Any]
    subject: Mapping[str, Any]

    @property
    def digest(self) -> str:
        return content_digest(self.parts)

    def of(self, suites: Collection[str]) -> EvaluationLock:
        """Return it with what it says of some suites alone."""

        def kept(name: str, part: Any) -> Any:
            if name in ("suites", "decoding", "prompts"):
                return {suite: row for suite, row in part.items() if suite in suites}
            if name == "sandbox":
                limits = {suite: row for suite, row in part.get("limits", {}).items() if suite in suites}
                return {**part, "limits": limits}
            return part

        return EvaluationLock(parts={name: kept(name, part) for name, part in self.parts.items()}, subject=self.subject)

    def as_json(self) -> dict[str, Any]:
        return {"schema": 1, "digest": self.digest, "parts": dict(self.parts), "subject": dict(self.subject)}


def parse_lock(document: Any) -> EvaluationLock:
    """Return a lock that was written; `ValueError` where it is none, or is not what its digest says."""
    if not isinstance(document, dict) or document.get("schema") != 1 or not isinstance(document.get("parts"), dict):
        raise ValueError(_("this is no evaluation lock"))
    missing = [name for name in LOCK_PARTS if name not in document["parts"]]
    if missing:
        raise ValueError(_("the evaluation lock lacks {missing}").format(missing=", ".join(missing)))
    lock = EvaluationLock(parts=document["parts"], subject=document.get("subject") or {})
    if lock.digest != document.get("digest"):
        raise ValueError(_("the evaluation lock was changed: its digest is another"))
    return lock


def canonical_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def content_digest(value: Any) -> str:
    return hashlib.sha256(canonical_json(value)).hexdigest()


def diff_locks(one: EvaluationLock, other: EvaluationLock) -> list[LockDifference]:
    """Return every field in which the parts of two locks differ, by name; an empty part by what fills it."""
    first, second = dict(_leaves(one.parts)), dict(_leaves(other.parts))
    found = [
        LockDifference(field=field, one=first.get(field), other=second.get(field))
        for field in sorted({*first, *second})
        if field not in first or field not in second or canonical_json(first[field]) != canonical_json(second[field])
    ]
    return [one for one in found if not any(other.field.startswith(f"{one.field}.") for other in found)]


def filter_disallowed(differences: Sequence[LockDifference], across: Sequence[str]) -> list[LockDifference]:
    """Return the differences that no name of `across` allows: a field, or all below it."""
    return [
        one for one in differences if not any(one.field == name or one.field.startswith(f"{name}.") for name in across)
    ]


def _leaves(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        name = f"{path}.{key}" if path else str(key)
        if isinstance(inner, Mapping) and inner:
            yield from _leaves(inner, name)
        else:
            yield name, inner
