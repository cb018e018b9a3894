"""Apply source patches by content: `apply_patches.py MANIFEST` changes this machine, or the tree below `--root`.

With `--layers IN --out OUT` it reads an image's layers, folders of IN that the manifest names, and writes each changed
file below OUT. Every file ends in one of four states: applied, applied already, upstream has it, conflict; or its patch
is skipped, and the reason said. A conflict ends it with 1, and nothing is written. The record names every file with its
checksums and what stood there: `--reverse` restores the bytes. The manifest is what rlbox/fixes/patches.py writes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from unified_diff import NO_FILE, Change, Conflict, Edit, fit, lines_of, parse

RECORD = "opt/rlbox/share/patches.json"
FITS = {"applied": "applies", "restored": "can be restored"}  # where nothing is written
SHOWN = 80  # characters of a file that a message repeats
LINKS = 40  # links followed for one path; source: Linux, path_resolution(7)


class Tree:
    """Files of an image or a machine, topmost layer first; changes are kept until `save`."""

    def __init__(self, roots: list[Path], out: Path) -> None:
        self.roots, self.out = roots, out
        self.changed: dict[str, bytes | None] = {}
        self.modes: dict[str, int] = {}

    def place(self, path: str) -> Path | None:
        """Return where `path` is, a link as such."""
        return next((root / path for root in self.roots if os.path.lexists(root / path)), None)

    def real(self, path: str) -> str:
        """Return `path` with every link followed, inside the tree."""
        done: list[str] = []
        todo, left = path.split("/")[::-1], LINKS
        while todo:
            part = todo.pop()
            if part in ("", ".", ".."):
                del done[len(done) - (part == "..") :]
                continue
            place = self.place("/".join([*done, part]))
            if place is None or not place.is_symlink():
                done.append(part)
                continue
            left -= 1
            if not left:
                raise Conflict("its links go round in a circle")
            to = os.readlink(place)
            done = [] if to.startswith("/") else done
            todo += to.split("/")[::-1]
        return "/".join(done)

    def read(self, path: str) -> bytes | None:
        """Return the bytes of a file as changed so far; None when there is none."""
        if path in self.changed:
            return self.changed[path]
        place = self.place(path)
        try:
            return place.read_bytes() if place and place.is_file() else None
        except OSError as error:
            raise Conflict(f"cannot be read: {error.strerror}") from error

    def save(self) -> None:
        """Write every change: all files beside their places first, so that one that cannot be written stops all."""
        written: list[Path] = []
        for path, data in self.changed.items():
            try:
                written.append(self.out / path)
                if data is not None:
                    self._write(path, data)
            except OSError as error:
                for place in written:
                    temporary(place).unlink(missing_ok=True)
                raise Conflict(f"{path}: cannot be written: {error.strerror}") from error
        for place, data in zip(written, self.changed.values(), strict=True):
            if data is None:
                place.unlink()
            else:
                temporary(place).replace(place)  # never through a hard link into a package cache

    def _write(self, path: str, data: bytes) -> None:
        place, target = self.place(path), temporary(self.out / path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        facts = place.stat() if place else None
        if facts and (facts.st_uid, facts.st_gid) != (os.geteuid(), os.getegid()):
            os.chown(target, facts.st_uid, facts.st_gid)
        target.chmod(facts.st_mode & 0o7777 if facts else self.modes.get(path, 0o644))


def temporary(path: Path) -> Path:
    """Return where a file is written before it takes its place."""
    return path.with_name(f".{path.name}.rlbox-patch")


def decoded(data: bytes) -> list[str]:
    """Return the lines of a file, every byte and line end as it is."""
    return lines_of(data.decode("utf-8", "surrogateescape"))


def encoded(lines: Iterable[str]) -> bytes:
    """Return the bytes of lines from `decoded`."""
    return "".join(lines).encode("utf-8", "surrogateescape")


def checksum(data: bytes | None) -> str:
    """Return the sha256 of a file, empty when there is none."""
    return "" if data is None else hashlib.sha256(data).hexdigest()


# ---- applying ----


def patch_files(tree: Tree, patch: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what became of each file that a patch is about, as rows of the record."""
    if patch.get("skip"):
        return [row(patch["into"], "skipped", patch["skip"])]
    try:
        changes = parse(patch["diff"] or diff_from(tree, patch.get("diff_from", "").lstrip("/")))
    except Conflict as conflict:
        return [row(patch["into"], "conflict", str(conflict))]
    if not changes:
        return [row(patch["into"], "conflict", "this is no unified diff")]
    return [patch_file(tree, patch, change) for change in changes]


def diff_from(tree: Tree, path: str) -> str:
    """Return a diff that lies in the tree itself."""
    if (data := tree.read(path) if path else None) is None:
        raise Conflict(f"there is no diff /{path}")
    return data.decode("utf-8", "surrogateescape")


def row(path: str, state: str, why: str = "", **further: Any) -> dict[str, Any]:
    """Return one row of the record."""
    return {"path": path, "state": state, "why": why, **further}


def patch_file(tree: Tree, patch: dict[str, Any], change: Change) -> dict[str, Any]:
    """Change one file and return its row."""
    named = change.old if change.new == NO_FILE else change.new
    asked = "/".join([patch["into"].strip("/"), *named.split("/")[patch.get("strip", 1) :]])
    path = asked.lstrip("/")
    try:
        path = tree.real(path)
        data = tree.read(path)
        if change.new == NO_FILE:
            raise Conflict("a patch cannot remove a file")
        if change.old == NO_FILE:
            return new_file(tree, path, data, change)
        if data is None:
            if patch.get("absent"):
                return row(path, "skipped", patch["absent"])
            raise Conflict("there is no such file")
        return changed_file(tree, path, data, patch, change)
    except Conflict as conflict:
        return row(path, "conflict", f"{conflict}{made_for(patch, named)}", sha256_before=checksum(tree.read(path)))


def made_for(patch: dict[str, Any], named: str) -> str:
    """Return in words what a patch was made for, where that is known."""
    known = patch.get("made_from", {}).get("/".join(named.split("/")[patch.get("strip", 1) :]), "")
    words = f"{patch.get('made_for', '')}{f' (sha256 {known[:12]})' if known else ''}"
    return f"; made for {words}" if words else ""


def new_file(tree: Tree, path: str, data: bytes | None, change: Change) -> dict[str, Any]:
    """Make the file that a diff adds."""
    wanted = encoded(text for hunk in change.hunks for text in hunk.side("+"))
    if data == wanted:
        return row(path, "applied already", sha256_before=checksum(data))
    if data is not None or tree.place(path):
        raise Conflict("there is such a file already, with other content")
    tree.changed[path], tree.modes[path] = wanted, change.mode
    folders = [str(folder) for folder in Path(path).parents if tree.place(str(folder)) is None]
    sums = {"sha256_before": "", "sha256_after": checksum(wanted)}
    return row(path, "applied", "a new file", new=True, folders=folders, **sums)


def changed_file(tree: Tree, path: str, data: bytes, patch: dict[str, Any], change: Change) -> dict[str, Any]:
    """Apply the hunks to a file, unless it has them, or what upstream did in their place."""
    lines, before = decoded(data), checksum(data)
    if applied_already(lines, change, patch.get("marker", "")):
        return row(path, "applied already", sha256_before=before)
    upstream = re.search(patch["upstream_has"], "".join(lines), re.MULTILINE) if patch.get("upstream_has") else None
    if upstream:
        seen = upstream[0].strip()[:SHOWN]
        why = f"the file holds {seen!r}" if seen else "nothing in the file is left to repair"
        return row(path, "upstream has it", why, sha256_before=before)
    edits = fit(lines, change.hunks)
    for edit in edits:
        lines[edit.place : edit.place + len(edit.was)] = edit.now
    tree.changed[path] = encoded(lines)
    kept = [{"line": edit.place + 1, "was": "".join(edit.was), "now": "".join(edit.now)} for edit in edits]
    why = f"{len(edits)} hunk{'s' if len(edits) > 1 else ''}{told(edits, change)}"
    return row(path, "applied", why, sha256_before=before, sha256_after=checksum(tree.changed[path]), edits=kept)


def applied_already(lines: list[str], change: Change, marker: str) -> bool:
    """Return whether it has the hunks; where both ways fit, the marker tells, then the nearer, then the longer."""
    try:
        back = fit(lines, [hunk.inverted() for hunk in change.hunks])
    except Conflict:
        return False
    try:
        forth = fit(lines, change.hunks)
    except Conflict:
        return True
    added = [text for hunk in change.hunks for mark, text in hunk.body if mark == "+"]
    if marker and any(marker in text for text in added):
        return True
    costs = [(sum(edit.fuzz // 2 for edit in edits), sum(edit.off for edit in edits)) for edits in (back, forth)]
    grows = sum(len(edit.was) - len(edit.now) for edit in back)
    ends = sum(edit.fuzz for edit in forth) - sum(edit.fuzz for edit in back)
    return costs[0] < costs[1] or (costs[0] == costs[1] and (grows, ends) > (0, 0))


def told(edits: list[Edit], change: Change) -> str:
    """Return in words which hunks were found elsewhere, or among other neighbours."""
    notes, grown = [], 0
    for number, (edit, hunk) in enumerate(zip(edits, change.hunks, strict=True), 1):
        if edit.fuzz > 1:
            notes.append(f"hunk {number} at line {edit.place + 1}, its neighbours differ")
        elif edit.place - grown != hunk.old:
            notes.append(f"hunk {number} at line {edit.place + 1} instead of {hunk.old + grown + 1}")
        grown += len(edit.now) - len(edit.was)
    return f" ({'; '.join(notes)})" if notes else ""


# ---- taking back ----


def reverse_file(tree: Tree, entry: dict[str, Any]) -> dict[str, Any]:
    """Put back what stood in a file before a patch, and return its row."""
    path, data = entry["path"], tree.read(entry["path"])
    try:
        if data is None:
            return row(path, "gone", "there is no such file any more")
        if entry.get("new"):
            if checksum(data) != entry["sha256_after"]:
                raise Conflict("it was changed since the patch made it")
            tree.changed[path] = None
            return row(path, "restored", "removed", folders=entry["folders"])
        lines = decoded(data)
        for edit in reversed(entry["edits"]):
            restore(lines, edit)
        tree.changed[path] = encoded(lines)
        same = checksum(tree.changed[path]) == entry["sha256_before"]
        return row(path, "restored", "as it was" if same else "the patch alone: the file was changed since, too")
    except Conflict as conflict:
        return row(path, "conflict", str(conflict))


def restore(lines: list[str], edit: dict[str, Any]) -> None:
    """Take back one edit, at its place or where its lines have moved to."""
    now, was, place = lines_of(edit["now"]), lines_of(edit["was"]), edit["line"] - 1
    found = [at for at in range(len(lines) - len(now) + 1) if lines[at : at + len(now)] == now]
    found = [at for at in found if now or at == place]
    if not found:
        raise Conflict(f"what the patch put at line {edit['line']} is not there any more")
    place = min(found, key=lambda at: abs(at - place))
    lines[place : place + len(now)] = was


# ---- the record, and the command line ----


def keep_record(tree: Tree, patches: list[dict[str, Any]]) -> None:
    """Write the record: what an earlier run applied stays known as long as it is there."""
    before = known_record(tree)
    done = {(patch["name"], entry["path"]): entry for patch in before for entry in patch["files"]}
    for patch in patches:
        for index, entry in enumerate(patch["files"]):
            earlier = done.get((patch["name"], entry["path"]), {})
            if entry["state"] == "applied already" and earlier.get("state") == "applied":
                patch["files"][index] = earlier
    names = {patch["name"] for patch in patches}
    write_record(tree, [patch for patch in before if patch["name"] not in names] + patches)


def known_record(tree: Tree) -> list[dict[str, Any]]:
    """Return the patches of the record, none when there is no record."""
    data = tree.read(RECORD)
    return json.loads(data)["patches"] if data else []


def write_record(tree: Tree, patches: list[dict[str, Any]]) -> None:
    """Put the record among the changes; none is left when no patch is."""
    text = json.dumps({"schema": 1, "patches": patches}, indent=1) + "\n"
    if patches or tree.place(RECORD):
        tree.changed[RECORD] = text.encode() if patches else None


def apply_all(tree: Tree, manifest: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Apply the patches of a manifest, and return name and row of every file."""
    said, kept = [], []
    groups: dict[str, list[dict[str, Any]]] = {}
    for patch in manifest["patches"]:
        files = patch_files(tree, patch)
        said += [(patch["name"], entry) for entry in files]
        groups.setdefault(patch.get("fix") or patch["name"], []).extend([] if patch.get("skip") else files)
        kept.append({key: patch[key] for key in patch if key not in ("diff", "skip")} | {"files": files})
    for name, files in groups.items():
        if files and all(entry["state"] == "skipped" for entry in files):
            said.append((name, row(files[0]["path"], "conflict", "there is none of the files that it changes")))
    keep_record(tree, kept)
    return said


def reverse_all(tree: Tree, only: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """Take back the patches of the record, the last one first; `only` names patches or fixes."""
    said: list[tuple[str, dict[str, Any]]] = []
    left: list[dict[str, Any]] = []
    for patch in reversed(known_record(tree)):
        if only and not {patch["name"], patch.get("fix") or patch["name"]} & set(only):
            left.insert(0, patch)
            continue
        files = [entry for entry in patch["files"] if entry["state"] == "applied"]
        said += [(patch["name"], reverse_file(tree, entry)) for entry in reversed(files)]
    write_record(tree, left)
    return said


def main(words: list[str]) -> int:
    """Apply, or take back; 1 when a patch does not fit, after naming all that do not."""
    asked = parsed(words)
    manifest = {} if asked.reverse else json.loads(asked.manifest.read_text("utf-8"))
    layers = [asked.layers / name for name in reversed(manifest["layers"])] if asked.layers else []
    tree = Tree([asked.out or asked.root, *layers], asked.out or asked.root)
    said = reverse_all(tree, asked.only) if asked.reverse else apply_all(tree, manifest)
    wrong = [f"{name}: {entry['path']}: {entry['why']}" for name, entry in said if entry["state"] == "conflict"]
    if not wrong and not asked.check:
        try:
            tree.save()
            remove_folders(tree, said)
        except Conflict as conflict:
            wrong = [str(conflict)]
    for name, entry in said:
        if entry["state"] != "conflict":
            state = FITS.get(entry["state"], entry["state"]) if wrong or asked.check else entry["state"]
            print(f"{name}: {entry['path']}: {', '.join(filter(None, (state, entry['why'])))}")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def parsed(words: list[str]) -> argparse.Namespace:
    """Return the command line's words as values."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("manifest", nargs="?", type=Path)
    parser.add_argument("--root", type=Path, default=Path("/"), help="the tree to change")
    parser.add_argument("--layers", type=Path, help="folder of an image's layers, which the manifest names")
    parser.add_argument("--out", type=Path, help="folder that gets the changed files")
    parser.add_argument("--check", action="store_true", help="say what would be done")
    parser.add_argument("--reverse", action="store_true", help="take back what the record has")
    parser.add_argument("--only", action="append", default=[], help="patch or fix to take back")
    asked = parser.parse_args(words)
    if bool(asked.layers) != bool(asked.out) or asked.reverse == bool(asked.manifest) or (asked.reverse and asked.out):
        parser.error("give a manifest, or --reverse on a root; --layers and --out go together")
    return asked


def remove_folders(tree: Tree, said: list[tuple[str, dict[str, Any]]]) -> None:
    """Remove the folders that were made for files which are gone now."""
    for _, entry in said:
        for folder in entry.get("folders", []) if entry["state"] == "restored" else []:
            place = tree.out / folder
            if place.is_dir() and not any(place.iterdir()):
                place.rmdir()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
