"""Unified diffs by content: what a diff says, and where each of its hunks fits in a file, wherever it moved to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

HEAD = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
# What git says of a change that is more than lines, and that a layer above another one cannot hold.
UNFIT = re.compile(r"^((?:rename|copy) (?:from|to)|(?:old|new) mode|deleted file mode|GIT binary patch|Binary files) ?")
LEFT_OVER = re.compile(r"\+|-(?!-)")  # `-- ` is git's signature
NO_FILE = "/dev/null"
FUZZ = 2  # lines of context that may differ at either end of a hunk; source: patch(1), --fuzz


class Conflict(Exception):
    """A patch cannot be applied, or taken back."""


class Hunk(NamedTuple):
    """One hunk; `body` has a mark (space, minus, plus) and a line for each."""

    old: int
    new: int
    body: list[tuple[str, str]]

    def inverted(self) -> Hunk:
        """Return the hunk that takes this one back."""
        swap = {"-": "+", "+": "-"}
        return Hunk(self.new, self.old, [(swap.get(mark, mark), text) for mark, text in self.body])

    def side(self, mark: str) -> list[str]:
        """Return the lines before (`-`) or after (`+`)."""
        return [text for own, text in self.body if own in (" ", mark)]


class Change(NamedTuple):
    """What a diff does to one file."""

    old: str
    new: str
    mode: int
    hunks: list[Hunk]


class Edit(NamedTuple):
    """Lines replaced at a place of a file.

    `cut` lines of context at the head were left out; `fuzz` is 0 for a hunk found as it stands, 1 where ends of lines
    differ, more with less context; `off` tells how many lines away from where the diff has it.
    """

    place: int
    was: list[str]
    now: list[str]
    cut: int
    fuzz: int
    off: int


def lines_of(text: str) -> list[str]:
    """Return the lines with their ends; only a line feed ends one, as in git and patch(1)."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def bare(line: str) -> str:
    """Return the line without its end."""
    return line.rstrip("\n").rstrip("\r")


# ---- reading a diff ----


def parse(text: str) -> list[Change]:
    """Return what a unified diff does to each file; `Conflict` when it does more than change lines."""
    if all(line.endswith("\r\n") for line in lines_of(text) if line.startswith(("--- ", "+++ ", "@@ "))):
        text = text.replace("\r\n", "\n")  # the diff itself came through a machine with other line ends
    changes: list[Change] = []
    old, empty, mode, above = "", "", 0o644, ""
    lines = iter(joined(text))
    for line in lines:
        if LEFT_OVER.match(line) and above.startswith("@@ ") and not line.startswith("+++ "):
            raise Conflict(f"hunk {len(changes[-1].hunks)} of the diff has more lines than its head says")
        above = line
        if line.startswith("diff --git "):
            changes += [Change(NO_FILE, empty, mode, [])] if empty else []
            old, empty, mode = "", "", 0o644
            name = "b/" + bare(line).rpartition(" b/")[2]
        elif line.startswith("new file mode "):
            empty, mode = name, int(bare(line)[-3:], 8)
        elif unfit := UNFIT.match(line):
            raise Conflict(f"the diff has {unfit[1].strip()!r}, and only changed lines and new files can be applied")
        elif line.startswith("--- "):
            old = name_in(line)
        elif line.startswith("+++ "):
            changes.append(Change(old, name_in(line), mode, []))
            empty, mode = "", 0o644
        elif (head := HEAD.match(line)) and changes:
            changes[-1].hunks.append(read_hunk(lines, head, len(changes[-1].hunks) + 1))
    return changes + ([Change(NO_FILE, empty, mode, [])] if empty else [])


def joined(text: str) -> list[str]:
    """Return the lines of a diff; one that has no newline at the end of its file has none here either."""
    found: list[str] = []
    for line in lines_of(text):
        if line.startswith("\\") and found:
            found[-1] = bare(found[-1])
        else:
            found.append(line)
    return found


def name_in(line: str) -> str:
    """Return the file name of a `---` or `+++` line."""
    return bare(line[4:]).split("\t")[0].strip()


def read_hunk(lines: Iterator[str], head: re.Match[str], number: int) -> Hunk:
    """Return the hunk below its head."""
    old, new = (int(count or 1) for count in (head[2], head[4]))
    hunk = Hunk(max(int(head[1]), 1) - 1, max(int(head[3]), 1) - 1, [])
    while old > 0 or new > 0:
        line = next(lines, "")
        mark, text = (" ", "\n") if line == "\n" else (line[:1], line[1:])  # editors drop a blank at the end of a line
        old, new = old - (mark in " -"), new - (mark in " +")
        if mark not in (" ", "-", "+") or min(old, new) < 0:
            raise Conflict(f"the diff is cut short in hunk {number}")
        hunk.body.append((mark, text))
    return hunk


# ---- finding a hunk's place ----


def fit(lines: list[str], hunks: Iterable[Hunk]) -> list[Edit]:
    """Return the edits that apply every hunk, each on the lines as the one before left them."""
    done, edits, shift, start = list(lines), [], 0, 0
    for number, hunk in enumerate(hunks, 1):
        before = hunk.side("-")
        if done and not before:
            raise Conflict(f"hunk {number} has no line to find its place by")
        edit = locate(done, hunk, hunk.old + shift, start)
        if edit is None:
            raise Conflict(f"hunk {number} fits nowhere{nearest(done, before)}")
        done[edit.place : edit.place + len(edit.was)] = edit.now
        shift = edit.place - edit.cut - hunk.old + len(edit.now) - len(edit.was)
        start = edit.place + len(edit.now)
        edits.append(edit)
    return edits


def locate(lines: list[str], hunk: Hunk, expected: int, start: int) -> Edit | None:
    """Return the edit for a hunk: with all its context, then with less of it where only one place is left."""
    for fuzz, (cut, body) in enumerate(trimmed(hunk)):
        before = [text for mark, text in body if mark != "+"]
        for loose in (False, True):
            found = places(lines, before, loose)
            if found and (not fuzz or len(found) == 1):
                wanted = expected + cut
                place = min(found, key=lambda at: (at < start, abs(at - wanted), at))
                was = lines[place : place + len(before)]
                now = replaced(was, body, loose, place + len(before) == len(lines))
                return Edit(place, was, now, cut, 2 * fuzz + loose, abs(place - wanted))
    return None


def trimmed(hunk: Hunk) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """Yield the hunk whole, then with ever less context; how many lines its head has lost, and the rest."""
    marks = "".join(mark for mark, _ in hunk.body)
    head, tail = len(marks) - len(marks.lstrip(" ")), len(marks) - len(marks.rstrip(" "))
    yield 0, hunk.body
    cuts = [(low, high) for low in range(min(FUZZ, head) + 1) for high in range(min(FUZZ, tail) + 1)]
    for low, high in sorted(cuts[1:], key=sum):
        body = hunk.body[low : len(marks) - high]
        known = [mark for mark, text in body if mark != "+" and text.strip()]
        if "-" in known or len(known) > 1:
            yield low, body


def places(lines: list[str], wanted: list[str], loose: bool) -> list[int]:
    """Return where `wanted` stands in `lines`; `loose`: whatever ends a line."""
    if loose:
        lines, wanted = [bare(line) for line in lines], [bare(line) for line in wanted]
    size = len(wanted)
    return [place for place in range(len(lines) - size + 1) if lines[place : place + size] == wanted]


def replaced(was: list[str], body: list[tuple[str, str]], loose: bool, last: bool) -> list[str]:
    """Return the lines that take the place of `was`: its own where they stay, and `loose` with its ends of lines."""
    end = "\r\n" if loose and any(line.endswith("\r\n") for line in was) else "\n"
    own, now = iter(was), []
    for mark, text in body:
        kept = next(own) if mark != "+" else ""
        if mark == " ":
            now.append(kept)
        elif mark == "+":
            now.append(bare(text) + end if loose and text.endswith("\n") else text)
    closed = [line if line.endswith("\n") else line + end for line in now[:-1]]
    if now and not last and not now[-1].endswith("\n"):
        return [*closed, now[-1] + end]
    if now and last and loose:
        return [*closed, bare(now[-1]) + (end if was[-1].endswith("\n") else "")]
    return closed + now[-1:]


def nearest(lines: list[str], wanted: list[str]) -> str:
    """Return in words where most lines of `wanted` stand together, and what differs there first."""
    have, want = [line.strip() for line in lines], [line.strip() for line in wanted]
    scores = [sum(map(str.__eq__, have[at : at + len(want)], want)) for at in range(len(have))]
    best = max(scores, default=0)
    if not best:
        return "; no line of it is in the file"
    place = scores.index(best)
    pairs = zip(want, [*have[place : place + len(want)], *[""] * len(want)], strict=False)
    wrong = next(((wish, own) for wish, own in pairs if wish != own), None)
    there = f": {wrong[1]!r} stands where the diff has {wrong[0]!r}" if wrong else " but for blanks and ends of lines"
    return f"; nearest is line {place + 1}, {best} of {len(want)} lines fit{there}"
