"""The operating system layer: mmdebstrap's command, and the archive of exactly the locked packages that it reads."""

from __future__ import annotations

from dataclasses import replace

from fakes import DEB, Folder

from rlbox.artifacts.object_store import ObjectStore
from rlbox.image.bootstrap import (
    cached_rootfs_archive_path,
    deb_path_basename,
    ensure_cached_rootfs_archive,
    render_apt_packages_index,
)
from rlbox.image.plan import hash_rootfs_inputs

BASH = replace(DEB, name="bash", version="1:5", path="pool/main/b/bash/bash_5_amd64.deb", sha256="e" * 64, size=7)


def test_the_package_list() -> None:
    controls = {BASH.sha256: "Package: bash\nVersion: 1:5\n\n", DEB.sha256: "Package: python3"}
    assert render_apt_packages_index((BASH, DEB), controls) == (
        "Package: bash\nVersion: 1:5\nFilename: ./bash_5_amd64.deb\nSize: 7\n"
        f"SHA256: {BASH.sha256}\n\n"
        "Package: python3\nFilename: ./python3_3.11.2-1+b1_amd64.deb\nSize: 26296\n"
        f"SHA256: {DEB.sha256}\n\n"
    )
    assert render_apt_packages_index((), {}) == ""
    assert deb_path_basename(DEB) == "python3_3.11.2-1+b1_amd64.deb"


def test_what_decides_the_bytes(folder: Folder) -> None:
    folder.target("mine")
    lock = replace(folder.fitting_lock("mine"), debs=(BASH, DEB))
    one = hash_rootfs_inputs(lock, 7)
    assert hash_rootfs_inputs(replace(lock, debs=(DEB, BASH), target="other", spec="", groups=()), 7) == one
    others = [
        hash_rootfs_inputs(lock, 8),
        hash_rootfs_inputs(replace(lock, debs=(DEB,)), 7),
        hash_rootfs_inputs(replace(lock, base="debian:trixie"), 7),
    ]
    assert len({one, *others}) == 4


def test_an_archive_that_is_there_is_not_made_again(folder: Folder) -> None:
    folder.target("mine")
    path = cached_rootfs_archive_path("2" * 64)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"tar")
    assert (
        ensure_cached_rootfs_archive(folder.fitting_lock("mine"), "2" * 64, 7, ObjectStore(folder.path / "store"))
        == path
    )
