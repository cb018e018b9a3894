"""Layers of an image laid over each other in a folder, as an engine does, and nothing outside of it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from layerbox import Entry, layer

from rlbox.artifacts.layers import kept_within, lay_layer
from rlbox.errors import WorkFailed


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "in/root"
    made.mkdir(parents=True)
    (tmp_path / "in/outside").mkdir()
    (tmp_path / "in/outside/kept").write_text("kept")
    return made


def lay(root: Path, *layers: bytes) -> None:
    for number, data in enumerate(layers):
        path = root.parent / f"layer{number}"
        path.write_bytes(data)
        lay_layer(path, root, f"layer {number}")


def told(root: Path) -> dict[str, str]:
    """Every file and link of a tree with its text."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_file():
            found[name] = path.read_text()
    return found


@pytest.mark.parametrize("packed", ["gzip", "zstd", ""])
def test_later_layers_take_the_place_of_earlier_ones(root: Path, packed: str) -> None:
    first = layer(("a/b", "one"), ("a/c", "one"), ("x", "/"), ("x/y", "one"), ("f", "file"), packed=packed)
    second = layer(("./a/b", "two"), ("/x", "now a file"), ("f", "/"), ("f/g", "two"), packed=packed)
    lay(root, first, second)
    assert told(root) == {"a/b": "two", "a/c": "one", "f/g": "two", "x": "now a file"}


def test_marks_take_away_what_lower_layers_have_and_nothing_of_their_own(root: Path) -> None:
    lower = layer(("d/old", "1"), ("d/e/old", "1"), ("d/e/f/old", "1"), ("gone", "1"), ("tree/x", "1"), ("kept", "1"))
    upper = layer(
        ("d/e/new", "2"),
        ("d/.wh..wh..opq", ""),
        ("d/later", "2"),
        (".wh.gone", ""),
        (".wh.tree", ""),
        ("own", "2"),
        (".wh.own", ""),
        (".wh..wh.plnk", ""),
        ("nowhere/.wh.nothing", ""),
    )
    lay(root, lower, upper)
    assert told(root) == {"d/e/new": "2", "d/later": "2", "kept": "1", "own": "2"}
    assert not (root / "tree").exists()


def test_second_names_are_one_file(root: Path) -> None:
    lay(root, layer(("bin/a", "program"), modes={"bin/a": 0o4755}), layer(("bin/b", "= ./bin/a"), ("c", "= bin/b")))
    assert (root / "c").stat().st_ino == (root / "bin/a").stat().st_ino
    assert (root / "c").stat().st_mode & 0o7777 == 0o755


def test_links_lead_where_they_do_in_a_chroot(root: Path) -> None:
    entries = (
        ("usr/bin/python3.12", "program"),
        ("usr/bin/python3", "-> python3.12"),
        ("etc/alternatives/python", "-> /usr/bin/python3"),
        ("opt/venv/bin/python", "-> /etc/alternatives/python"),
        ("opt/up", "-> ../../../../usr/bin/python3"),
        ("bin", "-> usr/bin"),
    )
    lay(root, layer(*entries), layer(("bin/tool", "through a link")))
    assert (root / "opt/venv/bin/python").read_text() == "program"
    assert (root / "opt/up").read_text() == "program"
    assert (root / "usr/bin/tool").read_text() == "through a link"
    assert told(root)["usr/bin/python3"] == "-> python3.12"


@pytest.mark.parametrize(
    ("to", "folder", "leads"),
    [
        ("x", (), "x"),
        ("../x", ("a",), "../x"),
        ("../x", (), "x"),
        ("../../../x", ("a",), "../x"),
        ("/x/y", ("a", "b"), "../../x/y"),
        ("//x", ("a",), "../x"),
        ("/", ("a",), ".."),
        ("/../../x", (), "x"),
        ("b/../../../x", ("a",), "../x"),
    ],
)
def test_where_a_link_leads(to: str, folder: tuple[str, ...], leads: str) -> None:
    assert kept_within(to, folder) == leads


@pytest.mark.parametrize(
    "entries",
    [
        (("d", "-> ../outside"), ("d/x", "planted")),
        (("d", "-> ../outside"), ("d/kept", "planted")),
        (("d", "-> ../outside"), ("d/.wh.kept", "")),
        (("d", "-> ../outside"), ("d/.wh..wh..opq", "")),
        (("d", "-> ../outside"), ("d/x", "/")),
        (("d", "-> ../outside"), ("f", "text"), ("d/x", "= f")),
        (("d", "-> ../outside"), ("x", "= d/kept")),
        (("a/b/s", "-> ../.."), ("a/b/d", "-> s/../outside"), ("a/b/d/x", "planted")),
        (("a/b/s", "-> ../.."), ("a/b/d", "-> s/../outside"), ("a/b/d/.wh.kept", "")),
        (("..", "planted"),),
        (("a/..", "/"), ("a/../../outside", "/")),
        (("a", "-> b"), ("b", "-> ../outside"), ("a/x", "planted")),
        (("a/b/c/l", "-> ../../../x"), ("m", "= a/b/c/l"), ("m/x", "planted")),
        (("x", "-> ../outside/kept"), ("x", "planted")),
        (("x", "-> /../outside/kept"), ("x", "planted")),
        (("../outside/x", "planted"),),
        (("a/../../outside/x", "planted"),),
        (("x", "= ../outside/kept"),),
        ((".wh...", ""),),
        (("ring", "-> ring"), ("ring/x", "planted")),
        (("f", "file"), ("f/x", "below a file")),
        (("d", "/"), ("x", "= d")),
    ],
)
def test_nothing_is_written_removed_or_linked_outside(root: Path, entries: tuple[Entry, ...]) -> None:
    before = {path: path.stat() for path in (root.parent / "outside").rglob("*")}
    with suppress(WorkFailed):
        lay(root, layer(*entries))
    after = {path: path.stat() for path in (root.parent / "outside").rglob("*")}
    assert {path: facts.st_nlink for path, facts in after.items()} == {root.parent / "outside/kept": 1}
    assert {path: facts.st_mtime_ns for path, facts in after.items()} == {
        path: facts.st_mtime_ns for path, facts in before.items()
    }


def test_nothing_that_gives_rights_is_laid(root: Path) -> None:
    modes = {"su": 0o6755, "open": 0o666, "tmp": 0o1777, "shut": 0o000, "ro": 0o555}
    lay(root, layer(("su", "x"), ("open", "x"), ("tmp", "/"), ("shut", "x"), ("ro", "/"), ("ro/f", "x"), modes=modes))
    lay(root, layer(("su", "!c"), ("null", "!c"), ("pipe", "!p")))
    found = {path.name: path.stat().st_mode & 0o7777 for path in root.iterdir()}
    assert found == {"open": 0o644, "tmp": 0o755, "shut": 0o400, "ro": 0o755}
    assert (root / "open").stat().st_uid == os.geteuid()
    assert (root / "open").stat().st_mtime == 1_700_000_000


@pytest.mark.parametrize("cut", [1, 3, 5, 7])
def test_half_a_layer_is_laid_again(root: Path, cut: int) -> None:
    """Whatever a kill left of it, once it is laid whole the tree is what it would have been."""
    lower = layer(("d/old", "1"), ("d/sub/old", "1"), ("f", "1"), ("g", "1"))
    entries = (
        ("d/new", "2"),
        ("h", "= f"),
        (".wh.f", ""),
        ("d/.wh..wh..opq", ""),
        ("d/sub/new", "2"),
        ("g", "-> d/new"),
        ("i", "= d/new"),
    )
    lay(root, lower, layer(*entries[:cut]))
    lay(root, layer())
    path = root.parent / "again"
    path.write_bytes(layer(*entries))
    lay_layer(path, root, "again")
    assert told(root) == {"d/new": "2", "d/sub/new": "2", "g": "-> d/new", "h": "1", "i": "2"}


@pytest.mark.parametrize("packed", ["gzip", "zstd", ""])
def test_a_torn_layer_is_told(root: Path, packed: str) -> None:
    data = layer(("a", "text" * 9999), ("b", "more" * 9999), packed=packed)
    with pytest.raises(WorkFailed, match="layer 0 is no archive"):
        lay(root, data[: len(data) * 2 // 3])
    with pytest.raises(WorkFailed, match="layer 0 is no archive"):
        lay(root, b"<html>a login page</html>" * 99)
