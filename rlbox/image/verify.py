"""Compare two saved images: which layer, which file, and what about it differs first."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rlbox.app import App
from rlbox.artifacts.base_image import open_layer_tar
from rlbox.engine.connection import connect_engine
from rlbox.errors import WorkFailed
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.image.buildkit import BuildRequest, build_image, show_build_progress
from rlbox.image.names import VERIFY_TAG_SUFFIX
from rlbox.image.plan import ImagePlan

_BLOCK = 1 << 20
_FIELDS = ("type", "mode", "uid", "gid", "uname", "gname", "mtime", "size", "linkname")
_TYPES = {
    tarfile.REGTYPE: "file",
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "symbolic link",
    tarfile.LNKTYPE: "hard link",
}


@dataclass(frozen=True, kw_only=True)
class PathDifference:
    """One differing path; `layer` is the command of the Dockerfile that made it, `path` empty for the image itself."""

    layer: str
    path: str
    description: str

    def __str__(self) -> str:
        return f"{self.layer}: {self.path or '(image)'}: {self.description}"


def diff_saved_images(first_archive: Iterable[bytes], second_archive: Iterable[bytes]) -> Iterator[PathDifference]:
    """Yield how two images differ that were written by `docker save` of an engine with OCI layouts."""
    with tempfile.TemporaryDirectory(prefix="rlbox-verify-") as folder:
        images = [
            _unpack(chunks, Path(folder, name))
            for chunks, name in ((first_archive, "first"), (second_archive, "second"))
        ]
        yield from diff_oci_layouts(*images)


def _unpack(chunks: Iterable[bytes], folder: Path) -> Path:
    folder.mkdir()
    archive = folder / "image.tar"
    with open(archive, "wb") as file:
        file.writelines(chunks)
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and ".." not in member.name:
                path = folder / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                with open(path, "wb") as out:
                    shutil.copyfileobj(_contents(tar, member), out, _BLOCK)
    archive.unlink()
    return folder


def diff_oci_layouts(first_layout: Path, second_layout: Path) -> Iterator[PathDifference]:
    """Yield how two images differ that lie unpacked, as OCI layouts, in two folders."""
    manifests = [_manifest(folder) for folder in (first_layout, second_layout)]
    configs = [
        _blob(folder, manifest["config"])
        for folder, manifest in zip((first_layout, second_layout), manifests, strict=True)
    ]
    yield from _compare_configs(configs[0], configs[1])
    commands = [row.get("created_by", "") for row in configs[0]["history"] if not row.get("empty_layer")]
    layers = [manifest["layers"] for manifest in manifests]
    if len(layers[0]) != len(layers[1]):
        yield PathDifference(layer="image", path="", description=f"{len(layers[0])} and {len(layers[1])} layers")
    for number, (one, other) in enumerate(zip(*layers, strict=False), 1):
        if one["digest"] != other["digest"]:
            command = commands[number - 1] if number <= len(commands) else ""
            title = f"layer {number} ({command.removesuffix(' # buildkit')[:60]})"
            yield from _compare_layers(title, _path(first_layout, one["digest"]), _path(second_layout, other["digest"]))


def _manifest(folder: Path) -> Any:
    index = parse_json((folder / "index.json").read_bytes())
    manifest = _blob(folder, index["manifests"][0])
    return manifest if "layers" in manifest else _blob(folder, manifest["manifests"][0])


def _path(folder: Path, digest: str) -> Path:
    return folder / "blobs" / digest.replace(":", "/")


def _blob(folder: Path, descriptor: Mapping[str, Any]) -> Any:
    return parse_json(_path(folder, descriptor["digest"]).read_bytes())


def _compare_configs(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[PathDifference]:
    for key in sorted({*one, *other} - {"rootfs"}):
        if one.get(key) != other.get(key):
            yield PathDifference(layer="config", path=key, description=_first_difference(one.get(key), other.get(key)))


def _first_difference(one: Any, other: Any) -> str:
    if isinstance(one, dict) and isinstance(other, dict):
        key = next(key for key in sorted({*one, *other}) if one.get(key) != other.get(key))
        return f"{key}: {_first_difference(one.get(key), other.get(key))}"
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        place = next(place for place, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
        return f"[{place}]: {_first_difference(one[place], other[place])}"
    return f"{str(one)[:80]!r} and {str(other)[:80]!r}"


def _compare_layers(title: str, first: Path, second: Path) -> Iterator[PathDifference]:
    one, other = _table(first), _table(second)
    told = False
    for path in sorted({*one, *other}):
        if path not in one or path not in other:
            told = True
            yield PathDifference(
                layer=title, path=path, description=f"only in the {'first' if path in one else 'second'}"
            )
        elif one[path] != other[path]:
            told = True
            yield PathDifference(layer=title, path=path, description=_how(path, one[path], other[path], first, second))
    if not told and list(one) != list(other):
        place = next(place for place, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
        yield PathDifference(layer=title, path=list(one)[place], description="the same files stand in another order")
    elif not told:
        yield PathDifference(layer=title, path="", description="the same files, packed by another compressor")


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """What a layer says about one path; `digest` is the sha256 of a file's bytes."""

    facts: tuple[Any, ...]
    pax: tuple[tuple[str, str], ...]
    digest: str


def _table(layer: Path) -> dict[str, _Entry]:
    found = {}
    with ExitStack() as stack:
        for tar, member in _members(layer, stack):
            digest = hashlib.sha256()
            if member.isfile():
                file = _contents(tar, member)
                while block := file.read(_BLOCK):
                    digest.update(block)
            facts = tuple(getattr(member, name) for name in _FIELDS)
            found[member.name] = _Entry(
                facts=facts, pax=tuple(sorted(member.pax_headers.items())), digest=digest.hexdigest()
            )
    return found


def _members(layer: Path, stack: ExitStack) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    stream = stack.enter_context(open_layer_tar(layer))
    tar = stack.enter_context(tarfile.TarFile.open(fileobj=stream, mode="r|*"))
    for member in tar:
        yield tar, member


def _contents(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    file = tar.extractfile(member)
    if file is None:
        raise ValueError(_("{member} is no file").format(member=member.name))
    return file


def _how(path: str, one: _Entry, other: _Entry, first: Path, second: Path) -> str:
    for name, a, b in zip(_FIELDS, one.facts, other.facts, strict=True):
        if a != b:
            return f"{name} {_value(name, a)} and {_value(name, b)}"
    if one.digest != other.digest:
        return f"contents differ from byte {_first_byte(path, first, second)}"
    return f"attributes {dict(one.pax)} and {dict(other.pax)}"


def _value(name: str, value: Any) -> str:
    if name == "mode":
        return f"{value:o}"
    return _TYPES.get(value, str(value)) if name == "type" else repr(value)


def _first_byte(path: str, first: Path, second: Path) -> int:
    with ExitStack() as stack:
        files = []
        for layer in (first, second):
            tar, member = next((tar, m) for tar, m in _members(layer, stack) if m.name == path)
            files.append(_contents(tar, member))
        offset = 0
        while True:
            blocks = [file.read(_BLOCK) for file in files]
            if blocks[0] != blocks[1]:
                pairs = zip(*blocks, strict=False)
                return offset + next((n for n, (a, b) in enumerate(pairs) if a != b), min(map(len, blocks)))
            offset += len(blocks[0])


_SHOWN = 40


def verify_build_is_reproducible(app: App, plan: ImagePlan, request: BuildRequest, first_digest: str) -> None:
    """Build the image once more without cache and compare it with the one whose manifest has `first_digest`.

    Raises
    ------
    WorkFailed
        They differ; every differing file is named with its layer and the first difference.
    """
    again = f"{plan.tag}{VERIFY_TAG_SUFFIX}"
    app.say("building once more, without cache, to compare")
    try:
        with show_build_progress(app) as on_step:
            log, second = build_image(plan, dataclasses.replace(request, tag=again, use_cache=False), on_step, app.say)
        if first_digest and first_digest == second:
            app.say(f"verified: both builds have the digest {first_digest}")
            return
        if not first_digest and _layers(plan.tag) == _layers(again):
            app.say("verified: both builds have the same layers; this engine's builder tells no digest to compare")
            return
        found = list(diff_saved_images(connect_engine().export_image(plan.tag), connect_engine().export_image(again)))
        rows = [str(difference) for difference in found[:_SHOWN]]
        more = [f"… and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
        raise WorkFailed(
            _("two builds of {target} differ: {digest} and {second}\n{value}").format(
                target=plan.target,
                digest=first_digest or _("first"),
                second=second or _("second"),
                value="\n".join(f"  {row}" for row in [*rows, *more]),
            ),
            next_step=_("whole log: {log}").format(log=log),
        )
    finally:
        connect_engine().remove_tag(again)


def _layers(tag: str) -> object:
    return ((connect_engine().find_image(tag) or {}).get("RootFS") or {}).get("Layers")
