"""What an image is made of, as the SBOM and the provenance name it: one component for each file of the lock."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from rlbox import __version__
from rlbox.engine.reference import parse_reference
from rlbox.target.lock import Deb, GitTree, HttpFile, Lock, Package

ComponentKind = Literal["base", "deb", "git", "http", "patch", "pypi"]
BUILD_TOOLS_GROUP = "build"
"""The group of packages that build others and stay out of the image."""

_RUNS_OF_SIGNS = re.compile(r"[-_.]+")


@dataclass(frozen=True, kw_only=True)
class Component:
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

    kind: ComponentKind
    name: str
    version: str
    file: str
    sha256: str
    groups: tuple[str, ...]
    purl: str
    url: str = ""


def list_components(lock: Lock) -> tuple[Component, ...]:
    """Return what a lock names, sorted; a file that two groups share is one component of both."""
    found: dict[tuple[str, str], Component] = {}
    for one in _components(lock):
        known = found.setdefault((one.purl, one.sha256), one)
        found[one.purl, one.sha256] = replace(known, groups=tuple(sorted({*known.groups, *one.groups})))
    return tuple(sorted(found.values(), key=lambda one: (one.kind, one.name, one.version, one.sha256)))


def _components(lock: Lock) -> Iterator[Component]:
    if "@" in lock.base:
        yield _base(lock.base)
    yield from (_deb(deb, lock.base.partition(":")[0]) for deb in lock.debs)
    for group in (lock.runtime, lock.build, *lock.groups):
        yield from (_python_package(package, group.name) for package in group.packages)
    yield from map(_tree, lock.git)
    yield from map(_file, lock.http)
    for patch in lock.patches:
        known_by = format_purl("generic", "", patch.name, "", {"checksum": f"sha256:{patch.sha256}"})
        values = {"name": patch.name, "file": patch.name, "sha256": patch.sha256, "purl": known_by}
        yield Component(kind="patch", version="", groups=("patches",), **values)


def _base(image: str) -> Component:
    named = parse_reference(image)
    name = named.repository.rpartition("/")[2]
    qualifiers = {"repository_url": named.name} | ({"tag": named.tag} if named.tag else {})
    return Component(
        kind="base",
        name=named.name,
        version=named.digest,
        file="",
        sha256=named.digest.partition(":")[2],
        groups=("base",),
        purl=format_purl("oci", "", name, named.digest, qualifiers),
    )


def _deb(deb: Deb, distribution: str) -> Component:
    file = deb.path.rpartition("/")[2]
    architecture = file.removesuffix(".deb").rpartition("_")[2]
    return Component(
        kind="deb",
        name=deb.name,
        version=deb.version,
        file=file,
        sha256=deb.sha256,
        groups=("os",),
        purl=format_purl("deb", distribution, deb.name, deb.version, {"arch": architecture}),
    )


def _python_package(package: Package, group: str) -> Component:
    return Component(
        kind="pypi",
        name=package.name,
        version=package.version,
        file=package.file,
        sha256=package.sha256,
        groups=(group,),
        purl=format_purl("pypi", "", _RUNS_OF_SIGNS.sub("-", package.name).lower(), package.version, {}),
    )


def _tree(tree: GitTree) -> Component:
    url = strip_credentials(tree.url)
    address = f"git+{url}@{tree.commit}" if url else ""
    return Component(
        kind="git",
        name=tree.name,
        version=tree.commit,
        file=f"{tree.name}-{tree.commit[:12]}.tar",
        sha256=tree.sha256,
        groups=("git",),
        purl=format_purl("generic", "", tree.name, tree.commit, {"vcs_url": address} if address else {}),
        url=address,
    )


def _file(file: HttpFile) -> Component:
    url = strip_credentials(file.url)
    qualifiers = {"checksum": f"sha256:{file.sha256}"} | ({"download_url": url} if url else {})
    return Component(
        kind="http",
        name=file.name,
        version="",
        file=urlsplit(file.url).path.rpartition("/")[2] or file.name,
        sha256=file.sha256,
        groups=("http",),
        purl=format_purl("generic", "", file.name, "", qualifiers),
        url=url,
    )


def strip_credentials(url: str) -> str:
    """Return an address without user, password, query and fragment; empty when it is no address of a network."""
    parts = urlsplit(url)
    if parts.scheme not in ("git", "http", "https", "ssh") or not parts.hostname:
        return ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{quote(parts.path, safe='/%~+:@')}"


def format_purl(purl_type: str, namespace: str, name: str, version: str, qualifiers: Mapping[str, str]) -> str:
    """Return a package URL in its canonical form: parts percent-encoded, qualifiers sorted."""
    path = "/".join(_encoded(part) for part in (namespace, name) if part)
    more = "&".join(f"{key}={_encoded(value, '/')}" for key, value in sorted(qualifiers.items()) if value)
    return f"pkg:{purl_type}/{path}" + (f"@{_encoded(version)}" if version else "") + (f"?{more}" if more else "")


def _encoded(text: str, safe: str = "") -> str:
    return quote(text, safe=f":{safe}")


SBOM_FILE = "sbom.spdx.json"
PROVENANCE_FILE = "provenance.json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:rlbox:build:image:v1"
BUILDER = f"urn:rlbox:builder:{__version__}"

BuildMode = Literal["online", "hermetic"]
CONFIGURATION_NOTE = "The engine keeps no manifest of the image: the digest is that of its configuration."

_DOCUMENT, _IMAGE, _RLBOX = "SPDXRef-DOCUMENT", "SPDXRef-Image", "SPDXRef-rlbox"
_UNKNOWN = "NOASSERTION"


@dataclass(frozen=True, kw_only=True)
class BuiltImage:
    """A built image; `digest` is `sha256:…` of its manifest, or of its configuration where `has_manifest` is false."""

    name: str
    digest: str
    has_manifest: bool
    source_date_epoch: int


def render_sbom(lock: Lock, image: BuiltImage) -> str:
    """Return the text of the SBOM.

    What builds source archives and stays out of the image is listed as a build dependency.

    Source: SPDX 2.3, https://spdx.github.io/spdx-spec/v2.3/
    """
    parts = list_components(lock)
    own = _described(_RLBOX, "rlbox", __version__, format_purl("generic", "", "rlbox", __version__, {}))
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": _DOCUMENT,
        "name": image.name,
        "documentNamespace": f"urn:rlbox:sbom:{image.digest}",
        "creationInfo": {"created": format_epoch(image.source_date_epoch), "creators": [f"Tool: rlbox-{__version__}"]},
        "packages": [_image(image), own, *map(_package, parts)],
        "relationships": list(_relationships(parts)),
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def format_epoch(epoch: int) -> str:
    """Return SOURCE_DATE_EPOCH (seconds) as SPDX and in-toto write time."""
    return datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _described(identity: str, name: str, version: str, known_by: str, url: str = "") -> dict[str, Any]:
    """Return the fields that every package has; licences are not looked into."""
    reference = {
        "referenceCategory": "PACKAGE-MANAGER",
        "referenceType": "purl",
        "referenceLocator": known_by,
    }
    return {
        "SPDXID": identity,
        "name": name,
        **({"versionInfo": version} if version else {}),
        "supplier": _UNKNOWN,
        "downloadLocation": url or _UNKNOWN,
        "filesAnalyzed": False,
        "licenseConcluded": _UNKNOWN,
        "licenseDeclared": _UNKNOWN,
        "copyrightText": _UNKNOWN,
        "externalRefs": [reference],
    }


def _image(image: BuiltImage) -> dict[str, Any]:
    name = image.name.rpartition("/")[2]
    return {
        **_described(_IMAGE, image.name, image.digest, format_purl("oci", "", name, image.digest, {})),
        "primaryPackagePurpose": "CONTAINER",
        "checksums": _checksums(image.digest.partition(":")[2]),
        **({} if image.has_manifest else {"comment": CONFIGURATION_NOTE}),
    }


def _package(part: Component) -> dict[str, Any]:
    return {
        **_described(_identity(part), part.name, part.version, part.purl, part.url),
        **({"packageFileName": part.file} if part.file else {}),
        "checksums": _checksums(part.sha256),
        "sourceInfo": f"layer group: {', '.join(part.groups)}",
    }


def _checksums(sha256: str) -> list[dict[str, str]]:
    return [{"algorithm": "SHA256", "checksumValue": sha256}]


def _identity(part: Component) -> str:
    """Return an identifier of the letters that SPDX allows; the digest tells apart what then looks the same."""
    name = re.sub(r"[^A-Za-z0-9.]+", "-", part.name).strip("-")
    return f"SPDXRef-{part.kind}-{name}-{part.sha256[:16]}"


def _relationships(parts: tuple[Component, ...]) -> Iterator[dict[str, str]]:
    yield _relationship(_DOCUMENT, "DESCRIBES", _IMAGE)
    yield _relationship(_IMAGE, "CONTAINS", _RLBOX)
    for part in parts:
        if part.kind == "base":
            yield _relationship(_IMAGE, "DESCENDANT_OF", _identity(part))
            continue
        if BUILD_TOOLS_GROUP in part.groups:
            yield _relationship(_identity(part), "BUILD_DEPENDENCY_OF", _IMAGE)
        if set(part.groups) != {BUILD_TOOLS_GROUP}:
            yield _relationship(_IMAGE, "CONTAINS", _identity(part))


def _relationship(one: str, kind: str, other: str) -> dict[str, str]:
    return {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}


@dataclass(frozen=True, kw_only=True)
class ImageBuilder:
    """How an image was built.

    `spec_checksum` is that of the completed spec, empty where the image does not tell it; `versions` maps programs to
    theirs.
    """

    spec_checksum: str
    mode: BuildMode
    versions: Mapping[str, str]


def render_provenance(lock: Lock, image: BuiltImage, builder: ImageBuilder) -> str:
    """Return the text of the provenance.

    Source: https://in-toto.io/Statement/v1 and https://slsa.dev/spec/v1.0/provenance
    """
    statement = {
        "_type": STATEMENT,
        "subject": [_subject(image)],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "target": lock.target,
                    **({"spec": f"sha256:{builder.spec_checksum}"} if builder.spec_checksum else {}),
                    "lock": f"sha256:{lock.checksum()}",
                    "mode": builder.mode,
                    "epoch": image.source_date_epoch,
                },
                "resolvedDependencies": [_dependency(part) for part in list_components(lock)],
            },
            "runDetails": {
                "builder": {"id": BUILDER, "version": {"rlbox": __version__, **dict(sorted(builder.versions.items()))}}
            },
        },
    }
    return json.dumps(statement, indent=2, ensure_ascii=False) + "\n"


def _subject(image: BuiltImage) -> dict[str, Any]:
    note = {} if image.has_manifest else {"annotations": {"rlbox.digest": CONFIGURATION_NOTE}}
    return {"name": image.name, "digest": {"sha256": image.digest.partition(":")[2]}, **note}


def _dependency(part: Component) -> dict[str, Any]:
    commit = {"gitCommit": part.version} if part.kind == "git" else {}
    return {
        "name": part.file or part.name,
        "uri": part.purl,
        "digest": {"sha256": part.sha256, **commit},
        "annotations": {"rlbox.groups": " ".join(part.groups)},
    }
