"""Read single files out of a base image in the store, layer by layer, without an engine."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, cast

from rlbox.artifacts.base_image import base_files
from rlbox.artifacts.objects import Store
from rlbox.errors import WorkFailed
from rlbox.i18n import _
from rlbox.system.compression import zstd

_ZSTD = b"\x28\xb5\x2f\xfd"
GONE = ".wh."  # a layer's mark that a file of a lower one is removed; source: OCI image layer specification


def open_layer(path: Path) -> IO[bytes]:
    """Return a layer's tar, packed as it is when it is not zstd (tarfile reads gzip itself)."""
    with path.open("rb") as file:
        packed = file.read(4) == _ZSTD
    return cast("IO[bytes]", zstd.ZstdFile(path)) if packed else path.open("rb")


def extract_files(base: str, platform: str, store: Store, wanted: tuple[str, ...], folder: Path) -> None:
    """Write the files of a base image that lie below the paths `wanted` into `folder`, as the image has them at last.

    Parameters
    ----------
    wanted
        Paths without a slash at the front: `var/lib/dpkg/status`, `etc/apt`.

    Raises
    ------
    WorkFailed
        A layer is no archive, or holds what no folder can.
    """
    for file in base_files(store, base, platform):
        if " layer " not in file.file:
            continue
        try:
            with open_layer(store.path(file.sha256)) as stream, tarfile.open(fileobj=stream, mode="r|*") as tar:
                for member in _below(tar, wanted):
                    _take(tar, member, folder)
        except (tarfile.TarError, zstd.ZstdError, EOFError) as error:
            raise WorkFailed(
                _("{file} is no archive: {error}").format(file=file.file, error=error), where=base
            ) from error
        except (FileExistsError, NotADirectoryError, IsADirectoryError, ValueError) as error:
            raise WorkFailed(
                _("{file} holds a file below a file, or no name: {error}").format(file=file.file, error=error),
                where=base,
            ) from error


def _below(tar: tarfile.TarFile, wanted: tuple[str, ...]) -> Iterator[tarfile.TarInfo]:
    for member in tar:
        path = PurePosixPath(member.name.lstrip("./"))
        if ".." not in path.parts and any(path.is_relative_to(root) for root in wanted):
            yield member


def _stays(path: Path, link: str, folder: Path) -> bool:
    """Whether a link that lies at `path` leads to what is below `folder`."""
    leads = os.path.normpath(path.parent / link)
    return not os.path.isabs(link) and Path(leads).is_relative_to(folder)


def _take(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    path = folder / member.name.lstrip("./")
    if any(part.is_symlink() for part in path.parents if part != folder and part.is_relative_to(folder)):
        return  # below a link of the image's making, which may lead out of the folder
    if path.name.startswith(GONE):
        path.with_name(path.name.removeprefix(GONE)).unlink(missing_ok=True)
    elif member.isfile() and (file := tar.extractfile(member)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # a link would be written through
        path.write_bytes(file.read())
    elif member.issym() and _stays(path, member.linkname, folder):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(member.linkname)
