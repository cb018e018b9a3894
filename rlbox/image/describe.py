"""What explains an image: its SBOM and its provenance, from its lock alone.

The same lock and image give the same bytes. Nothing in the provenance names the machine, its user, a mirror or a moment
other than SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rlbox import __version__
from rlbox.image.contents import BUILD_TOOLS, Content, components, purl
from rlbox.target.lock import Lock

SBOM_FILE = "sbom.spdx.json"
PROVENANCE_FILE = "provenance.json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:rlbox:build:image:v1"
BUILDER = f"urn:rlbox:builder:{__version__}"

Mode = Literal["online", "hermetic"]
CONFIGURATION_NOTE = "The engine keeps no manifest of the image: the digest is that of its configuration."

_DOCUMENT, _IMAGE, _RLBOX = "SPDXRef-DOCUMENT", "SPDXRef-Image", "SPDXRef-rlbox"
_UNKNOWN = "NOASSERTION"


@dataclass(frozen=True, kw_only=True)
class Built:
    """A built image; `digest` is `sha256:…` of its manifest, or of its configuration where `has_manifest` is false."""

    name: str
    digest: str
    has_manifest: bool
    epoch: int


def plan_sbom(lock: Lock, image: Built) -> str:
    """Return the text of the SBOM.

    What builds source archives and stays out of the image is listed as a build dependency.

    Source: SPDX 2.3, https://spdx.github.io/spdx-spec/v2.3/
    """
    parts = components(lock)
    own = _described(_RLBOX, "rlbox", __version__, purl("generic", "", "rlbox", __version__, {}))
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": _DOCUMENT,
        "name": image.name,
        "documentNamespace": f"urn:rlbox:sbom:{image.digest}",
        "creationInfo": {"created": moment(image.epoch), "creators": [f"Tool: rlbox-{__version__}"]},
        "packages": [_image(image), own, *map(_package, parts)],
        "relationships": list(_relationships(parts)),
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def moment(epoch: int) -> str:
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


def _image(image: Built) -> dict[str, Any]:
    name = image.name.rpartition("/")[2]
    return {
        **_described(_IMAGE, image.name, image.digest, purl("oci", "", name, image.digest, {})),
        "primaryPackagePurpose": "CONTAINER",
        "checksums": _checksums(image.digest.partition(":")[2]),
        **({} if image.has_manifest else {"comment": CONFIGURATION_NOTE}),
    }


def _package(part: Content) -> dict[str, Any]:
    return {
        **_described(_identity(part), part.name, part.version, part.purl, part.url),
        **({"packageFileName": part.file} if part.file else {}),
        "checksums": _checksums(part.sha256),
        "sourceInfo": f"layer group: {', '.join(part.groups)}",
    }


def _checksums(sha256: str) -> list[dict[str, str]]:
    return [{"algorithm": "SHA256", "checksumValue": sha256}]


def _identity(part: Content) -> str:
    """Return an identifier of the letters that SPDX allows; the digest tells apart what then looks the same."""
    name = re.sub(r"[^A-Za-z0-9.]+", "-", part.name).strip("-")
    return f"SPDXRef-{part.kind}-{name}-{part.sha256[:16]}"


def _relationships(parts: tuple[Content, ...]) -> Iterator[dict[str, str]]:
    yield _relationship(_DOCUMENT, "DESCRIBES", _IMAGE)
    yield _relationship(_IMAGE, "CONTAINS", _RLBOX)
    for part in parts:
        if part.kind == "base":
            yield _relationship(_IMAGE, "DESCENDANT_OF", _identity(part))
            continue
        if BUILD_TOOLS in part.groups:
            yield _relationship(_identity(part), "BUILD_DEPENDENCY_OF", _IMAGE)
        if set(part.groups) != {BUILD_TOOLS}:
            yield _relationship(_IMAGE, "CONTAINS", _identity(part))


def _relationship(one: str, kind: str, other: str) -> dict[str, str]:
    return {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}


@dataclass(frozen=True, kw_only=True)
class BuiltBy:
    """How an image was built.

    `spec` is the checksum of the completed spec, empty where the image does not tell it; `versions` maps programs to
    theirs.
    """

    spec: str
    mode: Mode
    versions: Mapping[str, str]


def plan_provenance(lock: Lock, image: Built, built: BuiltBy) -> str:
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
                    **({"spec": f"sha256:{built.spec}"} if built.spec else {}),
                    "lock": f"sha256:{lock.checksum()}",
                    "mode": built.mode,
                    "epoch": image.epoch,
                },
                "resolvedDependencies": [_dependency(part) for part in components(lock)],
            },
            "runDetails": {
                "builder": {"id": BUILDER, "version": {"rlbox": __version__, **dict(sorted(built.versions.items()))}}
            },
        },
    }
    return json.dumps(statement, indent=2, ensure_ascii=False) + "\n"


def _subject(image: Built) -> dict[str, Any]:
    note = {} if image.has_manifest else {"annotations": {"rlbox.digest": CONFIGURATION_NOTE}}
    return {"name": image.name, "digest": {"sha256": image.digest.partition(":")[2]}, **note}


def _dependency(part: Content) -> dict[str, Any]:
    commit = {"gitCommit": part.version} if part.kind == "git" else {}
    return {
        "name": part.file or part.name,
        "uri": part.purl,
        "digest": {"sha256": part.sha256, **commit},
        "annotations": {"rlbox.groups": " ".join(part.groups)},
    }
