"""Carry folders to a machine without network: in parts, in the order they are wanted, without what the machine has.

`pack.py unpack PARTS GOAL NAME` lays a folder out of the parts that have arrived, and ends with status 1 when a part is
missing or cut, or a file is not what was packed. `pack.py needs PARTS` says which of the machine's own files are not as
they must be. `pack.py thin FILE.so --arch 90` empties the code of all other GPUs in a library.

Each folder is a stream of its own: a tar of what is carried, and `rows.json` with where every file comes from:

`tar`       as it lies in the tar
`machine`   a file of the machine's own packages, the same bytes
`delta`     the difference from a file of the machine's own, or of a folder before it
`copy`      a file of a folder before it, or of the same one
`link`      a symbolic link
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import shutil
import struct
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backports import zstd

WINDOW = 30  # a gibibyte
CHUNK = 1 << 24
FATBIN = struct.pack("<I", 0xBA55ED50)
ROWS = "rows.json"


class PackError(Exception):
    """The parts are not those of a pack, or the machine has other files; the text says which."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A file to be packed, at `path` below its folder.

    `data` is read when it is wanted: the bytes as they are to lie there. `base` names what it is to be a difference
    from (`machine/PATH` or `FOLDER/PATH`), and `base_data` reads it; without bytes of its own (`data` is None) it is
    that very file. `to` is a link's target.
    """

    path: str
    mode: int = 0o644
    sha256: str = ""
    data: Callable[[], bytes] | None = None
    base: str = ""
    base_data: Callable[[], bytes] | None = None
    to: str = ""


def thin(data: bytearray, arch: int) -> int:
    """Empty the code of all GPUs but `arch` in a library, in place, and return how many bytes.

    Offsets stay, so that it loads. A fatbin without code for `arch` keeps PTX and the code of 8.x, which runs there.
    (fatbin: u32 magic, u16 version, u16 header, u64 size; entry: u16 kind, 2 of which is code, u16, u32 header,
    u64 size, architecture at +28.)
    """
    at, emptied = 0, 0
    while (at := data.find(FATBIN, at)) >= 0:
        _, _, header, size = struct.unpack_from("<IHHQ", data, at)
        if header != 16 or at + header + size > len(data):
            at += 4
            continue
        rows = list(_entries(data, at + header, at + header + size))
        has = any(kind == 2 and of == arch for kind, of, *_ in rows)
        for kind, of, start, length in rows:
            if (kind == 2 and of == arch) or (not has and of <= arch and (kind == 1 or of // 10 == 8)):
                continue
            data[start : start + length] = bytes(length)
            emptied += length
        at += header + size
    return emptied


def _entries(data: bytearray, entry: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    while entry < end:
        kind, _, header, size = struct.unpack_from("<HHIQ", data, entry)
        if not 32 <= header <= 4096 or entry + header + size > end:
            return
        yield kind, struct.unpack_from("<I", data, entry + 28)[0], entry + header, size
        entry += header + size


def pack(folders: Mapping[str, Iterable[Row]], out: Path, part: int) -> dict[str, tuple[int, int]]:
    """Write the parts; return where each folder's stream begins and ends in them.

    A stream that is there from an earlier time (`streams/NAME`) is taken as it is.
    """
    streams = out / "streams"
    streams.mkdir(parents=True, exist_ok=True)
    places: dict[str, tuple[int, int]] = {}
    laid: dict[str, str] = {}
    for name, rows in folders.items():
        stream, told = streams / name, streams / f"{name}.json"
        if not told.exists():
            squeeze = zstd.ZstdCompressor(options=_options(6))
            with stream.open("wb") as goal:
                for block in _tar(name, rows, laid, told):
                    goal.write(squeeze.compress(block))
                goal.write(squeeze.flush(zstd.ZstdCompressor.FLUSH_FRAME))
        for row in json.loads(told.read_text("utf-8")):
            if row["from"] in ("tar", "delta"):
                laid.setdefault(row["sha256"], f"{name}/{row['path']}")
        begin = max((end for _, end in places.values()), default=0)
        places[name] = (begin, begin + stream.stat().st_size)
    split([streams / name for name in folders], out, part, places)
    return places


def split(streams: Iterable[Path], out: Path, part: int, places: Mapping[str, tuple[int, int]]) -> None:
    """Cut streams, one behind the other, into parts, and write what they hold."""
    for path in out.glob("part-*"):
        path.unlink()
    digests, rest = [], bytearray()
    for stream in streams:
        with stream.open("rb") as source:
            while data := source.read(part - len(rest)):
                rest += data
                if len(rest) == part:
                    digests.append(_write_part(out, len(digests), rest))
                    rest = bytearray()
    if rest:
        digests.append(_write_part(out, len(digests), rest))
    (out / "parts.json").write_text(json.dumps({"schema": 2, "part": part, "places": places, "sha256": digests}))


def _write_part(out: Path, number: int, data: bytearray) -> str:
    (out / f"part-{number:02}").write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def _options(level: int) -> dict[int, int]:
    return {
        zstd.CompressionParameter.compression_level: level,
        zstd.CompressionParameter.window_log: WINDOW,
        zstd.CompressionParameter.enable_long_distance_matching: 1,
        zstd.CompressionParameter.nb_workers: 4,
    }


def delta(data: bytes, base: bytes) -> bytes:
    """Return the difference between two files, which `restore` undoes."""
    before = zstd.ZstdDict(base, is_raw=True).as_prefix
    return bytes(zstd.compress(data, options=_options(6), zstd_dict=before))


def restore(difference: bytes, base: bytes) -> bytes:
    """Return the file of which this is the difference."""
    options = {zstd.DecompressionParameter.window_log_max: WINDOW + 1}
    return bytes(zstd.decompress(difference, zstd_dict=zstd.ZstdDict(base, is_raw=True).as_prefix, options=options))


def _tar(name: str, rows: Iterable[Row], before: Mapping[str, str], goal: Path) -> Iterator[bytes]:
    """Yield one archive in blocks, and write its rows to `goal`; `before` has the digests of what lies already."""
    buffer, told, laid = io.BytesIO(), [], dict(before)
    with tarfile.open(fileobj=buffer, mode="w|") as tar:
        for row in rows:
            described: dict[str, Any] = {"path": row.path, "mode": row.mode}
            if row.to:
                told.append({**described, "from": "link", "to": row.to})
                continue
            if row.data is None:
                told.append({**described, "from": "machine", "base": row.base, "sha256": row.sha256})
                continue
            data = row.data()
            digest = hashlib.sha256(data).hexdigest()
            described["sha256"] = digest
            if data and digest in laid:
                told.append({**described, "from": "copy", "base": laid[digest]})
                continue
            laid.setdefault(digest, f"{name}/{row.path}")
            if row.base_data is not None:
                told.append({**described, "from": "delta", "base": row.base})
                data = delta(data, row.base_data())
            else:
                told.append({**described, "from": "tar"})
            _add(tar, row.path, data)
            if buffer.tell() > CHUNK:
                yield _taken(buffer)
        _add(tar, ROWS, json.dumps(told).encode())
    yield _taken(buffer)
    goal.write_text(json.dumps(told), "utf-8")


def _add(tar: tarfile.TarFile, path: str, data: bytes) -> None:
    info = tarfile.TarInfo(path)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def _taken(buffer: io.BytesIO) -> bytes:
    data = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return data


def arrived(parts: Path, name: str) -> bytes:
    """Return the stream of a folder out of its parts. Raises PackError for a part that is not as it was packed."""
    told = json.loads((parts / "parts.json").read_text("utf-8"))
    if name not in told["places"]:
        raise PackError(f"{parts} holds no folder {name}; it holds {', '.join(told['places'])}")
    (begin, end), part = told["places"][name], told["part"]
    first, found = begin // part, []
    for number in range(first, -(-end // part)):
        path = parts / f"part-{number:02}"
        if not path.is_file():
            raise PackError(f"{path.name} did not arrive")
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != told["sha256"][number]:
            raise PackError(f"{path.name} is cut, or another pack's")
        found.append(data)
    return b"".join(found)[begin - first * part : end - first * part]


def unpack(parts: Path, goal: Path, name: str, machine: Path) -> int:
    """Lay a folder at `goal`/`name`, verified file by file; return how many files it has.

    Folders before it are looked for beside it; `machine` is the folder of the machine's own packages.
    """
    loosen = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: WINDOW + 1})
    source = io.BytesIO(loosen.decompress(arrived(parts, name)))
    folder = goal / name
    with tarfile.open(fileobj=source, mode="r:") as tar:
        members = {member.name: member for member in tar}
        rows = json.loads(_read(tar, members[ROWS]))
        for path in {(folder / row["path"]).parent for row in rows}:
            path.mkdir(parents=True, exist_ok=True)
        view = source.getbuffer()

        def lay(row: Mapping[str, Any]) -> str:
            place = folder / row["path"]
            place.unlink(missing_ok=True)  # of a call that was cut
            member = members.get(row["path"])
            data = bytes(view[member.offset_data : member.offset_data + member.size]) if member else b""
            return _lay(row, place, data, goal, machine)

        with ThreadPoolExecutor() as pool:
            wrong = [text for text in pool.map(lay, [row for row in rows if row["from"] != "copy"]) if text]
            wrong += [text for text in pool.map(lay, [row for row in rows if row["from"] == "copy"]) if text]
    if wrong:
        raise PackError("; ".join(wrong[:20]))
    (folder / ROWS).write_text(json.dumps(rows))
    return len(rows)


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file
    return file.read()


def _lay(row: Mapping[str, Any], place: Path, data: bytes, goal: Path, machine: Path) -> str:
    """Lay one file; return what is wrong with it."""
    if row["from"] == "link":
        place.symlink_to(row["to"])
        return ""
    base = row.get("base", "")
    other = machine / base.removeprefix("machine/") if base.startswith("machine/") else goal / base
    if row["from"] in ("machine", "copy"):
        if not other.is_file():
            return f"{base} is not there"
        if row["from"] == "machine" and _sum(other) != row["sha256"]:
            return f"{base} is another file"
        try:
            os.link(other, place)
        except OSError:
            shutil.copyfile(other, place)
            place.chmod(row["mode"])
        return ""
    if row["from"] == "delta":
        try:
            data = restore(data, other.read_bytes())
        except (OSError, ValueError, zstd.ZstdError) as error:
            return f"{row['path']} cannot be restored from {base}: {error}"
    place.write_bytes(data)
    place.chmod(row["mode"])
    return "" if hashlib.sha256(data).hexdigest() == row["sha256"] else f"{row['path']} is not what was packed"


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def lacking(needs: Mapping[str, str], machine: Path) -> list[str]:
    """Return which of the machine's own files are not there, or are others than those that are needed."""

    def judge(row: tuple[str, str]) -> str:
        path = machine / row[0]
        return "" if path.is_file() and _sum(path) == row[1] else row[0]

    with ThreadPoolExecutor() as pool:
        return [path for path in pool.map(judge, needs.items()) if path]


def main() -> None:
    """Do what the first word says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("unpack")
    one.add_argument("parts", type=Path)
    one.add_argument("goal", type=Path)
    one.add_argument("name")
    one.add_argument("--machine", type=Path, default=Path("/opt/torch/.venv/lib/python3.12/site-packages"))
    two = verbs.add_parser("needs")
    two.add_argument("parts", type=Path)
    two.add_argument("--machine", type=Path, default=Path("/opt/torch/.venv/lib/python3.12/site-packages"))
    three = verbs.add_parser("thin")
    three.add_argument("files", nargs="+", type=Path)
    three.add_argument("--arch", type=int, default=90)
    told = parser.parse_args()
    try:
        if told.verb == "unpack":
            print(f"{told.name}: {unpack(told.parts, told.goal, told.name, told.machine)} files")
        elif told.verb == "needs":
            needs = json.loads((told.parts / "machine.json").read_text("utf-8"))
            if missing := lacking(needs, told.machine):
                raise PackError(f"{len(missing)} of {len(needs)} files of the machine are others: {missing[:20]}")
            print(f"the machine has all of {len(needs)} files that are taken from it")
        for path in told.files if told.verb == "thin" else ():
            data = bytearray(path.read_bytes())
            print(f"{path}: {thin(data, told.arch) >> 20} MiB emptied")
            path.unlink()  # the file may be a link into somebody's cache
            path.write_bytes(data)
    except PackError as error:
        sys.exit(f"pack: error: {error}")


if __name__ == "__main__":
    main()
