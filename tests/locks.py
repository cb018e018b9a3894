"""A lock with one of everything, for tests of what is said about an image."""

from __future__ import annotations

from rlbox.target.lock import Deb, GitTree, HttpFile, Lock, LockedPackageGroup, LockedPatch, Package

SECRET = "s3cr3t-token"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def package(name: str, version: str, sign: str, size: int = 2048, source: str = "python") -> Package:
    """Return a wheel whose sha256 is one digit, repeated."""
    file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    return Package(name=name, version=version, file=file, sha256=sign * 64, size=size, source=source)


CLICK = package("click", "8.1.8", "1")

WHOLE = Lock(
    target="mine",
    spec="5" * 64,
    python="3.11",
    platform="x86_64-manylinux_2_28",
    base="debian:bookworm",
    debs=(
        Deb(
            name="bsdutils",
            version="1:2.38.1-5+deb12u3",
            archive="debian",
            path="pool/main/u/util-linux/bsdutils_2.38.1-5+deb12u3_amd64.deb",
            sha256="d" * 64,
            size=26296,
        ),
    ),
    runtime=LockedPackageGroup(name="runtime", packages=(CLICK, package("uv", "0.9.1", "2"))),
    build=LockedPackageGroup(name="build", packages=(package("setuptools", "80.9.0", "3"),)),
    groups=(
        LockedPackageGroup(
            name="torch", packages=(package("torch", "2.9.0+cu128", "4", 900 << 20, "torch-wheels/cu128"),)
        ),
        LockedPackageGroup(name="tools", packages=(CLICK, package("Ruamel.yaml_clib", "0.2.12", "6"))),
    ),
    git=(
        GitTree(
            name="slime",
            url=f"https://someone:{SECRET}@git.example.org/team/slime.git",
            ref="main",
            commit=COMMIT,
            tree=COMMIT[::-1],
            sha256="7" * 64,
            size=1024,
        ),
        GitTree(
            name="here",
            url=f"/srv/{SECRET}/here",
            ref="main",
            commit=COMMIT[::-1],
            tree=COMMIT,
            sha256="8" * 64,
            size=1024,
        ),
    ),
    http=(
        HttpFile(
            name="kernels",
            url=f"https://files.example.org:8443/a b/kernels.whl?token={SECRET}#x",
            sha256="9" * 64,
            size=10,
        ),
    ),
    patches=(LockedPatch(name="fix-ports.patch", sha256="a" * 64),),
)
