"""The SBOM: valid for the library of the standard's makers, the same bytes every time, without secrets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from locks import COMMIT, SECRET, WHOLE
from spdx_tools.spdx.model import Document
from spdx_tools.spdx.model.relationship import RelationshipType
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from rlbox.image.sbom import (
    format_purl,
    list_sbom_entries,
    render_spdx_sbom,
    url_without_credentials_and_query_or_empty,
)
from rlbox.target.lock import Lock

DIGEST = "sha256:" + "e" * 64
IMAGE = ("rlbox/mine", DIGEST, 1735689600)
ON_IMAGE = replace(WHOLE, base=f"registry.example:5000/team/base:v1@sha256:{'b' * 64}", debs=())


def read(folder: Path, lock: Lock) -> Document:
    path = folder / "sbom.spdx.json"
    path.write_text(render_spdx_sbom(lock, *IMAGE), encoding="utf-8")
    return parse_file(str(path))


@pytest.mark.parametrize("lock", [WHOLE, ON_IMAGE], ids=["bootstrapped", "on an image"])
def test_it_is_valid_spdx(tmp_path: Path, lock: Lock) -> None:
    messages = validate_full_spdx_document(read(tmp_path, lock), "SPDX-2.3")
    assert [message.validation_message for message in messages] == []


def test_what_the_image_is_made_of(tmp_path: Path) -> None:
    document = read(tmp_path, WHOLE)
    found = {
        package.name: (package.version, package.file_name, package.external_references[0].locator)
        for package in document.packages
    }
    wheel = "Ruamel.yaml_clib-0.2.12-py3-none-any.whl"
    assert found == {
        "rlbox/mine": (DIGEST, None, f"pkg:oci/mine@{DIGEST}"),
        "rlbox": ("0.1.0", None, "pkg:generic/rlbox@0.1.0"),
        "bsdutils": (
            "1:2.38.1-5+deb12u3",
            "bsdutils_2.38.1-5+deb12u3_amd64.deb",
            "pkg:deb/debian/bsdutils@1:2.38.1-5%2Bdeb12u3?arch=amd64",
        ),
        "slime": (
            COMMIT,
            f"slime-{COMMIT[:12]}.tar",
            f"pkg:generic/slime@{COMMIT}?vcs_url=git%2Bhttps://git.example.org/team/slime.git%40{COMMIT}",
        ),
        "here": (COMMIT[::-1], f"here-{COMMIT[::-1][:12]}.tar", f"pkg:generic/here@{COMMIT[::-1]}"),
        "kernels": (
            None,
            "kernels.whl",
            f"pkg:generic/kernels?checksum=sha256:{'9' * 64}"
            "&download_url=https://files.example.org:8443/a%2520b/kernels.whl",
        ),
        "fix-ports.patch": (None, "fix-ports.patch", f"pkg:generic/fix-ports.patch?checksum=sha256:{'a' * 64}"),
        "Ruamel.yaml_clib": ("0.2.12", wheel, "pkg:pypi/ruamel-yaml-clib@0.2.12"),
        "click": ("8.1.8", "click-8.1.8-py3-none-any.whl", "pkg:pypi/click@8.1.8"),
        "setuptools": ("80.9.0", "setuptools-80.9.0-py3-none-any.whl", "pkg:pypi/setuptools@80.9.0"),
        "torch": ("2.9.0+cu128", "torch-2.9.0+cu128-py3-none-any.whl", "pkg:pypi/torch@2.9.0%2Bcu128"),
        "uv": ("0.9.1", "uv-0.9.1-py3-none-any.whl", "pkg:pypi/uv@0.9.1"),
    }
    assert {str(package.download_location) for package in document.packages} == {
        "NOASSERTION",
        f"git+https://git.example.org/team/slime.git@{COMMIT}",
        "https://files.example.org:8443/a%20b/kernels.whl",
    }
    sums = {package.name: package.checksums[0].value for package in document.packages if package.checksums}
    assert (sums["click"], sums["bsdutils"], sums["rlbox/mine"]) == ("1" * 64, "d" * 64, "e" * 64)


def test_how_its_parts_stand_to_it(tmp_path: Path) -> None:
    document = read(tmp_path, replace(ON_IMAGE, git=(), http=(), patches=()))
    names = {package.spdx_id: package.name for package in document.packages} | {"SPDXRef-DOCUMENT": "document"}
    found = {
        (names[row.spdx_element_id], row.relationship_type, names[str(row.related_spdx_element_id)])
        for row in document.relationships
    }
    image, contains = "rlbox/mine", RelationshipType.CONTAINS
    assert found == {
        ("document", RelationshipType.DESCRIBES, image),
        (image, RelationshipType.DESCENDANT_OF, "registry.example:5000/team/base"),
        ("setuptools", RelationshipType.BUILD_DEPENDENCY_OF, image),
        *((image, contains, name) for name in ("rlbox", "torch", "click", "uv", "Ruamel.yaml_clib")),
    }


def test_the_base_image_is_named_by_its_digest() -> None:
    (base,) = [one for one in list_sbom_entries(ON_IMAGE) if one.kind == "base"]
    assert (base.name, base.sha256) == ("registry.example:5000/team/base", "b" * 64)
    assert base.purl == (f"pkg:oci/base@sha256:{'b' * 64}?repository_url=registry.example:5000/team/base&tag=v1")


def test_a_file_of_two_groups_is_one_package() -> None:
    assert [one.relationship for one in list_sbom_entries(WHOLE) if one.name == "click"] == ["CONTAINS"]


def test_the_same_lock_and_image_give_the_same_bytes() -> None:
    text = render_spdx_sbom(WHOLE, *IMAGE)
    assert render_spdx_sbom(WHOLE, *IMAGE) == text
    data = json.loads(text)
    assert data["creationInfo"]["created"] == "2025-01-01T00:00:00Z"
    assert data["documentNamespace"] == f"urn:rlbox:sbom:{DIGEST}"
    identities = [package["SPDXID"] for package in data["packages"]]
    assert len(set(identities)) == len(identities)
    shuffled = replace(
        WHOLE,
        runtime=replace(WHOLE.runtime, packages=WHOLE.runtime.packages[::-1]),
        git=WHOLE.git[::-1],
    )
    assert render_spdx_sbom(shuffled, *IMAGE) == text


def test_no_secret_of_an_address_is_told() -> None:
    assert SECRET not in render_spdx_sbom(WHOLE, *IMAGE)


@given(
    user=st.text(st.characters(codec="ascii", exclude_characters="/?#@[]\\", min_codepoint=33), min_size=8),
    query=st.text(st.characters(codec="ascii", min_codepoint=33), min_size=8),
)
def test_an_address_is_told_without_what_lets_people_in(user: str, query: str) -> None:
    assert (
        url_without_credentials_and_query_or_empty(f"https://{user}@files.example/a/b.whl?{query}")
        == "https://files.example/a/b.whl"
    )


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("ssh://git@git.example:22/team/x", "ssh://git.example:22/team/x"),
        ("git@git.example:team/x.git", ""),
        ("file:///home", ""),
        ("../beside", ""),
        ("", ""),
    ],
)
def test_what_is_no_address_of_a_network_is_not_told(url: str, told: str) -> None:
    assert url_without_credentials_and_query_or_empty(url) == told


def test_package_urls_are_canonical() -> None:
    assert format_purl("deb/debian", "libstdc++6", "1:2~rc1+b1", {"arch": "amd64", "a": ""}) == (
        "pkg:deb/debian/libstdc%2B%2B6@1:2~rc1%2Bb1?arch=amd64"
    )
