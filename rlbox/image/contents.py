"""What an image is made of, as the SBOM and the provenance name it: one component for each file of the lock."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal
from urllib.parse import quote, urlsplit

from rlbox.engine.reference import parse_reference
from rlbox.target.lock import Deb, GitTree, HttpFile, Lock, Package

Kind = Literal["base", "deb", "git", "http", "patch", "pypi"]
BUILD_TOOLS = "build"
"""The group of packages that build others and stay out of the image."""

_RUNS_OF_SIGNS = re.compile(r"[-_.]+")


@dataclass(frozen=True, kw_only=True)
class Content:
    """One file of a lock, or the base image.

    Attributes
    ----------
    version
        Of the package; a commit for git; empty for a file or a patch.
    sha256
        Of the file, hex; for the base that of its manifest.
    groups
        Where it ends up, sorted: `os`, `runtime`, `build`, groups of the stack, `git`, `http`, `patches`, `base`.
    purl
        Package URL: https://github.com/package-url/purl-spec.
    url
        Where the spec says that it comes from, without credentials and query; empty when the spec names no address.
    """

    kind: Kind
    name: str
    version: str
    file: str
    sha256: str
    groups: tuple[str, ...]
    purl: str
    url: str = ""


def components(lock: Lock) -> tuple[Content, ...]:
    """Return what a lock names, sorted; a file that two groups share is one component of both."""
    found: dict[tuple[str, str], Content] = {}
    for one in _components(lock):
        known = found.setdefault((one.purl, one.sha256), one)
        found[one.purl, one.sha256] = replace(known, groups=tuple(sorted({*known.groups, *one.groups})))
    return tuple(sorted(found.values(), key=lambda one: (one.kind, one.name, one.version, one.sha256)))


def _components(lock: Lock) -> Iterator[Content]:
    if "@" in lock.base:
        yield _base(lock.base)
    yield from (_deb(deb, lock.base.partition(":")[0]) for deb in lock.debs)
    for group in (lock.runtime, lock.build, *lock.groups):
        yield from (_package(package, group.name) for package in group.packages)
    yield from map(_tree, lock.git)
    yield from map(_file, lock.http)
    for patch in lock.patches:
        known_by = purl("generic", "", patch.name, "", {"checksum": f"sha256:{patch.sha256}"})
        values = {"name": patch.name, "file": patch.name, "sha256": patch.sha256, "purl": known_by}
        yield Content(kind="patch", version="", groups=("patches",), **values)


def _base(image: str) -> Content:
    named = parse_reference(image)
    name = named.repository.rpartition("/")[2]
    qualifiers = {"repository_url": named.name} | ({"tag": named.tag} if named.tag else {})
    return Content(
        kind="base",
        name=named.name,
        version=named.digest,
        file="",
        sha256=named.digest.partition(":")[2],
        groups=("base",),
        purl=purl("oci", "", name, named.digest, qualifiers),
    )


def _deb(deb: Deb, distribution: str) -> Content:
    file = deb.path.rpartition("/")[2]
    architecture = file.removesuffix(".deb").rpartition("_")[2]
    return Content(
        kind="deb",
        name=deb.name,
        version=deb.version,
        file=file,
        sha256=deb.sha256,
        groups=("os",),
        purl=purl("deb", distribution, deb.name, deb.version, {"arch": architecture}),
    )


def _package(package: Package, group: str) -> Content:
    return Content(
        kind="pypi",
        name=package.name,
        version=package.version,
        file=package.file,
        sha256=package.sha256,
        groups=(group,),
        purl=purl("pypi", "", _RUNS_OF_SIGNS.sub("-", package.name).lower(), package.version, {}),
    )


def _tree(tree: GitTree) -> Content:
    url = public_url(tree.url)
    address = f"git+{url}@{tree.commit}" if url else ""
    return Content(
        kind="git",
        name=tree.name,
        version=tree.commit,
        file=f"{tree.name}-{tree.commit[:12]}.tar",
        sha256=tree.sha256,
        groups=("git",),
        purl=purl("generic", "", tree.name, tree.commit, {"vcs_url": address} if address else {}),
        url=address,
    )


def _file(file: HttpFile) -> Content:
    url = public_url(file.url)
    qualifiers = {"checksum": f"sha256:{file.sha256}"} | ({"download_url": url} if url else {})
    return Content(
        kind="http",
        name=file.name,
        version="",
        file=urlsplit(file.url).path.rpartition("/")[2] or file.name,
        sha256=file.sha256,
        groups=("http",),
        purl=purl("generic", "", file.name, "", qualifiers),
        url=url,
    )


def public_url(url: str) -> str:
    """Return an address without user, password, query and fragment; empty when it is no address of a network."""
    parts = urlsplit(url)
    if parts.scheme not in ("git", "http", "https", "ssh") or not parts.hostname:
        return ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{quote(parts.path, safe='/%~+:@')}"


def purl(kind: str, namespace: str, name: str, version: str, qualifiers: Mapping[str, str]) -> str:
    """Return a package URL in its canonical form: parts percent-encoded, qualifiers sorted."""
    path = "/".join(_encoded(part) for part in (namespace, name) if part)
    more = "&".join(f"{key}={_encoded(value, '/')}" for key, value in sorted(qualifiers.items()) if value)
    return f"pkg:{kind}/{path}" + (f"@{_encoded(version)}" if version else "") + (f"?{more}" if more else "")


def _encoded(text: str, safe: str = "") -> str:
    return quote(text, safe=f":{safe}")
