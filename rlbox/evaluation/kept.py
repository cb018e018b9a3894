"""What is known of each answer: one file a problem and answer, keyed by lock and weights, never half-written."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlbox.evaluation.lock import EvaluationLock
from rlbox.foreign import parse_json
from rlbox.system.files import write_atomic

_MOST = 64 << 20
ASKED = ("problem", "number", "ask", "text", "finish", "tokens")
"""What a row has of the answer; the rest is its verdict."""


def rows_keys(lock: EvaluationLock) -> dict[str, str]:
    """Return what the rows of each suite are kept under: what decides their scores, and the weights."""
    weights = lock.subject.get("weights", "")
    return {suite: f"{lock.of([suite]).digest}:{weights}" for suite in lock.parts["suites"]}


class KeptRows:
    """The rows of one checkpoint below `folder`; a row of another key than its suite's counts as not there."""

    def __init__(self, folder: Path, keys: Mapping[str, str]) -> None:
        self.folder, self._keys = folder / "per_problem", keys

    def read(self, suite: str, problem: str, number: int) -> dict[str, Any] | None:
        """Return what was kept under this key; nothing where it is torn or another's.

        A row without `outcome` is an answer that was not judged, or whose sandbox failed: it is not asked for again.
        """
        path = self._path(suite, problem, number)
        try:
            if path.stat().st_size > _MOST:
                return None
            found = parse_json(path.read_bytes())
        except (OSError, ValueError):
            return None
        known = isinstance(found, dict) and (found.get("key"), found.get("problem")) == (self._keys.get(suite), problem)
        if not known:
            return None
        return {name: found[name] for name in ASKED if name in found} if found.get("outcome") == "sandbox" else found

    def write(self, suite: str, row: dict[str, Any]) -> dict[str, Any]:
        """Keep a row and return it with its key."""
        path = self._path(suite, row["problem"], row["number"])
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {**row, "key": self._keys[suite]}
        write_atomic(path, json.dumps(kept, indent=1, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
        return kept

    def all_of(self, problem: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield a suite and a row for each answer to a problem, whatever its number."""
        for suite in self._keys:
            number = 0
            while row := self.read(suite, problem, number):
                yield suite, row
                number += 1

    def _path(self, suite: str, problem: str, number: int) -> Path:
        """Names of problems are others': a name that is changed or cut carries the digest of the whole one."""
        plain = re.sub(r"[^A-Za-z0-9._-]", "_", problem)[:100].lstrip(".") or "_"
        mark = "" if plain == problem else "-" + hashlib.sha256(problem.encode("utf-8", "replace")).hexdigest()[:10]
        return self.folder / suite / f"{plain}{mark}.{number}.json"
