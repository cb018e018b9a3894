"""Patches applied by a build step or in place: four states, all or nothing, and back again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fakes import load_cases
from patchbox import Box, diff_of, patch

CASES = load_cases("fixes", "test_apply_patches")
TEXT = "".join(f"{number}\n" for number in range(1, 21))
CHANGE = CASES["CHANGE"]
NEW = "--- /dev/null\n+++ b/pkg/new.py\n@@ -0,0 +1,2 @@\n+one\n+two\n"


@pytest.fixture
def box(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Box:
    """An image without a layer, and an empty root."""
    return Box(tmp_path, capsys)


def changed(text: str) -> str:
    return text.replace("\n4\n", "\nfour\n").replace("\n19\n", "\n19\n19.5\n")


# ---- layers of an image ----


def test_a_diff(box: Box) -> None:
    original = box.put(TEXT, layer=1, mode=0o755)
    assert box.layers(patch(CHANGE)) == (0, ["p: opt/pkg/a.py: applied, 2 hunks"], [])
    assert box.files(box.out) == {"opt/pkg/a.py": changed(TEXT).encode()}
    assert f"{(box.out / 'opt/pkg/a.py').stat().st_mode:o}" == "100755"
    assert original.read_text() == TEXT


def test_the_topmost_layer_counts(box: Box) -> None:
    box.put("old\n", layer=2)
    box.put(TEXT, layer=10)
    box.put(TEXT, layer=11, name="opt/pkg/b.py")
    assert box.layers(patch(CHANGE))[0] == 0


def test_a_link_of_another_layer_is_followed_to_its_file(box: Box) -> None:
    box.put(TEXT, layer=1, name="opt/lib/pkg/a.py")
    (box.folder / "in/2/opt").mkdir(parents=True)
    (box.folder / "in/2/opt/lib64").symlink_to("/opt/lib")
    assert box.layers(patch(CHANGE, into="/opt/lib64"))[0] == 0
    assert box.files(box.out) == {"opt/lib/pkg/a.py": changed(TEXT).encode()}


def test_the_record_names_states_checksums_and_reasons(box: Box) -> None:
    box.put(TEXT, layer=1)
    box.put("upstream's way\n", layer=1, name="opt/pkg/b.py")
    facts = {"reason": "r", "upstream": "PR 1", "marker": "# m", "made_for": "1.0", "upstream_has": "upstream's"}
    box.layers(
        patch(CHANGE, **facts),
        patch(CHANGE.replace("a.py", "b.py"), "q", **facts),
        patch(NEW, "s", skip="x is not in the stack"),
    )
    first, second, third = box.record(box.out)
    assert {key: first[key] for key in ("name", "reason", "upstream", "marker", "made_for")} == {
        "name": "p", "reason": "r", "upstream": "PR 1", "marker": "# m", "made_for": "1.0",
    }  # fmt: skip
    row = first["files"][0]
    assert (row["path"], row["state"], len(row["sha256_before"]), len(row["sha256_after"])) == (
        "opt/pkg/a.py", "applied", 64, 64,
    )  # fmt: skip
    assert row["edits"][0] == {"line": 3, "was": "3\n4\n5\n6\n", "now": "3\nfour\n5\n6\n"}
    assert [second["files"][0][key] for key in ("state", "why")] == ["upstream has it", 'the file holds "upstream\'s"']
    assert [third["files"][0][key] for key in ("state", "why")] == ["skipped", "x is not in the stack"]


# ---- four states ----


def test_a_hunk_is_found_wherever_it_moved(box: Box) -> None:
    moved = "new\n" * 30 + TEXT
    box.put(moved)
    assert box.apply(patch(CHANGE)) == (
        0,
        ["p: opt/pkg/a.py: applied, 2 hunks (hunk 1 at line 33 instead of 3; hunk 2 at line 48 instead of 18)"],
        [],
    )
    assert box.files()["opt/pkg/a.py"].decode() == changed(moved)


def test_neighbours_may_differ_where_one_place_is_left(box: Box) -> None:
    box.put(TEXT.replace("\n6\n", "\nsix\n"))
    code, out, _ = box.apply(patch(CHANGE))
    assert (code, out) == (0, ["p: opt/pkg/a.py: applied, 2 hunks (hunk 1 at line 3, its neighbours differ)"])
    assert box.files()["opt/pkg/a.py"].decode() == changed(TEXT.replace("\n6\n", "\nsix\n"))


def test_neighbours_differ_and_two_places_are_left(box: Box) -> None:
    box.put(TEXT.replace("\n6\n", "\nsix\n") + "3\n4\n5\n")
    code, _, err = box.apply(patch(CHANGE))
    assert code == 1
    assert err[0].startswith("p: opt/pkg/a.py: hunk 1 fits nowhere")


def test_a_patch_that_is_applied_already(box: Box) -> None:
    box.put(TEXT)
    assert box.apply(patch(CHANGE))[0] == 0
    before, record = box.files(), box.record()
    assert box.apply(patch(CHANGE)) == (0, ["p: opt/pkg/a.py: applied already"], [])
    assert box.files() == before
    assert box.record() == record, "what stood there is still known"


def test_a_patch_that_somebody_else_applied(box: Box) -> None:
    box.put(changed(TEXT) + "end\n")
    assert box.apply(patch(CHANGE)) == (0, ["p: opt/pkg/a.py: applied already"], [])
    assert box.files() == {"opt/pkg/a.py": (changed(TEXT) + "end\n").encode()}


def test_the_repaired_one_of_two_like_places_is_not_mistaken_for_the_other(box: Box) -> None:
    twice = "a\nbad\nz\n" * 2
    once = twice.replace("bad", "good", 1)
    diff = diff_of(once, "a\ngood\nz\n" * 2, context=1)
    box.put(once)
    assert box.apply(patch(diff))[0] == 0
    assert box.files()["opt/pkg/a.py"] == b"a\ngood\nz\n" * 2
    assert box.apply(patch(diff))[1] == ["p: opt/pkg/a.py: applied already"]


def test_upstream_has_it(box: Box) -> None:
    box.put(TEXT + "    if flag in known:\n")
    said = box.apply(patch(CHANGE, upstream_has=r"^ *if \w+ in known"))
    assert said == (0, ["p: opt/pkg/a.py: upstream has it, the file holds 'if flag in known'"], [])
    assert box.files() == {"opt/pkg/a.py": (TEXT + "    if flag in known:\n").encode()}


def test_a_patch_that_has_its_mark_is_no_upstream_change(box: Box) -> None:
    diff = diff_of("a\nb\n", "a\nc  # mark\nb\n")
    box.put("a\nb\n")
    for state in ("applied, 1 hunk", "applied already"):
        assert box.apply(patch(diff, marker="# mark", upstream_has="^c"))[1] == [f"p: opt/pkg/a.py: {state}"]


@pytest.mark.parametrize(
    ("diff", "message"),
    [
        (
            CHANGE.replace("-4\n", "-vier\n"),
            "p: opt/pkg/a.py: hunk 1 fits nowhere; nearest is line 3, 3 of 4 lines fit: "
            "'4' stands where the diff has 'vier'",
        ),
        (
            CHANGE.replace(" 19\n", " neunzehn\n"),
            "p: opt/pkg/a.py: hunk 2 fits nowhere; nearest is line 18, 1 of 2 lines fit: "
            "'19' stands where the diff has 'neunzehn'",
        ),
        (CHANGE.replace("pkg/a.py", "pkg/b.py"), "p: opt/pkg/b.py: there is no such file"),
        ("--- a/pkg/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n", "p: opt/pkg/a.py: a patch cannot remove a file"),
        (
            "--- a/pkg/a.py\n+++ b/pkg/a.py\n@@ -4,0 +5 @@\n+new\n",
            "p: opt/pkg/a.py: hunk 1 has no line to find its place by",
        ),
        (
            "--- a/pkg/a.py\n+++ b/pkg/a.py\n@@ -1 +1 @@\n-x y\n+z\n",
            "p: opt/pkg/a.py: hunk 1 fits nowhere; no line of it is in the file",
        ),
        ("hello\n", "p: /opt: this is no unified diff"),
        (CHANGE[:-10], "p: /opt: the diff is cut short in hunk 2"),
        (CHANGE + "+20.5\n", "p: /opt: hunk 2 of the diff has more lines than its head says"),
        (
            "diff --git a/pkg/a.py b/pkg/c.py\nsimilarity index 100%\nrename from pkg/a.py\nrename to pkg/c.py\n",
            "p: /opt: the diff has 'rename from', and only changed lines and new files can be applied",
        ),
        (NEW.replace("new.py", "a.py"), "p: opt/pkg/a.py: there is such a file already, with other content"),
    ],
)
def test_a_conflict(box: Box, diff: str, message: str) -> None:
    box.put(TEXT)
    assert box.apply(patch(diff)) == (1, [], [message])
    assert box.files() == {"opt/pkg/a.py": TEXT.encode()}
    assert box.record() == []


def test_a_conflict_says_what_the_patch_was_made_for(box: Box) -> None:
    box.put("other\n")
    facts = {"made_for": "verl 0.6.1", "made_from": {"pkg/a.py": "12345678abcdef"}}
    assert box.apply(patch(CHANGE, **facts))[2] == [
        "p: opt/pkg/a.py: hunk 1 fits nowhere; no line of it is in the file; made for verl 0.6.1 (sha256 12345678abcd)"
    ]


def test_all_or_nothing(box: Box) -> None:
    box.put(TEXT)
    box.put(TEXT, name="opt/pkg/b.py")
    wrong = CHANGE.replace("-4\n", "-vier\n").replace("a.py", "b.py")
    code, out, err = box.apply(patch(CHANGE), patch(wrong, "q"), patch(wrong, "r"))
    assert (code, out) == (1, ["p: opt/pkg/a.py: applies, 2 hunks"])
    assert [line.split(":")[0] for line in err] == ["q", "r"], "every conflict is named"
    assert box.files() == {"opt/pkg/a.py": TEXT.encode(), "opt/pkg/b.py": TEXT.encode()}


def test_a_check_writes_nothing(box: Box) -> None:
    box.put(TEXT)
    assert box.apply(patch(CHANGE), check=True) == (0, ["p: opt/pkg/a.py: applies, 2 hunks"], [])
    assert box.files() == {"opt/pkg/a.py": TEXT.encode()}
    assert box.record() == []


# ---- files that may be missing ----


def test_a_file_may_be_absent_when_the_patch_says_why(box: Box) -> None:
    box.put(TEXT)
    facts = {"fix": "f", "absent": "gone since 0.8"}
    said = box.apply(patch(CHANGE, "f/a", **facts), patch(CHANGE.replace("a.py", "b.py"), "f/b", **facts))
    assert said == (0, ["f/a: opt/pkg/a.py: applied, 2 hunks", "f/b: opt/pkg/b.py: skipped, gone since 0.8"], [])


def test_a_fix_that_finds_none_of_its_files_is_a_conflict(box: Box) -> None:
    facts = {"fix": "f", "absent": "gone since 0.8"}
    assert box.apply(patch(CHANGE, "f/a", **facts))[2] == [
        "f: opt/pkg/a.py: there is none of the files that it changes"
    ]


# ---- kinds of files ----


def test_a_new_file(box: Box) -> None:
    box.put(TEXT)
    diff = NEW.replace("pkg/", "pkg/deep/er/")
    assert box.apply(patch(diff)) == (0, ["p: opt/pkg/deep/er/new.py: applied, a new file"], [])
    assert box.files()["opt/pkg/deep/er/new.py"] == b"one\ntwo\n"
    assert box.apply(patch(diff))[1] == ["p: opt/pkg/deep/er/new.py: applied already"]
    assert box.reverse() == (0, ["p: opt/pkg/deep/er/new.py: restored, removed"], [])
    assert not (box.root / "opt/pkg/deep").exists()


def test_a_linked_file_stays_a_link(box: Box) -> None:
    box.put(TEXT, name="srv/real.py")
    (box.root / "opt/pkg").mkdir(parents=True)
    (box.root / "opt/pkg/a.py").symlink_to("/srv/real.py")
    assert box.apply(patch(CHANGE))[0] == 0
    assert box.files() == {"opt/pkg/a.py": b"-> /srv/real.py", "srv/real.py": changed(TEXT).encode()}
    assert box.reverse()[0] == 0
    assert box.files()["srv/real.py"] == TEXT.encode()


def test_a_path_does_not_leave_the_tree(box: Box) -> None:
    (box.folder / "outside.py").write_text(TEXT)
    box.put(TEXT, name="outside.py")
    assert box.apply(patch(CHANGE.replace("a.py", "../../../../outside.py")))[0] == 0
    assert (box.folder / "outside.py").read_text() == TEXT
    assert (box.root / "outside.py").read_text() == changed(TEXT)


def test_a_hard_link_into_a_package_cache_is_not_written_through(box: Box) -> None:
    cached = box.put(TEXT, name="cache/a.py")
    (box.root / "opt/pkg").mkdir(parents=True)
    (box.root / "opt/pkg/a.py").hardlink_to(cached)
    assert box.apply(patch(CHANGE))[0] == 0
    assert cached.read_text() == TEXT


def test_a_file_that_cannot_be_written_stops_all(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    box.put(TEXT)
    box.put(TEXT, name="srv/b.py")
    real = Path.write_bytes

    def refuse(path: Path, data: bytes) -> int:
        if path.parent.name == "srv":
            raise OSError(30, os.strerror(30), str(path))
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", refuse)
    second = patch(CHANGE.replace("pkg/a.py", "b.py"), "q", into="/srv")
    code, _, err = box.apply(patch(CHANGE), second)
    assert (code, err) == (1, ["srv/b.py: cannot be written: Read-only file system"])
    assert box.files() == {"opt/pkg/a.py": TEXT.encode(), "srv/b.py": TEXT.encode()}


@pytest.mark.parametrize(
    ("strip", "into", "path"), [(0, "/opt", "opt/a/pkg/a.py"), (1, "/", "pkg/a.py"), (2, "/opt/venv/", "opt/venv/a.py")]
)
def test_parts_of_the_path_are_dropped(box: Box, strip: int, into: str, path: str) -> None:
    box.put(TEXT, name=path)
    diff = CHANGE.replace("b/pkg", "a/pkg")
    assert box.apply(patch(diff, into=into, strip=strip)) == (0, [f"p: {path}: applied, 2 hunks"], [])


# ---- lines ----


@pytest.mark.parametrize(("before", "diff", "after"), CASES["ends_of_lines"])
def test_ends_of_lines(box: Box, before: str, diff: str, after: str) -> None:
    box.put(before)
    old, new = (sum(line[:1] in marks for line in diff.split("\n")[:-1]) for marks in (" -", " +"))
    head = f"--- a/pkg/a.py\n+++ b/pkg/a.py\n@@ -1,{old} +1,{new} @@\n"
    assert box.apply(patch(head + diff)) == (0, ["p: opt/pkg/a.py: applied, 1 hunk"], [])
    assert box.files()["opt/pkg/a.py"].decode() == after
    assert box.apply(patch(head + diff))[1] == ["p: opt/pkg/a.py: applied already"]
    assert box.reverse()[0] == 0
    assert box.files()["opt/pkg/a.py"].decode() == before


def test_bytes_that_are_no_utf_8(box: Box) -> None:
    box.put(b"# \xe9\nb\nend\n")
    diff = "--- a/pkg/a.py\n+++ b/pkg/a.py\n@@ -1,3 +1,3 @@\n # \udce9\n-b\n+c\n end\n"
    assert box.apply(patch(diff))[0] == 0
    assert box.files() == {"opt/pkg/a.py": b"# \xe9\nc\nend\n"}
    assert box.reverse()[0] == 0
    assert box.files() == {"opt/pkg/a.py": b"# \xe9\nb\nend\n"}


# ---- back again ----


def test_two_patches_of_one_file_add_up_and_come_off(box: Box) -> None:
    box.put(TEXT)
    second = "--- a/pkg/a.py\n+++ b/pkg/a.py\n@@ -3,3 +3,3 @@\n 3\n-four\n+FOUR\n 5\n"
    assert box.apply(patch(CHANGE), patch(second, "q"))[0] == 0
    assert box.files()["opt/pkg/a.py"].decode() == changed(TEXT).replace("four", "FOUR")
    assert box.reverse() == (0, [f"{name}: opt/pkg/a.py: restored, as it was" for name in "qp"], [])
    assert box.files() == {"opt/pkg/a.py": TEXT.encode()}
    assert box.record() == []


def test_one_fix_of_two_comes_off(box: Box) -> None:
    box.put(TEXT)
    second = "--- a/pkg/a.py\n+++ b/pkg/a.py\n@@ -10,1 +10,1 @@\n-10\n+ten\n"
    box.apply(patch(CHANGE, "f/p", fix="f"), patch(second, "g/q", fix="g"))
    assert box.reverse("f") == (
        0,
        ["f/p: opt/pkg/a.py: restored, the patch alone: the file was changed since, too"],
        [],
    )
    assert box.files()["opt/pkg/a.py"].decode() == TEXT.replace("\n10\n", "\nten\n")
    assert [row["name"] for row in box.record()] == ["g/q"]
    assert box.reverse()[0] == 0
    assert box.files() == {"opt/pkg/a.py": TEXT.encode()}


def test_a_patch_comes_off_a_file_that_was_changed_since(box: Box) -> None:
    path = box.put(TEXT)
    box.apply(patch(CHANGE))
    path.write_text("top\n" + path.read_text())
    assert box.reverse()[1] == ["p: opt/pkg/a.py: restored, the patch alone: the file was changed since, too"]
    assert path.read_text() == "top\n" + TEXT


def test_a_patch_whose_lines_are_gone_stays_in_the_record(box: Box) -> None:
    path = box.put(TEXT)
    box.apply(patch(CHANGE))
    path.write_text("a new release\n")
    assert box.reverse() == (1, [], ["p: opt/pkg/a.py: what the patch put at line 18 is not there any more"])
    assert path.read_text() == "a new release\n"
    assert [row["name"] for row in box.record()] == ["p"]
