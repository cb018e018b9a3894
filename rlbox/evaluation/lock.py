"""The evaluation fingerprint: all that decides a score, as one JSON document with a digest.

Two results with one lock measure the same thing. The weights, which a comparison is about, are the lock's `subject` and
not part of the digest; the machine is written elsewhere.
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
    """A field (dotted path) in which two locks differ, with both values; None where one lacks it."""

    field: str
    first: Any
    second: Any

    def __str__(self) -> str:
        return _("{field}: {first!r} and {second!r}").format(field=self.field, first=self.first, second=self.second)


class LocksDifferError(Exception):
    """Two results were made with different locks."""

    def __init__(self, differences: Sequence[LockDifference]) -> None:
        super().__init__(", ".join(difference.field for difference in differences))
        self.differences = differences


@dataclass(frozen=True, kw_only=True)
class EvaluationLock:
    """`parts` by name, as JSON types; `subject` has the digest of the weights that were evaluated."""

    parts: Mapping[str, Any]
    subject: Mapping[str, Any]

    @property
    def digest_without_weights(self) -> str:
        return digest_json(self.parts)

    def filter_suites(self, suites: Collection[str]) -> EvaluationLock:
        def select(part: Mapping[str, Any]) -> dict[str, Any]:
            return {suite: value for suite, value in part.items() if suite in suites}

        parts = {**self.parts, **{name: select(self.parts[name]) for name in ("suites", "decoding", "prompts")}}
        sandbox = self.parts["sandbox"]
        parts["sandbox"] = {**sandbox, "limits": select(sandbox.get("limits", {}))}
        return EvaluationLock(parts=parts, subject=self.subject)

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "digest": self.digest_without_weights,
            "parts": dict(self.parts),
            "subject": dict(self.subject),
        }


def parse_lock(document: Any) -> EvaluationLock:
    """Return the lock of a JSON document; `ValueError` where it is none, or does not have the digest that it names."""
    if not isinstance(document, dict) or document.get("schema") != 1 or not isinstance(document.get("parts"), dict):
        raise ValueError(_("this is not an evaluation fingerprint"))
    missing = [name for name in LOCK_PARTS if name not in document["parts"]]
    if missing:
        raise ValueError(_("the evaluation fingerprint lacks {missing}").format(missing=", ".join(missing)))
    lock = EvaluationLock(parts=document["parts"], subject=document.get("subject") or {})
    if lock.digest_without_weights != document.get("digest"):
        raise ValueError(_("the evaluation fingerprint was changed: its digest does not match"))
    return lock


def digest_json(value: Any) -> str:
    return hashlib.sha256(_canonical_json(value)).hexdigest()


def _canonical_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def diff_locks(first: EvaluationLock, second: EvaluationLock) -> list[LockDifference]:
    """Return every field in which two locks differ, by name; an empty table by the fields that the other has in it."""
    old, new = dict(_iterate_fields(first.parts)), dict(_iterate_fields(second.parts))
    changed = [
        field
        for field in sorted({*old, *new})
        if field not in old or field not in new or _canonical_json(old[field]) != _canonical_json(new[field])
    ]
    return [
        LockDifference(field=field, first=old.get(field), second=new.get(field))
        for field in changed
        if not any(other.startswith(f"{field}.") for other in changed)
    ]


def exclude_allowed_differences(
    differences: Sequence[LockDifference], allowed_fields: Sequence[str]
) -> list[LockDifference]:
    """Return the differences outside of `allowed_fields`, each of which covers all fields below it."""
    return [
        difference
        for difference in differences
        if not any(difference.field == name or difference.field.startswith(f"{name}.") for name in allowed_fields)
    ]


def _iterate_fields(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _iterate_fields(value, f"{name}.")
        else:
            yield name, value
