"""The script that applies a target's diffs in a build step: found by content, all or nothing, told file by file."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from fakes import CHECKOUT

SCRIPT = CHECKOUT / "templates/scripts/apply_patches.py"
TEXT = "".join(f"{number}\n" for number in range(1, 21))
CHANGE = """diff --git a/pkg/a.py b/pkg/a.py
index 1..2 100644
--- a/pkg/a.py\t2025-01-01
+++ b/pkg/a.py\t2025-01-02
@@ -3,4 +3,4 @@ def f():
 3
-4
+four
 5
 6
@@ -18,2 +18,3 @@
 18
 19
+19.5
"""
Said = tuple[int, list[str], list[str]]


class Layers:
    """The layers of an image below `in/`, the layer of patches below `out/`."""

    def __init__(self, folder: Path, script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._script, self._capsys = folder, script, capsys
        script.LAYERS, script.OUT = folder / "in", folder / "out"  # type: ignore[attr-defined]

    def put(self, layer: int, text: str | bytes, name: str = "opt/pkg/a.py", mode: int = 0o644) -> Path:
        path = self.folder / "in" / str(layer) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        path.chmod(mode)
        return path

    def apply(self, *diffs: str | bytes, into: str = "/opt", strip: int = 1) -> Said:
        words = []
        for number, diff in enumerate(diffs):
            path = self.folder / f"{number}.diff"
            path.write_bytes(diff if isinstance(diff, bytes) else diff.encode())
            words += [into, str(strip), str(path)]
        code = self._script.main(words)
        out, err = self._capsys.readouterr()
        return code, out.splitlines(), err.splitlines()

    def out(self) -> dict[str, bytes]:
        """Path to bytes of the files of the new layer."""
        root = self.folder / "out"
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Layers:
    """An image without a layer."""
    spec = importlib.util.spec_from_file_location("apply_patches", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return Layers(tmp_path, script, capsys)


def changed(text: str) -> str:
    return text.replace("\n4\n", "\nfour\n").replace("\n19\n", "\n19\n19.5\n")


def test_a_diff(layers: Layers) -> None:
    original = layers.put(1, TEXT, mode=0o755)
    assert layers.apply(CHANGE) == (0, ["0.diff: opt/pkg/a.py: 2 hunks applied"], [])
    assert layers.out() == {"opt/pkg/a.py": changed(TEXT).encode()}
    assert f"{(layers.folder / 'out/opt/pkg/a.py').stat().st_mode:o}" == "100755"
    assert original.read_text() == TEXT


def test_a_hunk_is_found_wherever_it_moved(layers: Layers) -> None:
    moved = "new\n" * 30 + TEXT
    layers.put(1, moved)
    assert layers.apply(CHANGE)[0] == 0
    assert layers.out()["opt/pkg/a.py"].decode() == changed(moved)


def test_the_topmost_layer_counts(layers: Layers) -> None:
    layers.put(2, "old\n")
    layers.put(10, TEXT)
    layers.put(11, TEXT, name="opt/pkg/b.py")
    assert layers.apply(CHANGE)[0] == 0


def test_diffs_of_one_file_add_up(layers: Layers) -> None:
    layers.put(1, TEXT)
    second = "--- a/pkg/a.py\n+++ b/pkg/a.py\n@@ -3,3 +3,3 @@\n 3\n-four\n+FOUR\n 5\n"
    assert layers.apply(CHANGE, second)[0] == 0
    assert layers.out()["opt/pkg/a.py"].decode() == changed(TEXT).replace("four", "FOUR")


def test_a_diff_that_is_applied_already(layers: Layers) -> None:
    layers.put(1, changed(TEXT) + "end\n")
    assert layers.apply(CHANGE.replace("+19.5\n", "+19.5\n 20\n").replace("-18,2 +18,3", "-18,3 +18,4")) == (
        0,
        ["0.diff: opt/pkg/a.py: applied already"],
        [],
    )
    assert layers.out() == {}


def test_a_new_file(layers: Layers) -> None:
    diff = "--- /dev/null\n+++ b/pkg/new.py\n@@ -0,0 +1,2 @@\n+one\n+two\n"
    assert layers.apply(diff) == (0, ["0.diff: opt/pkg/new.py: 1 hunks applied"], [])
    assert layers.out() == {"opt/pkg/new.py": b"one\ntwo\n"}


@pytest.mark.parametrize(
    ("strip", "into", "path"), [(0, "/opt", "opt/a/pkg/a.py"), (1, "/", "pkg/a.py"), (2, "/opt/venv/", "opt/venv/a.py")]
)
def test_parts_of_the_path_are_dropped(layers: Layers, strip: int, into: str, path: str) -> None:
    layers.put(1, TEXT, name=path)
    diff = CHANGE.replace("b/pkg", "a/pkg")
    assert layers.apply(diff, into=into, strip=strip) == (0, [f"0.diff: {path}: 2 hunks applied"], [])


@pytest.mark.parametrize(
    ("before", "diff", "after"),
    [
        ("a\nb", " a\n-b\n\\ No newline at end of file\n+c\n\\ No newline at end of file\n", "a\nc"),
        ("a\nb", " a\n-b\n\\ No newline at end of file\n+b\n+c\n", "a\nb\nc\n"),
        ("a\nb\n", " a\n-b\n+b\n\\ No newline at end of file\n", "a\nb"),
        ("a\nb", "-a\n+A\n b\n\\ No newline at end of file\n", "A\nb"),
        ("a\r\nb\r\n", " a\r\n-b\r\n+c\r\n", "a\r\nc\r\n"),
        ("a\n\x0cb\u2028c\n", " a\n-\x0cb\u2028c\n+\x0cd\u2028c\n", "a\n\x0cd\u2028c\n"),
        ("a\n\nb\n", " a\n\n-b\n+c\n", "a\n\nc\n"),
        ("a\n\\x\n", " a\n-\\x\n+\\y\n", "a\n\\y\n"),
        ("-- a\n++ b\n", "--- a\n-++ b\n+-- c\n", "-- c\n"),
    ],
)
def test_ends_of_lines(layers: Layers, before: str, diff: str, after: str) -> None:
    layers.put(1, before)
    counts = [sum(line[:1] in marks for line in diff.split("\n")[:-1]) for marks in (" -", " +")]
    old, new = (count + diff.count("\n\n") for count in counts)
    head = f"--- a/pkg/a.py\n+++ b/pkg/a.py\n@@ -1,{old} +1,{new} @@\n"
    assert layers.apply(head + diff) == (0, ["0.diff: opt/pkg/a.py: 1 hunks applied"], [])
    assert layers.out()["opt/pkg/a.py"].decode() == after


def test_bytes_that_are_no_utf_8(layers: Layers) -> None:
    layers.put(1, b"# \xe9\nb\n")
    assert layers.apply(b"--- a/pkg/a.py\n+++ b/pkg/a.py\n@@ -1,2 +1,2 @@\n # \xe9\n-b\n+c\n")[0] == 0
    assert layers.out() == {"opt/pkg/a.py": b"# \xe9\nc\n"}


@pytest.mark.parametrize(
    ("diff", "message"),
    [
        (CHANGE.replace("-4\n", "-vier\n"), "0.diff: opt/pkg/a.py: hunk 1 fits nowhere"),
        (CHANGE.replace(" 19\n", " neunzehn\n"), "0.diff: opt/pkg/a.py: hunk 2 fits nowhere"),
        (CHANGE.replace("pkg/a.py", "pkg/b.py"), "0.diff: opt/pkg/b.py: the image has no such file"),
        (
            "--- a/pkg/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n",
            "0.diff: opt/pkg/a.py: a layer cannot remove a file of another one",
        ),
        (
            "--- a/pkg/a.py\n+++ b/pkg/a.py\n@@ -4,0 +5 @@\n+new\n",
            "0.diff: opt/pkg/a.py: hunk 1 has no line to find its place by",
        ),
    ],
)
def test_a_diff_that_does_not_fit(layers: Layers, diff: str, message: str) -> None:
    layers.put(1, TEXT)
    assert layers.apply(diff) == (1, [], [message])
    assert layers.out() == {}


def test_a_file_that_is_no_diff(layers: Layers) -> None:
    assert layers.apply("hello\n") == (1, [], [f"{layers.folder}/0.diff: no unified diff"])


def test_every_diff_that_does_not_fit_is_named(layers: Layers) -> None:
    layers.put(1, TEXT)
    layers.put(1, TEXT, name="opt/pkg/b.py")
    wrong = CHANGE.replace("-4\n", "-vier\n")
    code, out, err = layers.apply(wrong + wrong.replace("a.py", "b.py"), CHANGE)
    assert (code, out) == (1, ["1.diff: opt/pkg/a.py: 2 hunks applied"])
    assert err == [f"0.diff: opt/pkg/{name}: hunk 1 fits nowhere" for name in ("a.py", "b.py")]
