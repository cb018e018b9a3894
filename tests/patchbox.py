"""The script that applies patches, as tests use it: on the layers of an image, or on one root."""

from __future__ import annotations

import difflib
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fakes import CHECKOUT

SCRIPTS = CHECKOUT / "templates/scripts"
Said = tuple[int, list[str], list[str]]


def scripts() -> tuple[ModuleType, ModuleType]:
    """The modules `apply_patches` and `unified_diff`."""
    if str(SCRIPTS) not in sys.path:
        sys.path.insert(0, str(SCRIPTS))
    return importlib.import_module("apply_patches"), importlib.import_module("unified_diff")


def diff_of(before: str, after: str, name: str = "pkg/a.py", context: int = 3) -> str:
    """The unified diff from one text to another, as git writes it."""
    found = []
    lines = [text.splitlines(keepends=True) if "\r" not in text else _lines(text) for text in (before, after)]
    for line in difflib.unified_diff(*lines, f"a/{name}", f"b/{name}", n=context):
        found.append(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
    return "".join(found)


def _lines(text: str) -> list[str]:
    return [line + "\n" for line in text.split("\n")[:-1]] + ([text.split("\n")[-1]] if text.split("\n")[-1] else [])


def patch(diff: str, name: str = "p", **keys: Any) -> dict[str, Any]:
    """One patch of a manifest."""
    return {"name": name, "fix": "", "into": "/opt", "strip": 1, "diff": diff, **keys}


class Box:
    """A folder with the layers `in/`, the new layer `out/` and the tree `root/`."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        self.root, self.out = folder / "root", folder / "out"
        for path in (self.root, self.out, folder / "in"):
            path.mkdir()

    def put(self, text: str | bytes, name: str = "opt/pkg/a.py", layer: int = 0, mode: int = 0o644) -> Path:
        """Write a file of a layer, or with layer 0 of the root."""
        path = (self.folder / "in" / str(layer) if layer else self.root) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        path.chmod(mode)
        return path

    def layers(self, *patches: dict[str, Any]) -> Said:
        """Apply patches to the layers."""
        return self._run(["--layers", str(self.folder / "in"), "--out", str(self.out)], patches)

    def apply(self, *patches: dict[str, Any], check: bool = False) -> Said:
        """Apply patches to the root."""
        return self._run(["--root", str(self.root), *(["--check"] if check else [])], patches)

    def reverse(self, *only: str) -> Said:
        """Take back what the root's record has."""
        return self._main(
            ["--root", str(self.root), "--reverse", *(word for name in only for word in ("--only", name))]
        )

    def record(self, where: Path | None = None) -> list[dict[str, Any]]:
        """The record's patches."""
        path = (where or self.root) / "opt/rlbox/share/patches.json"
        return list(json.loads(path.read_text())["patches"]) if path.is_file() else []

    def files(self, where: Path | None = None) -> dict[str, bytes]:
        """Path to bytes of every file but the record; a link is told by where it points."""
        top = where or self.root
        found = {}
        for path in sorted(top.rglob("*")):
            name = path.relative_to(top).as_posix()
            if path.is_symlink():
                found[name] = f"-> {path.readlink()}".encode()
            elif path.is_file() and name != "opt/rlbox/share/patches.json":
                found[name] = path.read_bytes()
        return found

    def _run(self, words: list[str], patches: tuple[dict[str, Any], ...]) -> Said:
        manifest = self.folder / "manifest.json"
        layers = sorted((path.name for path in (self.folder / "in").iterdir()), key=int)
        manifest.write_text(json.dumps({"schema": 1, "target": "t", "layers": layers, "patches": patches}))
        return self._main([*words, str(manifest)])

    def _main(self, words: list[str]) -> Said:
        code = scripts()[0].main(words)
        out, err = self._capsys.readouterr()
        return code, out.splitlines(), err.splitlines()
