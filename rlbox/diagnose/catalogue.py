"""What the catalogue of fixes knows of failures: signatures, and which of them an event shows."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from rlbox.diagnose.literals import anchors
from rlbox.diagnose.read.event import Event
from rlbox.logs.patterns import compile_pattern
from rlbox.spec.pattern import check_pattern

Role = Literal["root", "relayed", "victim", "death", "benign"]
_ORDER: dict[str, int] = {"root": 0, "victim": 1, "death": 2, "relayed": 3, "benign": 4}
_TAIL = 12


@dataclass(frozen=True, slots=True)
class LogSignature:
    """One way in which a cause shows: `cause` is its id, `fix` that of the fix which tells of it.

    `near` is an expression that a frame of the traceback, the lane or the statement's own place must fit, `far` one
    that none of them may. Of two that fit one statement the one of higher `rank` counts, then the one that asks for
    more. `needs` are the texts of which a line that it fits holds one, where somebody has worked them out. `anchor` are
    texts that a scan looks for, where the line holds none of those that it looks for anyway.
    """

    cause: str
    fix: str
    title: str
    remedy: str
    pattern: str
    unless: str = ""
    near: str = ""
    far: str = ""
    role: Role = "root"
    rank: int = 0
    after: str = ""
    anchor: tuple[str, ...] = ()
    needs: tuple[str, ...] | None = None

    @property
    def needed(self) -> tuple[str, ...]:
        """The texts of which a line that it fits holds one."""
        return anchors(self.pattern) if self.needs is None else self.needs

    @property
    def exactness(self) -> tuple[int, int, int]:
        """How much it asks for: its rank, whether it asks for a place, and the length of the text that it needs."""
        return self.rank, bool(self.near), max(map(len, self.needed), default=0)


@dataclass(frozen=True, slots=True)
class Match:
    """A signature that an event shows, in its statement at the place `statement` of them.

    `tail` is the place, among the lines that the statement goes on with, of the one that alone shows it; -1 where the
    statement's own line does, or only all of them together.
    """

    signature: LogSignature
    statement: int
    tail: int = -1


class SignatureSet:
    """All signatures, found by the text that each of them needs."""

    def __init__(self, signatures: Iterable[LogSignature]) -> None:
        self.signatures = tuple(signatures)
        self._by_anchor: dict[str, list[LogSignature]] = defaultdict(list)
        self._always: list[LogSignature] = []
        for signature in self.signatures:
            for anchor in signature.needed:
                self._by_anchor[anchor].append(signature)
            if not signature.needed:
                self._always.append(signature)
        self._anchors = tuple(sorted(self._by_anchor))

    @functools.cached_property
    def _set(self) -> Any:
        """The anchors as a set of RE2, which takes longer to make than a healthy log of some MB to read."""
        return _set_of(self._anchors)

    @property
    def anchors(self) -> tuple[str, ...]:
        """The texts of which a line holds one when a signature fits it."""
        return self._anchors

    @property
    def scanned(self) -> tuple[str, ...]:
        """The texts that a scan looks for besides those that it looks for anyway; what is harmless it need not find."""
        sought = (one for one in self.signatures if one.role != "benign")
        return tuple(sorted({anchor for signature in sought for anchor in signature.anchor}))

    def fitting(self, text: str) -> list[LogSignature]:
        """Return the signatures whose expressions fit a text, wherever that stands."""
        found = list(self._always)
        text = f"{text}\n{text.replace(chr(10), ' ')}" if "\n" in text else text
        for index in sorted(self._set.Match(text) or ()) if self._set else ():
            found += self._by_anchor[self._anchors[index]]
        return [one for one in dict.fromkeys(found) if _fits(one, text)]

    def knows(self, text: str) -> bool:
        """Whether any signature fits a text."""
        return bool(self.fitting(text))

    def matches(self, event: Event, spoken: str = "") -> list[Match]:
        """Return what an event shows, the best first: a root's before a victim's, the first statement's first.

        `spoken` are words of the whole log that say which programs it is of.
        """
        found = []
        around: tuple[str, ...] = ()
        for index, (_, text, _, tail) in enumerate(event.statements()):
            lines = [text, *(line for _, line in tail[:_TAIL])]
            whole = "\n".join(lines)
            for signature in self.fitting(whole):
                if signature.near or signature.far:
                    around = around or _around(event, spoken)
                    if not _is_at_home(signature, around):
                        continue
                pattern = compile_pattern(signature.pattern)
                place = next((at for at, line in enumerate(lines) if pattern.fits(line)), 0)
                found.append(Match(signature, index, place - 1))
        return sorted(found, key=_precedence)


def _set_of(texts: Sequence[str]) -> Any:
    """Return texts as a set of RE2, which tells those that a line holds; None of none."""
    import re2

    if not texts:
        return None
    options = re2.Options()
    options.never_capture = True
    options.max_mem = 256 << 20
    found = re2.Set.SearchSet(options)
    for text in texts:
        found.Add(re2.escape(text))
    found.Compile()
    return found


def _precedence(match: Match) -> tuple[int, ...]:
    signature = match.signature
    less = (-int(value) for value in signature.exactness)
    return (_ORDER[signature.role], match.statement, not signature.cause, *less)


def _fits(signature: LogSignature, text: str) -> bool:
    pattern, unless = compile_pattern(signature.pattern), signature.unless
    if not any(pattern.fits(line) for line in text.split("\n")):
        return False
    return not (unless and compile_pattern(unless).fits(text))


def _is_at_home(signature: LogSignature, around: tuple[str, ...]) -> bool:
    near = compile_pattern(signature.near) if signature.near else None
    far = compile_pattern(signature.far) if signature.far else None
    if near and not any(near.fits(text) for text in around):
        return False
    return not (far and any(far.fits(text) for text in around))


def _around(event: Event, spoken: str) -> tuple[str, ...]:
    """Return where an event stands: each frame as `file:function`, the lane, the logger's place, its line, the log."""
    row = event.row
    frames = dict.fromkeys(f"{frame.file}:{frame.function}" for frame in event.frames)
    tail = [line for _, line in event.tail if line.startswith("File ")]
    return (*frames, *tail, f"lane {row.lane}", f"source {row.source}", row.text[:300], spoken)


def signatures_of(fixes: Iterable[Mapping[str, Any]]) -> tuple[LogSignature, ...]:
    """Return the signatures of fixes (`id`, `title`, `failure`, `remedy`, `heals`, `signature`, from TOML or JSON).

    The title of a signature is the failure that its fix tells of, else what the fix is called.
    """
    found = []
    for fix in fixes:
        heals = fix.get("heals") or [""]
        for row in fix.get("signature", ()):
            role: Role = row.get("role") or ("benign" if fix.get("benign") else "root")
            found.append(
                LogSignature(
                    cause=row.get("cause", heals[0]),
                    fix=fix["id"],
                    title=fix.get("failure") or fix.get("title", ""),
                    remedy=fix.get("remedy", ""),
                    pattern=row["pattern"],
                    unless=row.get("unless", ""),
                    near=row.get("near", ""),
                    far=row.get("far", ""),
                    role=role,
                    rank=row.get("rank", 0),
                    after=row.get("after", ""),
                    anchor=tuple(row.get("anchor", ())),
                )
            )
    return tuple(found)


def rows_of(data: object, *, own: bool = False) -> tuple[LogSignature, ...]:
    """Return signatures that a run carries as `rows_json` wrote them; none of what is no list.

    `own`: they are of this user's cache, where nobody else writes.
    """
    if not isinstance(data, list):
        return ()
    try:
        found = tuple(
            LogSignature(
                **{**row, "anchor": tuple(row.get("anchor", ())), "needs": tuple(row.get("needs") or ()) or None}
            )
            for row in data
        )
        return found if own else tuple(replace(one, needs=None) for one in found if check_pattern(one.pattern))
    except (TypeError, AttributeError, ValueError):
        return ()


def rows_json(signatures: Sequence[LogSignature]) -> str:
    """Return signatures as JSON, a row each."""
    return json.dumps([asdict(one) for one in signatures], ensure_ascii=False, separators=(",", ":"))
