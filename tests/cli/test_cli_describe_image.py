"""What a build leaves beside its image, with an engine that knows the image."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fakes import ON_IMAGE, EngineSocket, Folder

from rlbox.app import App
from rlbox.image.check import describe_image
from rlbox.image.plan import load_image_plan
from rlbox.system.files import cache_path

TAG = "rlbox/mine:tests"
ID = "sha256:" + "1234567890abcdef" * 4
FILES = ["provenance.json", "sbom.spdx.json"]
pytestmark = pytest.mark.allow("sockets")


@pytest.fixture
def app(folder: Folder) -> App:
    """A project with a locked target on an image."""
    folder.target("mine", ON_IMAGE)
    folder.lock("mine")
    return App(project=folder.project)


def image(**more: Any) -> dict[str, Any]:
    return {"Id": ID, "Config": {"Labels": {"rlbox.spec": "5" * 64}}, **more}


def left() -> dict[str, Any]:
    folder = cache_path("images", "mine", ID.removeprefix("sha256:")[:24])
    return {path.name: json.loads(path.read_bytes()) for path in sorted(folder.iterdir())}


def test_both_files_are_about_the_image(app: App, engine: EngineSocket, capsys: pytest.CaptureFixture[str]) -> None:
    engine.images[TAG] = image(RepoDigests=[f"rlbox/mine@{ID}"])
    describe_image(app, load_image_plan(app.project, "mine"), hermetic=True)
    assert list(left()) == FILES
    predicate = left()["provenance.json"]["predicate"]
    assert predicate["buildDefinition"]["externalParameters"]["mode"] == "hermetic"
    assert predicate["buildDefinition"]["externalParameters"]["spec"] == f"sha256:{'5' * 64}"
    assert predicate["runDetails"]["builder"]["version"]["engine"] == "28.2.2"
    assert "annotations" not in left()["provenance.json"]["subject"][0]
    assert left()["sbom.spdx.json"]["packages"][0]["versionInfo"] == ID
    assert capsys.readouterr() == ("", "")


def test_an_engine_that_keeps_no_manifest(app: App, engine: EngineSocket) -> None:
    engine.images[TAG] = image(RepoDigests=[])
    describe_image(app, load_image_plan(app.project, "mine"), hermetic=False)
    (subject,) = left()["provenance.json"]["subject"]
    assert subject["digest"] == {"sha256": ID.partition(":")[2]}
    assert "configuration" in subject["annotations"]["rlbox.digest"]


def test_what_explains_an_image_outlives_its_name(app: App, engine: EngineSocket) -> None:
    engine.images[TAG] = image()
    describe_image(app, load_image_plan(app.project, "mine"), hermetic=False)
    del engine.images[TAG]
    describe_image(app, load_image_plan(app.project, "mine"), hermetic=False)
    assert list(left()) == FILES


def test_a_folder_that_cannot_be_written_fails_no_build(
    app: App, engine: EngineSocket, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.images[TAG] = image()
    plan = load_image_plan(app.project, "mine")
    folder = cache_path("images", "mine")
    folder.parent.mkdir(parents=True)
    folder.write_text("in the way")
    describe_image(app, plan, hermetic=False)
    own = folder / ID.removeprefix("sha256:")[:24]
    note = f"note: the image has no SBOM and provenance: {own} cannot be written: Not a directory\n"
    assert capsys.readouterr() == ("", note)
