"""An image explains itself: in the engine by `rlbox show`, and by the files that its build left beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from enginebox import TINY, Box, docker
from projectbox import own
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from rlbox.image.sbom import list_sbom_entries
from rlbox.system.files import cache_path
from rlbox.target.lock import load_lock

TAG = own("explained")


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """A built target of this module's own."""
    project = tmp_path_factory.mktemp("explained")
    (project / "images/explained").mkdir(parents=True)
    (project / "images/explained/target.toml").write_text(TINY)
    made = Box(project=project, data=tmp_path_factory.mktemp("disk"))
    for words in (("lock", "explained"), ("build", "explained", "--rebuild")):
        result = made(*words)
        assert result.code == 0, result.err
    yield made
    docker("rmi", TAG)


@pytest.fixture
def spec(box: Box) -> Iterator[Path]:
    """The target's spec, put back afterwards with its lock."""
    kept = {name: (box.project / "images/explained" / name).read_text() for name in ("target.toml", "lock.json")}
    yield box.project / "images/explained/target.toml"
    for name, text in kept.items():
        (box.project / "images/explained" / name).write_text(text)


def test_what_the_image_says(box: Box) -> None:
    said = box("show", TAG, "--json")
    assert said.code == 0, said.err
    image = said.data["image"]
    assert image["labels"]["rlbox.target"] == "explained"
    assert image["created"] == "2025-01-01T00:00:00Z"
    assert [layer["part"] for layer in image["layers"]] == [
        "os", "runtime", "environment", "tools", "fixes", "rlbox", "lock", "other",
    ]  # fmt: skip
    assert all(layer["size"] > 0 for layer in image["layers"])
    groups = {group["name"]: {row["name"]: row["version"] for row in group["packages"]} for group in image["groups"]}
    assert groups["tools"] == {"six": "1.16.0"}
    assert {"python3", "ca-certificates"} <= set(groups["os"])
    assert {"click", "uv"} <= set(groups["runtime"])
    assert image["standing"] == {"target": "explained", "spec": "same", "lock": "same", "changes": []}


def test_an_image_is_found_by_id_and_digest(box: Box) -> None:
    image = box("show", TAG, "--json").data["image"]
    names = [image["id"], image["id"].partition(":")[2][:12]]
    names += [f"rlbox/explained@{image['digest']}"] if image["digest"] else []
    assert [box("show", name).out.splitlines()[1:] for name in names] == [box("show", TAG).out.splitlines()[1:]] * len(
        names
    )


def explained(box: Box) -> tuple[dict, Path]:
    """The image, and the folder with what explains it."""
    image = box("show", TAG, "--json").data["image"]
    digest = image["digest"] or image["id"]
    return image, cache_path("images", "explained", digest.removeprefix("sha256:")[:24])


def beside(box: Box) -> dict[str, str]:
    return {path.name: path.read_text() for path in explained(box)[1].iterdir()}


def test_what_lies_beside_it_is_about_it(box: Box) -> None:
    image, folder = explained(box)
    digest = image["digest"] or image["id"]
    document = parse_file(str(folder / "sbom.spdx.json"))
    assert validate_full_spdx_document(document, "SPDX-2.3") == []
    assert next(p.version for p in document.packages if p.spdx_id == "SPDXRef-Image") == digest
    lock = load_lock(box.project / "images/explained/lock.json")
    assert lock is not None
    assert len(document.packages) == 2 + len(list_sbom_entries(lock))


def test_a_changed_image_is_described_anew(box: Box, spec: Path) -> None:
    """Another environment changes the digest; neither it nor this machine is told."""
    before = beside(box)
    spec.write_text(TINY + '[env]\nMARK = "told-nowhere"\n')
    assert box("build", "explained", UV_CONCURRENT_DOWNLOADS="7").code == 0
    after = beside(box)
    assert sorted(after) == sorted(before) == ["sbom.spdx.json"]
    assert all(after[name] != before[name] for name in after)
    for text in after.values():
        for trace in ("told-nowhere", str(box.project), str(Path.home()), "://"):
            assert trace not in text
    spec.write_text(TINY)
    assert box("build", "explained").code == 0
    assert beside(box) == before
