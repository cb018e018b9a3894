"""Unpack a base image's layers from the store into a folder, each once, and have its files lead there."""

from __future__ import annotations

import dataclasses
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rlbox.amounts import size_text
from rlbox.artifacts.layers import lay_layer
from rlbox.artifacts.objects import Store
from rlbox.errors import NodeError
from rlbox.foreign import parse_json
from rlbox.provision.facts import there
from rlbox.provision.files import remove_tree
from rlbox.provision.note import PARTIAL, partial_of, read_note, write_note
from rlbox.provision.unpacked import (
    HEADERS,
    LIBRARIES,
    ROOT,
    BaseNote,
    image_libraries,
    is_system,
    moved_paths,
    shown_libraries,
)
from rlbox.system.files import free_bytes, write_atomic
from rlbox.target.artifact import Artifact

UNPACKED = 2.5
"""Bytes of a tree for each byte of its layers: images of CUDA frameworks are packed to 40 or 50 of 100."""
_TEXT_BYTES = 1 << 20
_PACKAGES = ("site-packages", "dist-packages")
_PROGRAMS = (("bin",), ("sbin",))
_LINES = 2
"""Lines of a program that name its interpreter: the first, or the second where a path is too long for that."""


def is_layer(file: Artifact) -> bool:
    """Whether a file of a base image is one of its layers."""
    return " layer " in file.file


def check_space(files: Sequence[Artifact], missing: Sequence[Artifact], store: Store, folder: Path) -> None:
    """Refuse a disk without room for the tree, and for what is still to be fetched where the store is on it.

    Raises
    ------
    NodeError
        It says how much is needed, roughly, and how much is there.
    """
    note = read_note(partial_of(folder))
    laid = note.layers if note else ()
    need = int(sum(file.size for file in files if is_layer(file) and file.sha256 not in laid) * UNPACKED)
    here, shelf = there(folder), there(store.root)
    if here.stat().st_dev == shelf.stat().st_dev:
        need += sum(file.size for file in missing)
    free = free_bytes(here)
    if free < need:
        raise NodeError(
            f"the disk is too full for the base image: {size_text(free)} free, about {size_text(need)} needed",
            where=str(folder),
            next_step="free space, or name a folder of another disk: --data DIR, or --prefix DIR",
        )


def is_unpacked(folder: Path, image: str) -> bool:
    """Whether an image lies whole in a folder, wherever it was unpacked for."""
    note = read_note(folder)
    return note is not None and note.whole and note.image == image


def unpack_base(image: str, files: Sequence[Artifact], store: Store, folder: Path, tell: Callable[[str], None]) -> None:
    """Unpack an image, all of whose `files` the store holds, into `folder`; or go on where a kill ended that.

    The folder is there whole or not at all, an earlier image in it until then. One that is whole stays as it is but for
    the links to libraries, which are those that this machine lacks.

    Raises
    ------
    WorkFailed
        A layer is no archive, or holds what no image can.
    OSError
        The disk is full, or cannot be written.
    """
    known, partial = read_note(folder), partial_of(folder)
    if known and is_unpacked(folder, image):
        _show_libraries(folder, known)
        return
    note = _lay_layers(image, [file for file in files if is_layer(file)], store, partial, tell)
    tell("leading its files there")
    bundled = _settle(partial / ROOT, f"{folder}/{ROOT}")
    _show_headers(partial)
    folders = dict(_library_folders(partial / ROOT))
    note = dataclasses.replace(
        note, whole=True, env=_environment(files, store), libraries=image_libraries(folders, bundled)
    )
    _show_libraries(partial, note)
    write_note(partial, note)
    remove_tree(folder)
    os.rename(partial, folder)


def forget_libraries(folder: Path, image: str) -> None:
    """Remove the links to an image's libraries, without which it cannot be used, if it is the one that is there."""
    note = read_note(folder)
    if note and note.image == image:
        remove_tree(folder / LIBRARIES)


def remove_base(folder: Path) -> None:
    """Remove an unpacked image, whole or not."""
    remove_tree(folder)
    remove_tree(partial_of(folder))


def _lay_layers(
    image: str, layers: Sequence[Artifact], store: Store, partial: Path, tell: Callable[[str], None]
) -> BaseNote:
    names = tuple(file.sha256 for file in layers)
    note = read_note(partial)
    if note is None or note.image != image or note.layers != names[: len(note.layers)]:
        remove_tree(partial)
        note = BaseNote(image=image)
    (partial / ROOT).mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(layers[len(note.layers) :], len(note.layers) + 1):
        tell(f"unpacking layer {number} of {len(layers)}, {size_text(file.size)}")
        lay_layer(store.path(file.sha256), partial / ROOT, file.file)
        note = dataclasses.replace(note, layers=names[:number])
        write_note(partial, note)
    return note


def _environment(files: Sequence[Artifact], store: Store) -> tuple[str, ...]:
    """Return the rows of ENV that an image's configuration has."""
    config = next(file for file in files if file.file.endswith(" config"))
    told = parse_json(store.path(config.sha256).read_bytes())
    return tuple(str(row) for row in (told.get("config") or {}).get("Env") or ())


def _settle(tree: Path, root: str) -> set[str]:
    """Have files that name other files of the image name them below `root`; return the libraries that packages bring.

    These are what Python looks at before it finds a package (`.pth` and its kin, `pyvenv.cfg`), and what programs of
    packages are started with.
    """

    def has(path: str) -> bool:
        return os.path.lexists(f"{tree}{path}")

    bundled = set[str]()
    for folder, _, names in os.walk(tree):
        parts = Path(folder).relative_to(tree).parts
        packages, programs = any(part in parts for part in _PACKAGES), parts[-1:] in _PROGRAMS
        for name in names:
            if packages and ".so" in name:
                bundled.add(name)
            if programs or name == "pyvenv.cfg" or (packages and _leads(name)):
                _rewrite(Path(folder, name), lambda text: moved_paths(text, root, has), program=programs)
    return bundled


def _leads(name: str) -> bool:
    return name.endswith((".pth", ".egg-link")) or (name.startswith("__editable__") and name.endswith(".py"))


def _rewrite(path: Path, moved: Callable[[str], str], *, program: bool) -> None:
    """Change a text file; of a program the lines alone that name its interpreter, if that is a Python."""
    facts = path.lstat()
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > _TEXT_BYTES:
        return
    data = path.read_bytes()
    if program and not data.startswith(b"#!"):
        return
    lines = data.decode("utf-8", "surrogateescape").splitlines(keepends=True)
    head = [line if program and "python" not in line else moved(line) for line in lines[: _LINES if program else None]]
    if head != lines[: len(head)]:
        text = "".join((*head, *lines[len(head) :]))
        write_atomic(path, text.encode("utf-8", "surrogateescape"), stat.S_IMODE(facts.st_mode))


def _library_folders(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the folders that a system's loader looks into, those of `ld.so.conf` first, with the names in them."""
    machine = os.uname().machine
    usual = [f"{above}/{folder}" for above in ("", "/usr") for folder in (f"lib/{machine}-linux-gnu", "lib64", "lib")]
    named = [folder for folder in _named_folders(root) if not is_system(folder)]
    for folder in dict.fromkeys([*named, *usual]):
        try:
            yield folder.rstrip("/"), sorted(os.listdir(f"{root}{folder}"))
        except OSError:
            continue


def _named_folders(root: Path) -> Iterator[str]:
    """Yield the folders that the loader's settings name, and those of the files that they include."""
    for line in _settings(root / "etc/ld.so.conf"):
        include = re.fullmatch(r"include\s+(\S+)", line)
        files = sorted(root.glob(os.path.join("etc", include[1]).lstrip("/"))) if include else []
        found = [row for path in files for row in _settings(path)] if include else [line]
        yield from (row.partition("=")[0].strip() for row in found if row.startswith("/"))


def _settings(path: Path) -> list[str]:
    try:
        return [line.partition("#")[0].strip() for line in path.read_text("utf-8", "replace").splitlines()]
    except OSError:
        return []


def _show_headers(folder: Path) -> None:
    """Make links to the headers of Python that its other headers name from `/usr/include`."""
    kept = f"{os.uname().machine}-linux-gnu"
    remove_tree(folder / HEADERS)
    (folder / HEADERS / kept).mkdir(parents=True)
    for path in (folder / ROOT / "usr/include" / kept).glob("python3.*"):
        (folder / HEADERS / kept / path.name).symlink_to(f"../../{ROOT}/usr/include/{kept}/{path.name}")


def _show_libraries(folder: Path, note: BaseNote) -> None:
    """Make the folder of links to the image's libraries that this machine needs; there whole, or not at all."""
    here = {name for _, names in _library_folders(Path("/")) for name in names}
    links, draft = folder / LIBRARIES, folder / f"{LIBRARIES}{PARTIAL}"
    remove_tree(draft)
    draft.mkdir()
    for name, path in shown_libraries(note.libraries, here):
        if (folder / ROOT / path.lstrip("/")).is_file():
            (draft / name).symlink_to(f"../{ROOT}{path}")
    remove_tree(links)
    os.rename(draft, links)
