"""The comparer of images: two small OCI layouts that differ in one thing, and how it is named."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlbox.image.verify import PathDifference, diff_oci_layouts, diff_saved_images
from rlbox.system.compression import zstd

COPY = "COPY /out/ / # buildkit"
TITLE = "layer 2 (COPY /out/ /)"


def entry(name: str, data: bytes = b"", **facts: Any) -> tuple[tarfile.TarInfo, bytes]:
    """Return a file of a layer, or with `type` another thing."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    member.mtime = 1735689600
    for key, value in facts.items():
        setattr(member, key, value)
    return member, data


BASE = (entry("etc", type=tarfile.DIRTYPE, mode=0o755), entry("etc/os-release", b"ID=debian\n"))
FILES = (entry("opt", type=tarfile.DIRTYPE, mode=0o755), entry("opt/a", b"alpha"), entry("opt/b", b"beta"))


def layer(entries: Sequence[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member, data in entries:
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def packed(data: bytes, how: str) -> bytes:
    match how:
        case "zstd":
            return zstd.compress(data)
        case "gzip":
            return gzip.compress(data, mtime=0)
        case _:
            return data


class Layout:
    """An image as a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "blobs/sha256").mkdir(parents=True)

    def blob(self, data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (self.folder / "blobs/sha256" / digest).write_bytes(data)
        return {"digest": f"sha256:{digest}", "size": len(data)}

    def document(self, value: Any) -> dict[str, Any]:
        return self.blob(json.dumps(value).encode())

    def write(
        self,
        *layers: Sequence[tuple[tarfile.TarInfo, bytes]],
        how: str = "zstd",
        nested: bool = False,
        env: Sequence[str] = ("A=1", "B=2"),
        **config: Any,
    ) -> Path:
        """Write an image of these layers, the first an `ADD`, the others copies."""
        history = [{"created_by": "ADD rootfs.tar / # buildkit"}]
        history += [{"created_by": "ENV A=1", "empty_layer": True}]
        history += [{"created_by": COPY} for _ in layers[1:]]
        settings = {"config": {"Env": list(env)}, "history": history, "rootfs": {"diff_ids": []}, **config}
        manifest = self.document(
            {
                "config": self.document(settings),
                "layers": [self.blob(packed(layer(entries), how)) for entries in layers],
            }
        )
        listed = self.document({"manifests": [manifest]}) if nested else manifest
        (self.folder / "index.json").write_text(json.dumps({"manifests": [listed]}))
        return self.folder


@pytest.fixture
def layouts(tmp_path: Path) -> tuple[Layout, Layout]:
    """Two images to be written."""
    return Layout(tmp_path / "first"), Layout(tmp_path / "second")


def changed(*entries: tuple[tarfile.TarInfo, bytes]) -> tuple[tuple[tarfile.TarInfo, bytes], ...]:
    """Return the layer with these entries in place of those of the same name."""
    new = {member.name: (member, data) for member, data in entries}
    return tuple(new.get(member.name, (member, data)) for member, data in FILES)


@pytest.mark.parametrize("how", ["zstd", "gzip", "plain"])
@pytest.mark.parametrize(
    ("entries", "path", "what"),
    [
        (changed(entry("opt/a", b"alpha", mode=0o755)), "opt/a", "mode 644 and 755"),
        (changed(entry("opt/a", b"alpha", mtime=1735689601)), "opt/a", "mtime 1735689600 and 1735689601"),
        (changed(entry("opt/a", b"alpha", uid=1000)), "opt/a", "uid 0 and 1000"),
        (changed(entry("opt/a", b"alpha", uname="me")), "opt/a", "uname '' and 'me'"),
        (changed(entry("opt/a", b"alphabet")), "opt/a", "size 5 and 8"),
        (changed(entry("opt/a", b"alpHa")), "opt/a", "contents differ from byte 3"),
        (
            changed(entry("opt/a", type=tarfile.SYMTYPE, linkname="b")),
            "opt/a",
            "type file and symbolic link",
        ),
        (
            changed(entry("opt/a", b"alpha", pax_headers={"SCHILY.xattr.user.x": "1"})),
            "opt/a",
            "attributes {} and {'SCHILY.xattr.user.x': '1'}",
        ),
        ((*FILES, entry("opt/c", b"")), "opt/c", "only in the second"),
        (FILES[:-1], "opt/b", "only in the first"),
        ((FILES[0], FILES[2], FILES[1]), "opt/a", "the same files stand in another order"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_a_layer_that_differs(
    layouts: tuple[Layout, Layout], how: str, entries: Sequence[tuple[tarfile.TarInfo, bytes]], path: str, what: str
) -> None:
    first = layouts[0].write(BASE, FILES, how=how)
    second = layouts[1].write(BASE, entries, how=how)
    assert list(diff_oci_layouts(first, second)) == [PathDifference(layer=TITLE, path=path, description=what)]


def test_every_differing_file_is_named(layouts: tuple[Layout, Layout]) -> None:
    first = layouts[0].write(BASE, FILES)
    second = layouts[1].write(
        (*BASE, entry("etc/machine-id", b"1")), changed(entry("opt/a", b"ALPHA"), entry("opt/b", b"BETA", mode=0o600))
    )
    assert [str(row) for row in diff_oci_layouts(first, second)] == [
        "layer 1 (ADD rootfs.tar /): etc/machine-id: only in the second",
        f"{TITLE}: opt/a: contents differ from byte 0",
        f"{TITLE}: opt/b: mode 644 and 600",
    ]


def test_the_first_differing_byte_of_a_large_file(layouts: tuple[Layout, Layout]) -> None:
    """It lies behind the first block that is compared."""
    one = b"\0" * (3 << 20)
    other = one[: (2 << 20) + 7] + b"\1" + one[(2 << 20) + 8 :]
    first = layouts[0].write(BASE, changed(entry("opt/b", one)))
    second = layouts[1].write(BASE, changed(entry("opt/b", other)))
    assert [row.description for row in diff_oci_layouts(first, second)] == [
        f"contents differ from byte {(2 << 20) + 7}"
    ]


def test_the_same_files_by_another_compressor(layouts: tuple[Layout, Layout]) -> None:
    first, second = layouts[0].write(FILES, how="zstd"), layouts[1].write(FILES, how="gzip")
    assert [str(row) for row in diff_oci_layouts(first, second)] == [
        "layer 1 (ADD rootfs.tar /): (image): the same files, packed by another compressor"
    ]


@pytest.mark.parametrize(
    ("changes", "path", "what"),
    [
        ({"env": ["A=1", "B=3"]}, "config", "Env: [1]: 'B=2' and 'B=3'"),
        ({"env": ["A=1"]}, "config", "Env: \"['A=1', 'B=2']\" and \"['A=1']\""),
        ({"created": "2026-01-01T00:00:00Z"}, "created", "'None' and '2026-01-01T00:00:00Z'"),
    ],
    ids=["env", "one env less", "created"],
)
def test_a_configuration_that_differs(
    layouts: tuple[Layout, Layout], changes: dict[str, Any], path: str, what: str
) -> None:
    first, second = layouts[0].write(BASE, FILES), layouts[1].write(BASE, FILES, **changes)
    assert list(diff_oci_layouts(first, second)) == [PathDifference(layer="config", path=path, description=what)]


def test_the_archives_of_an_engine(layouts: tuple[Layout, Layout]) -> None:
    """As `docker save` writes them: a tar of the layout, whose index may name another index."""

    def archive(folder: Path) -> Iterator[bytes]:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            tar.add(folder, arcname=".")
        data = buffer.getvalue()
        yield from (data[at : at + 1000] for at in range(0, len(data), 1000))

    first = layouts[0].write(BASE, FILES, nested=True)
    second = layouts[1].write(BASE, changed(entry("opt/a", b"alpHa")), nested=True)
    assert list(diff_saved_images(archive(first), archive(second))) == [
        PathDifference(layer=TITLE, path="opt/a", description="contents differ from byte 3")
    ]
