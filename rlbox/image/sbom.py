"""The SBOM of an image: a package for each file of the lock, and for the base image."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple
from urllib.parse import quote, urlsplit

from packaging.utils import canonicalize_name

from rlbox import __version__
from rlbox.engine.reference import parse_reference
from rlbox.target.lock import Lock

SBOM_FILE = "sbom.spdx.json"
_DOCUMENT, _IMAGE, _RLBOX = "SPDXRef-DOCUMENT", "SPDXRef-Image", "SPDXRef-rlbox"
_UNKNOWN = "NOASSERTION"


class SbomEntry(NamedTuple):
    """One file of a lock, or the base image.

    `version`: Of the package; a commit for git; empty for a file or a patch.
    `sha256`: Of the file, hex; for the base that of its manifest.
    `purl`: Package URL: https://github.com/package-url/purl-spec.
    `url`: Where the spec says that it comes from, without credentials and query; empty when the spec names no address.
    `relationship`: To the image, in words of SPDX: what builds others stays out of the image.
    """

    kind: Literal["base", "deb", "git", "http", "image", "patch", "pypi", "rlbox"]
    name: str
    version: str
    sha256: str
    purl: str
    file: str = ""
    url: str = ""
    relationship: Literal["CONTAINS", "BUILD_DEPENDENCY_OF", "DESCENDANT_OF"] = "CONTAINS"

    @property
    def spdx_id(self) -> str:
        """An identifier of the letters that SPDX allows; the digest tells apart what then looks the same."""
        name = re.sub(r"[^A-Za-z0-9.]+", "-", self.name).strip("-")
        return f"SPDXRef-{self.kind}-{name}-{self.sha256[:16]}"


def list_sbom_entries(lock: Lock) -> tuple[SbomEntry, ...]:
    """Return what a lock names, sorted; a file of two layer groups is one component."""
    return tuple(sorted(set(_components(lock))))


def _components(lock: Lock) -> Iterator[SbomEntry]:
    if "@" in lock.base:
        base = parse_reference(lock.base)
        qualifiers = {"repository_url": base.name_without_tag, "tag": base.tag}
        purl = format_purl("oci", base.repository.rpartition("/")[2], base.digest, qualifiers)
        sha256 = base.digest.partition(":")[2]
        yield SbomEntry("base", base.name_without_tag, base.digest, sha256, purl, relationship="DESCENDANT_OF")
    for deb in lock.debs:
        file = deb.path.rpartition("/")[2]
        architecture = file.removesuffix(".deb").rpartition("_")[2]
        purl = format_purl(f"deb/{lock.base.partition(':')[0]}", deb.name, deb.version, {"arch": architecture})
        yield SbomEntry("deb", deb.name, deb.version, deb.sha256, purl, file)
    for group in (lock.runtime, lock.build, *lock.groups):
        for package in group.packages:
            purl = format_purl("pypi", canonicalize_name(package.name), package.version)
            component = SbomEntry("pypi", package.name, package.version, package.sha256, purl, package.file)
            yield component._replace(relationship="BUILD_DEPENDENCY_OF") if group is lock.build else component
    for tree in lock.git:
        url = url_without_credentials_and_query_or_empty(tree.url)
        url = f"git+{url}@{tree.commit}" if url else ""
        purl = format_purl("generic", tree.name, tree.commit, {"vcs_url": url})
        yield SbomEntry("git", tree.name, tree.commit, tree.sha256, purl, f"{tree.name}-{tree.commit[:12]}.tar", url)
    for locked in lock.http:
        url = url_without_credentials_and_query_or_empty(locked.url)
        purl = format_purl("generic", locked.name, "", {"checksum": f"sha256:{locked.sha256}", "download_url": url})
        file = urlsplit(locked.url).path.rpartition("/")[2] or locked.name
        yield SbomEntry("http", locked.name, "", locked.sha256, purl, file, url)
    for patch in lock.patches:
        purl = format_purl("generic", patch.name, "", {"checksum": f"sha256:{patch.sha256}"})
        yield SbomEntry("patch", patch.name, "", patch.sha256, purl, patch.name)


def url_without_credentials_and_query_or_empty(url: str) -> str:
    """Return an address without user, password, query and fragment; empty when it is no address of a network."""
    parts = urlsplit(url)
    if parts.scheme not in ("git", "http", "https", "ssh") or not parts.hostname:
        return ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{quote(parts.path, safe='/%~+:@')}"


def format_purl(type_path: str, name: str, version: str, qualifiers: Mapping[str, str] | None = None) -> str:
    """Return a package URL in its canonical form, qualifiers sorted; `type_path` as `deb/debian`."""
    more = "&".join(f"{key}={quote(value, safe=':/')}" for key, value in sorted((qualifiers or {}).items()) if value)
    at = f"@{quote(version, safe=':')}" if version else ""
    return f"pkg:{type_path}/{quote(name, safe=':')}{at}" + (f"?{more}" if more else "")


def render_spdx_sbom(lock: Lock, image_name: str, image_digest: str, source_date_epoch: int) -> str:
    """Return the text of the SBOM.

    Source: SPDX 2.3, https://spdx.github.io/spdx-spec/v2.3/
    """
    components = list_sbom_entries(lock)
    created = datetime.datetime.fromtimestamp(source_date_epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    purl = format_purl("oci", image_name.rpartition("/")[2], image_digest)
    image = SbomEntry("image", image_name, image_digest, image_digest.partition(":")[2], purl)
    rlbox = SbomEntry("rlbox", "rlbox", __version__, "", format_purl("generic", "rlbox", __version__))
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": _DOCUMENT,
        "name": image_name,
        "documentNamespace": f"urn:rlbox:sbom:{image_digest}",
        "creationInfo": {"created": created, "creators": [f"Tool: rlbox-{__version__}"]},
        "packages": [
            {**_describe_package(_IMAGE, image), "primaryPackagePurpose": "CONTAINER"},
            _describe_package(_RLBOX, rlbox),
            *{one.spdx_id: _describe_package(one.spdx_id, one) for one in components}.values(),
        ],
        "relationships": [
            _relationship(_DOCUMENT, "DESCRIBES", _IMAGE),
            _relationship(_IMAGE, "CONTAINS", _RLBOX),
            *(
                _relationship(one.spdx_id, one.relationship, _IMAGE)
                if one.relationship == "BUILD_DEPENDENCY_OF"
                else _relationship(_IMAGE, one.relationship, one.spdx_id)
                for one in components
            ),
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _describe_package(spdx_id: str, component: SbomEntry) -> dict[str, Any]:
    sha256 = component.sha256
    return {
        "SPDXID": spdx_id,
        "name": component.name,
        **({"versionInfo": component.version} if component.version else {}),
        **({"packageFileName": component.file} if component.file else {}),
        "supplier": _UNKNOWN,
        "downloadLocation": component.url or _UNKNOWN,
        "filesAnalyzed": False,
        **({"checksums": [{"algorithm": "SHA256", "checksumValue": sha256}]} if sha256 else {}),
        "licenseConcluded": _UNKNOWN,
        "licenseDeclared": _UNKNOWN,
        "copyrightText": _UNKNOWN,
        "externalRefs": [
            {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": component.purl}
        ],
    }


def _relationship(element: str, relationship: str, related: str) -> dict[str, str]:
    return {"spdxElementId": element, "relationshipType": relationship, "relatedSpdxElement": related}
