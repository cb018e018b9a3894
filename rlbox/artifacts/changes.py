"""What a new lock has that the one before had not, and what it holds."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from rlbox.errors import SpecError, WorkFailed
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.target.lock import Lock

_MOST_NAMED = 8


def refuse_drift(target: str, before: Lock | None, lock: Lock) -> None:
    """Raise `WorkFailed`, with what changed, unless the lock is the one before."""
    if before is None or before.text() != lock.text():
        raise WorkFailed(
            _("the lock of target {target} drifted: its sources no longer offer what it names\n{lock_diff}").format(
                target=target, lock_diff=lock_diff(before.text() if before else "", lock.text())
            ),
            next_step=f"rlbox lock {target} --upgrade {_drifted(before, lock)}".rstrip(),
        )


def _drifted(before: Lock | None, lock: Lock) -> str:
    """Return the names of what is not as before, which a lock that fits its spec keeps; nothing for all of it."""
    old, new = (set(_rows(one.text())) if one else set() for one in (before, lock))
    names = sorted({name for name, *__ in old ^ new} & {*lock.names(), *(before.names() if before else ())})
    return " ".join(names) if len(names) <= _MOST_NAMED else ""


def refuse_unknown(packages: Sequence[str], before: Lock | None, lock: Lock) -> None:
    """Raise `SpecError` for a package that neither lock has."""
    found = {name for known in (before, lock) if known for name in known.names()}
    if unknown := sorted(set(packages) - found):
        near = difflib.get_close_matches(unknown[0], found, n=1)
        raise SpecError(
            _("the lock has no package {unknown!r}{near}").format(
                unknown=unknown[0], near=_(" (did you mean {near!r}?)").format(near=near[0]) if near else ""
            ),
            next_step=f"rlbox show {lock.target}",
        )


def _rows(text: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of a lock that are about something with a name, each behind that name."""
    for line in text.split("\n"):
        row = line.strip().rstrip(",")
        if row.startswith('{"name"') and row.endswith("}"):
            yield str(parse_json(row)["name"]), row


def lock_diff(old: str, new: str) -> str:
    """Return what changed, a line a file of the lock: its name, its version, the beginning of its sha256."""

    def short(text: str) -> list[str]:
        lines = []
        for line in text.split("\n"):
            row = line.strip().rstrip(",")
            data = parse_json(row) if row.startswith('{"name"') and row.endswith("}") else {}
            words = (data["name"], data.get("version", ""), data["sha256"][:12]) if "sha256" in data else (row,)
            lines.append(" ".join(word for word in words if word))
        return lines

    rows = difflib.unified_diff(short(old), short(new), "lock.json", "lock.json (now)", lineterm="", n=0)
    return "\n".join(line for line in rows if not line.startswith("@@"))


def group_counts(lock: Lock) -> dict[str, int]:
    """Return how many packages each group has; groups of the stack only where they have some."""
    counts = {"os": len(lock.debs), "runtime": len(lock.runtime.packages)}
    counts |= {group.name: len(group.packages) for group in (lock.build, *lock.groups) if group.packages}
    return counts | ({"compile": len(_compile_sizes(lock))} if lock.compiled else {})


def group_sizes(lock: Lock) -> dict[str, int]:
    groups = (lock.runtime, lock.build, *lock.groups)
    return {
        "os": sum(deb.size for deb in lock.debs),
        **{group.name: sum(package.size for package in group.packages) for group in groups},
    } | ({"compile": sum(_compile_sizes(lock).values())} if lock.compiled else {})


def _compile_sizes(lock: Lock) -> dict[str, int]:
    rows = [row for one in lock.compiled for row in (one.source, *one.tools)]
    return {row.sha256: row.size for row in (*lock.toolchain, *rows)}
