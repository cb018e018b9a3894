"""The provenance of an image: what it was built from and by what, as an in-toto statement with SLSA's predicate.

Nothing in it names the machine, its user, a mirror or a moment other than SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rlbox import __version__
from rlbox.image.contents import Content, components
from rlbox.image.sbom import CONFIGURATION_NOTE, Built
from rlbox.target.lock import Lock

PROVENANCE_FILE = "provenance.json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:rlbox:build:image:v1"
BUILDER = f"urn:rlbox:builder:{__version__}"

Mode = Literal["online", "hermetic"]


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
