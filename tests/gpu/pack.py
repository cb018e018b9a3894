"""Carry stacks to a machine without network: thinned to one GPU architecture, in parts, in the order they are wanted.

`pack.py pack OUT --part-mb 50 verl=FOLDER openrlhf=FOLDER …` writes OUT/part-00 … and OUT/parts.json; stacks lie behind
each other in the order given, a file that two have lies once, and the compressor sees a gibibyte back, so that another
version of a package costs its difference. `pack.py unpack OUT GOAL verl` takes a stack out of the parts that have
arrived, and ends with status 1 when one is missing, cut or another's. `pack.py thin FILE.so --arch 90` empties the code
of all other GPUs.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import struct
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from backports import zstd

WINDOW = 30  # a gibibyte
CHUNK = 1 << 24
FATBIN = struct.pack("<I", 0xBA55ED50)


class PackError(Exception):
    """The parts are not those of a pack; the text says which."""


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


def pack(stacks: dict[str, Path], out: Path, part: int) -> dict[str, int]:
    """Write the parts, and return how many bytes of them each stack needs, with those before it."""
    out.mkdir(parents=True)
    options = {
        zstd.CompressionParameter.compression_level: 14,
        zstd.CompressionParameter.window_log: WINDOW,
        zstd.CompressionParameter.enable_long_distance_matching: 1,
    }
    squeeze, seen, needs = zstd.ZstdCompressor(options=options), dict[str, str](), dict[str, int]()
    stream = out / "stream"
    with stream.open("wb") as goal:
        for name, folder in stacks.items():
            for block in _tar(name, folder, seen):
                goal.write(squeeze.compress(block))
            goal.write(squeeze.flush(zstd.ZstdCompressor.FLUSH_BLOCK))
            needs[name] = goal.tell()
        goal.write(squeeze.flush(zstd.ZstdCompressor.FLUSH_FRAME))
    digests = []
    with stream.open("rb") as source:
        while data := source.read(part):
            (out / f"part-{len(digests):02}").write_bytes(data)
            digests.append(hashlib.sha256(data).hexdigest())
    stream.unlink()
    (out / "parts.json").write_text(json.dumps({"schema": 1, "part": part, "needs": needs, "sha256": digests}))
    return needs


def _tar(name: str, folder: Path, seen: dict[str, str]) -> Iterator[bytes]:
    """Yield one archive in blocks; what `seen` knows by its digest becomes a link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w|") as tar:
        for path in sorted(folder.rglob("*")):
            if path.is_symlink() or not path.is_file() or "__pycache__" in path.parts:
                continue
            info = tarfile.TarInfo(f"{name}/{path.relative_to(folder)}")
            info.mode, data = path.stat().st_mode & 0o777, path.read_bytes()
            digest = hashlib.sha256(data).hexdigest()
            if data and digest in seen:
                info.type, info.linkname = tarfile.LNKTYPE, seen[digest]
                tar.addfile(info)
            else:
                seen.setdefault(digest, info.name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
            if buffer.tell() > CHUNK:
                yield _taken(buffer)
    yield _taken(buffer)


def _taken(buffer: io.BytesIO) -> bytes:
    data = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return data


def arrived(parts: Path, stack: str) -> list[Path]:
    """Return the parts that a stack needs, each as it was packed. Raises PackError for one that is not."""
    told = json.loads((parts / "parts.json").read_text("utf-8"))
    if stack not in told["needs"]:
        raise PackError(f"{parts} holds no stack {stack}; it holds {', '.join(told['needs'])}")
    found = []
    for number in range(-(-told["needs"][stack] // told["part"])):
        path = parts / f"part-{number:02}"
        if not path.is_file():
            raise PackError(f"{path.name} did not arrive")
        if hashlib.sha256(path.read_bytes()).hexdigest() != told["sha256"][number]:
            raise PackError(f"{path.name} is cut, or another pack's")
        found.append(path)
    return found


def unpack(parts: Path, goal: Path, stack: str) -> int:
    """Lay a stack, and what it shares with those before it, below `goal`; return how many files it has."""
    told = json.loads((parts / "parts.json").read_text("utf-8"))
    loosen = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: WINDOW + 1})
    data = b"".join(path.read_bytes() for path in arrived(parts, stack))[: told["needs"][stack]]
    source = io.BytesIO(loosen.decompress(data))
    goal.mkdir(parents=True, exist_ok=True)
    while source.tell() < len(source.getbuffer()):
        with tarfile.open(fileobj=source, mode="r|", bufsize=tarfile.RECORDSIZE) as tar:
            tar.extraction_filter = getattr(tarfile, "tar_filter", None)  # Debian 12's Python has none yet
            for member in tar:
                (goal / member.name).unlink(missing_ok=True)  # of a call that was cut, or of a stack before
                tar.extract(member, goal)
    return sum(path.is_file() for path in (goal / stack).rglob("*"))


def main() -> None:
    """Do what the first word says."""
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("pack")
    one.add_argument("out", type=Path)
    one.add_argument("stacks", nargs="+", help="NAME=FOLDER")
    one.add_argument("--part-mb", type=int, default=50)
    two = verbs.add_parser("unpack")
    two.add_argument("parts", type=Path)
    two.add_argument("goal", type=Path)
    two.add_argument("stack")
    three = verbs.add_parser("thin")
    three.add_argument("files", nargs="+", type=Path)
    three.add_argument("--arch", type=int, default=90)
    told = parser.parse_args()
    try:
        if told.verb == "pack":
            stacks = {name: Path(folder) for name, _, folder in (text.partition("=") for text in told.stacks)}
            print(pack(stacks, told.out, told.part_mb * 1_000_000))
        elif told.verb == "unpack":
            print(f"{told.stack}: {unpack(told.parts, told.goal, told.stack)} files")
        for path in told.files if told.verb == "thin" else ():
            data = bytearray(path.read_bytes())
            print(f"{path}: {thin(data, told.arch) >> 20} MiB emptied")
            path.unlink()  # the file may be a link into somebody's cache
            path.write_bytes(data)
    except PackError as error:
        sys.exit(f"pack: error: {error}")


if __name__ == "__main__":
    main()
