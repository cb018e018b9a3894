"""Apply unified diffs to files of other build stages: `apply_patches.py INTO STRIP DIFF [INTO STRIP DIFF]...`.

The files lie below /in/NUMBER/, the layers of the image in order; what a diff changes is written below /out/, and
becomes a layer of its own. A hunk is found by its content, wherever it moved to. A diff that is applied already is
skipped and said; one that fits nowhere ends the build.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

HEAD = re.compile(r"^@@ -\d+(?:,(?P<old>\d+))? \+\d+(?:,(?P<new>\d+))? @@")
LAYERS, OUT = Path("/in"), Path("/out")


class NoFit(Exception):
    """A hunk fits nowhere in its file."""


def parse(text: str) -> list[tuple[str, str, list[tuple[list[str], list[str]]]]]:
    """Return for each file of a diff its old and new name and its hunks, each as the lines before and after."""
    files: list[tuple[str, str, list[tuple[list[str], list[str]]]]] = []
    joined: list[str] = []
    for line in lines_of(text):
        if line.startswith("\\") and joined:  # no newline at end of file
            joined[-1] = joined[-1].rstrip("\n")
        else:
            joined.append(line)
    lines, old = iter(joined), ""
    for line in lines:
        if line.startswith("--- "):
            old = name_in(line)
        elif line.startswith("+++ "):
            files.append((old, name_in(line), []))
        elif (head := HEAD.match(line)) and files:
            files[-1][2].append(read_hunk(lines, int(head["old"] or 1), int(head["new"] or 1)))
    return files


def lines_of(text: str) -> list[str]:
    """Return the lines with their ends; only a line feed ends one, as in git and patch(1)."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def name_in(line: str) -> str:
    """Return the file name of a `---` or `+++` line."""
    return line[4:].rstrip("\n").split("\t")[0].strip()


def read_hunk(lines: object, old: int, new: int) -> tuple[list[str], list[str]]:
    """Return the lines of one hunk before and after, `old` and `new` of them."""
    before: list[str] = []
    after: list[str] = []
    for line in lines:  # type: ignore[attr-defined]
        mark, text = line[:1], line[1:] or "\n"
        if mark in " -\n":
            before.append(text)
        if mark in " +\n":
            after.append(text)
        if len(before) >= old and len(after) >= new:
            break
    return before, after


def find(lines: list[str], wanted: list[str], start: int) -> int:
    """Return where `wanted` stands in `lines`, at or after `start` first; -1 when nowhere."""
    places = [*range(start, len(lines) - len(wanted) + 1), *range(min(start, len(lines)))]
    return next((place for place in places if lines[place : place + len(wanted)] == wanted), -1)


def apply(lines: list[str], hunks: list[tuple[list[str], list[str]]]) -> list[str]:
    """Return the lines with every hunk applied; `NoFit` when one fits nowhere."""
    done, start = list(lines), 0
    for number, (before, after) in enumerate(hunks, 1):
        if done and not before:
            raise NoFit(f"hunk {number} has no line to find its place by")
        place = find(done, before, start)
        if place < 0:
            raise NoFit(f"hunk {number} fits nowhere")
        done[place : place + len(before)] = after
        start = place + len(after)
    return done


def original(path: str) -> Path | None:
    """Return the file of the image at `path`: one changed before, else that of the topmost layer which has it."""
    layers = sorted(LAYERS.iterdir(), key=lambda layer: -int(layer.name)) if LAYERS.is_dir() else []
    return next((root / path for root in (OUT, *layers) if (root / path).is_file()), None)


def read(path: Path) -> str:
    """Return the text of a file, every byte and line end as it is."""
    return path.read_bytes().decode("utf-8", "surrogateescape")


def fits(lines: list[str], hunks: list[tuple[list[str], list[str]]]) -> bool:
    """Return whether every hunk fits."""
    try:
        apply(lines, hunks)
    except NoFit:
        return False
    return True


def grows(hunks: list[tuple[list[str], list[str]]]) -> bool:
    """Return whether the hunks add more lines than they take."""
    return sum(len(after) - len(before) for before, after in hunks) > 0


def patch_file(into: str, strip: int, old: str, new: str, hunks: list[tuple[list[str], list[str]]]) -> str:
    """Change one file below /out and return what was done to it."""
    inside = "/".join((new if new != "/dev/null" else old).split("/")[strip:])
    path = f"{into.strip('/')}/{inside}".lstrip("/")
    target = OUT / path
    if new == "/dev/null":
        raise NoFit(f"{path}: a layer cannot remove a file of another one")
    if old == "/dev/null":
        source, lines, mode = None, [], 0o644
    else:
        source = original(path)
        if source is None:
            raise NoFit(f"{path}: the image has no such file")
        lines, mode = lines_of(read(source)), source.stat().st_mode & 0o777
    try:
        changed = apply(lines, hunks)
    except NoFit as error:
        if not fits(lines, [(after, before) for before, after in hunks]):
            raise NoFit(f"{path}: {error}") from None
        return f"{path}: applied already"
    # Both ways fit where one side holds the other, as at an insertion: the longer side tells.
    if grows(hunks) and fits(lines, [(after, before) for before, after in hunks]):
        return f"{path}: applied already"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes("".join(changed).encode("utf-8", "surrogateescape"))
    target.chmod(mode)
    return f"{path}: {len(hunks)} hunks applied"


def main(words: list[str]) -> int:
    """Apply every diff; 1 when one does not fit, after naming all that do not."""
    wrong = []
    for into, strip, diff in zip(words[0::3], words[1::3], words[2::3], strict=True):
        files = parse(read(Path(diff)))
        if not files:
            wrong.append(f"{diff}: no unified diff")
        for old, new, hunks in files:
            try:
                print(f"{os.path.basename(diff)}: {patch_file(into, int(strip), old, new, hunks)}")
            except NoFit as error:
                wrong.append(f"{os.path.basename(diff)}: {error}")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
