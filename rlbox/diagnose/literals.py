"""The text that every line must hold for an expression to fit it: what a scan of a gigabyte looks for first."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from rlbox.spec.pattern import tokens

SHORTEST = 5
"""Bytes of an anchor; a shorter one is found everywhere, and costs more than it saves."""
_MOST = 24
_REPEATS = ("*", "?", "{")
_CLASSES = set("dDwWsSbBAzpP")


@dataclass(frozen=True, slots=True)
class _Part:
    """What an expression asks for: all the texts that it can be, or None; and texts of which each fit holds one."""

    exact: frozenset[str] | None
    needs: frozenset[str]


_NOTHING = _Part(None, frozenset())
_EMPTY = _Part(frozenset({""}), frozenset())


@functools.lru_cache(maxsize=4096)
def anchors(pattern: str) -> tuple[str, ...]:
    """Return texts, of which each line that `pattern` fits holds at least one; none where it asks for no text.

    They are as an expression that minds letter case finds them; an expression that does not has none.
    """
    parts = [part for _, part in tokens(pattern)]
    if any(part.startswith("(?") and "i" in part.partition(":")[0] for part in parts):
        return ()
    found, _ = _alternatives(parts, 0)
    best = _best(found)
    return tuple(sorted(best))


def _alternatives(parts: list[str], at: int) -> tuple[_Part, int]:
    """Return what alternatives up to the end of their group ask for, and where that end is."""
    ways = []
    while True:
        way, at = _sequence(parts, at)
        ways.append(way)
        if at >= len(parts) or parts[at] != "|":
            break
        at += 1
    if len(ways) == 1:
        return ways[0], at
    exacts = [way.exact for way in ways]
    exact = frozenset().union(*(e for e in exacts if e is not None)) if all(e is not None for e in exacts) else None
    bests = [_best(way) for way in ways]
    needs = frozenset().union(*bests) if all(bests) else frozenset()
    return _Part(exact if exact is not None and len(exact) <= _MOST else None, needs), at


def _sequence(parts: list[str], at: int) -> tuple[_Part, int]:
    needs: frozenset[str] = frozenset()
    run: frozenset[str] = frozenset({""})
    whole = True
    while at < len(parts) and parts[at] not in ("|", ")"):
        one, at = _one(parts, at)
        one, at = _repeated(parts, at, one)
        joined = _joined(run, one.exact) if one.exact is not None else None
        if joined is None:
            needs, run = _better(_better(needs, run), one.needs), frozenset({""})
            whole = False
        else:
            run = joined
    needs = _better(needs, run)
    return _Part(run if whole else None, needs), at


def _one(parts: list[str], at: int) -> tuple[_Part, int]:
    part = parts[at]
    if part.startswith("("):
        found, end = _alternatives(parts, at + 1)
        return found, end + 1
    if part in ("^", "$") or part in ("\\b", "\\B", "\\A", "\\z"):
        return _EMPTY, at + 1
    if part.startswith("["):
        letters = _letters(part)
        return (_Part(letters, frozenset()) if letters else _NOTHING), at + 1
    if part == ".":
        return _NOTHING, at + 1
    if part.startswith("\\"):
        if len(part) == 2 and part[1] not in _CLASSES and not part[1].isalnum():
            return _Part(frozenset({part[1]}), frozenset()), at + 1
        return (_Part(frozenset({"\t"}), frozenset()) if part == "\\t" else _NOTHING), at + 1
    return _Part(frozenset({part}), frozenset()), at + 1


def _repeated(parts: list[str], at: int, one: _Part) -> tuple[_Part, int]:
    if at >= len(parts) or parts[at][0] not in "*?+{":
        return one, at
    sign = parts[at]
    least = 1
    if sign[0] == "{":
        end = at
        while end < len(parts) and not parts[end].endswith("}"):
            end += 1
        text = "".join(parts[at : end + 1])
        if not text[1:2].isdigit():
            return one, at
        least, at = int(text[1:-1].split(",")[0] or 0), end
    at += 1
    if at < len(parts) and parts[at] == "?":
        at += 1
    if sign[0] == "+" or (sign[0] == "{" and least > 0):
        return _Part(None, _best(one)), at
    if sign[0] == "?" and one.exact is not None:
        return _Part(one.exact | {""}, frozenset()), at
    return _NOTHING, at


def _letters(part: str) -> frozenset[str]:
    inner = part[1:-1]
    if inner.startswith("^") or "-" in inner[1:-1] or "\\" in inner or len(inner) > 4 or ":" in inner:
        return frozenset()
    return frozenset(inner)


def _joined(left: frozenset[str], right: frozenset[str]) -> frozenset[str] | None:
    if len(left) * len(right) > _MOST:
        return None
    return frozenset(one + other for one in left for other in right)


def _best(part: _Part) -> frozenset[str]:
    exact = part.exact if part.exact is not None and "" not in part.exact else frozenset()
    return _better(part.needs, exact)


def _better(one: frozenset[str], other: frozenset[str]) -> frozenset[str]:
    """Return of two sets of texts the one that is worth more to look for."""
    return max(one, other, key=_worth)


def _worth(texts: frozenset[str]) -> float:
    if not texts or "" in texts:
        return -1.0
    return min(map(len, texts)) - len(texts) / 8
