"""The operating system layer: mmdebstrap's command, and the archive of exactly the locked packages that it reads."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import DEB, Folder

from rlbox.artifacts.object_store import ObjectStore
from rlbox.errors import NodeError
from rlbox.image.bootstrap import (
    BOOTSTRAP_RECIPE,
    deb_file_name,
    ensure_rootfs_archive,
    plan_mmdebstrap_command,
    render_packages_index,
    render_release_file,
    rootfs_cache_path,
)
from rlbox.image.labels import compute_rootfs_checksum
from rlbox.system.files import cache_path
from rlbox.values import Command

BASH = replace(DEB, name="bash", version="1:5", path="pool/main/b/bash/bash_5_amd64.deb", sha256="e" * 64, size=7)


def test_the_command() -> None:
    left_out = ("doc", "man", "info", "locale", "lintian")
    removed = (
        "var/log/apt",
        "var/log/dpkg.log",
        "var/log/alternatives.log",
        "var/cache/ldconfig/aux-cache",
        "etc/machine-id",
        "etc/hostname",
        "etc/resolv.conf",
    )
    assert plan_mmdebstrap_command(
        "debian:bookworm", (BASH, DEB), 7, "/tmp/debs", "/h/merged-usr", "/out/os.tar"
    ) == Command(
        argv=(
            "mmdebstrap",
            "--variant=minbase",
            "--quiet",
            "--hook-dir=/h/merged-usr",
            "--include=bash,python3",
            *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in left_out),
            *(f'--customize-hook=rm -rf "$1/{path}"' for path in removed),
            "--customize-hook=echo '# made from locked packages; name an archive here to install more' "
            '>"$1/etc/apt/sources.list"',
            "bookworm",
            "/out/os.tar",
            "deb [trusted=yes] copy:/tmp/debs ./",
        ),
        env={"SOURCE_DATE_EPOCH": "7", "LC_ALL": "C"},
        timeout_s=1800,
    )


def test_the_package_list() -> None:
    controls = {BASH.sha256: "Package: bash\nVersion: 1:5\n\n", DEB.sha256: "Package: python3"}
    assert render_packages_index((BASH, DEB), controls) == (
        "Package: bash\nVersion: 1:5\nFilename: ./bash_5_amd64.deb\nSize: 7\n"
        f"SHA256: {BASH.sha256}\n\n"
        "Package: python3\nFilename: ./python3_3.11.2-1+b1_amd64.deb\nSize: 26296\n"
        f"SHA256: {DEB.sha256}\n\n"
    )
    assert render_packages_index((), {}) == ""
    assert deb_file_name(DEB) == "python3_3.11.2-1+b1_amd64.deb"


def test_the_release() -> None:
    assert render_release_file("bookworm", "amd64", "f" * 64, 12) == (
        f"Codename: bookworm\nSuite: bookworm\nArchitectures: amd64\nSHA256:\n {'f' * 64} 12 Packages\n"
    )


def test_where_the_archive_lies() -> None:
    """The recipe is part of the name: another one makes other bytes of the same packages."""
    recipe = hashlib.sha256(f"{'2' * 64}{BOOTSTRAP_RECIPE}".encode()).hexdigest()
    assert rootfs_cache_path("2" * 64) == cache_path("bootstrap", f"{recipe[:24]}.tar")


def test_what_decides_the_bytes(folder: Folder) -> None:
    folder.target("mine")
    lock = replace(folder.fitting_lock("mine"), debs=(BASH, DEB))
    one = compute_rootfs_checksum(lock, 7)
    assert compute_rootfs_checksum(replace(lock, debs=(DEB, BASH), target="other", spec="", groups=()), 7) == one
    others = [
        compute_rootfs_checksum(lock, 8),
        compute_rootfs_checksum(replace(lock, debs=(DEB,)), 7),
        compute_rootfs_checksum(replace(lock, base="debian:trixie"), 7),
    ]
    assert len({one, *others}) == 4


def test_an_archive_that_is_there_is_not_made_again(folder: Folder) -> None:
    folder.target("mine")
    path = rootfs_cache_path("2" * 64)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"tar")
    assert ensure_rootfs_archive(folder.fitting_lock("mine"), "2" * 64, 7, ObjectStore(folder.path / "store")) == path


def test_no_mmdebstrap(folder: Folder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder.target("mine")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NodeError) as caught:
        ensure_rootfs_archive(folder.fitting_lock("mine"), "2" * 64, 7, ObjectStore(folder.path / "store"))
    assert str(caught.value) == (
        "mmdebstrap is not installed, and the target's base is bootstrapped from apt\n"
        "  where: base.bootstrap\n"
        "  next:  apt-get install mmdebstrap (or set base.image to an image by digest)"
    )
    assert not rootfs_cache_path("2" * 64).exists()
