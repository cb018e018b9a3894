"""The provenance: SLSA's predicate, what it is about, what it must not tell."""

from __future__ import annotations

import getpass
import json
import socket
from dataclasses import replace

import pytest
from locks import COMMIT, SECRET, WHOLE

from rlbox.image.sbom import BuiltImage, ImageBuilder, render_provenance

IMAGE = BuiltImage(name="rlbox/mine", digest="sha256:" + "e" * 64, has_manifest=True, source_date_epoch=1735689600)
BY = ImageBuilder(spec_checksum="f" * 64, mode="online", versions={"engine": "26.1.5+dfsg1"})
SMALL = replace(WHOLE, debs=(), runtime=replace(WHOLE.runtime, packages=()), groups=(), http=(), patches=())


def test_the_whole_statement() -> None:
    assert json.loads(render_provenance(replace(SMALL, git=WHOLE.git[:1]), IMAGE, BY)) == {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "rlbox/mine", "digest": {"sha256": "e" * 64}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:rlbox:build:image:v1",
                "externalParameters": {
                    "target": "mine",
                    "spec": f"sha256:{'f' * 64}",
                    "lock": f"sha256:{replace(SMALL, git=WHOLE.git[:1]).checksum()}",
                    "mode": "online",
                    "epoch": 1735689600,
                },
                "resolvedDependencies": [
                    {
                        "name": f"slime-{COMMIT[:12]}.tar",
                        "uri": f"pkg:generic/slime@{COMMIT}"
                        f"?vcs_url=git%2Bhttps://git.example.org/team/slime.git%40{COMMIT}",
                        "digest": {"sha256": "7" * 64, "gitCommit": COMMIT},
                        "annotations": {"rlbox.groups": "git"},
                    },
                    {
                        "name": "setuptools-80.9.0-py3-none-any.whl",
                        "uri": "pkg:pypi/setuptools@80.9.0",
                        "digest": {"sha256": "3" * 64},
                        "annotations": {"rlbox.groups": "build"},
                    },
                ],
            },
            "runDetails": {
                "builder": {
                    "id": "urn:rlbox:builder:0.1.0",
                    "version": {"rlbox": "0.1.0", "engine": "26.1.5+dfsg1"},
                }
            },
        },
    }


def test_every_file_of_the_lock_is_a_dependency_with_its_digest() -> None:
    data = json.loads(render_provenance(WHOLE, IMAGE, BY))
    rows = data["predicate"]["buildDefinition"]["resolvedDependencies"]
    wanted = {package.sha256 for package in WHOLE.list_packages()}
    wanted |= {row.sha256 for row in (*WHOLE.debs, *WHOLE.git, *WHOLE.http, *WHOLE.patches)}
    assert {row["digest"]["sha256"] for row in rows} == wanted
    assert all(row["uri"].startswith("pkg:") for row in rows)


def test_the_same_build_gives_the_same_bytes() -> None:
    assert render_provenance(WHOLE, IMAGE, BY) == render_provenance(
        replace(WHOLE, git=WHOLE.git[::-1]), IMAGE, BY
    ).replace(replace(WHOLE, git=WHOLE.git[::-1]).checksum(), WHOLE.checksum())


def test_how_it_was_built_is_all_that_a_hermetic_build_tells_otherwise() -> None:
    online = render_provenance(WHOLE, IMAGE, BY)
    assert render_provenance(WHOLE, IMAGE, replace(BY, mode="hermetic")) == online.replace('"online"', '"hermetic"')


def test_an_engine_without_manifests_is_told_of() -> None:
    (subject,) = json.loads(render_provenance(WHOLE, replace(IMAGE, has_manifest=False), BY))["subject"]
    assert subject["annotations"] == {
        "rlbox.digest": "The engine keeps no manifest of the image: the digest is that of its configuration."
    }


def test_an_image_that_does_not_tell_its_spec() -> None:
    data = json.loads(render_provenance(WHOLE, IMAGE, replace(BY, spec_checksum="")))
    assert "spec" not in data["predicate"]["buildDefinition"]["externalParameters"]


def test_neither_secret_nor_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UV_DEFAULT_INDEX", "PIP_INDEX_URL", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"https://{SECRET}@mirror.example/simple")
    monkeypatch.setenv("USER", "somebody-of-this-machine")
    text = render_provenance(WHOLE, IMAGE, BY)
    for trace in (SECRET, "mirror.example", getpass.getuser(), socket.gethostname() + "."):
        assert trace not in text
