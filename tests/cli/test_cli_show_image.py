"""`rlbox show IMAGE`, with an engine that knows images, their history, and one file of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fakes import ON_IMAGE, EngineSocket, Folder, Rlbox

from rlbox.errors import EngineError
from rlbox.image.plan import build_image_labels
from rlbox.target.lock import Lock
from rlbox.target.target import load_target

TAG = "rlbox/mine:tests"
Build = Callable[..., dict[str, Any]]
ID = "sha256:" + "1234567890abcdef" * 4
pytestmark = pytest.mark.allow("sockets")


class Inside:
    """Stands for an engine that hands out one file of an image."""

    def __init__(self) -> None:
        self.file: bytes | None = None

    def read_file(self, image: str, path: str) -> bytes | None:
        """Return the file."""
        assert (image, path) == (ID, "/opt/rlbox/share/lock.json")
        return self.file


@pytest.fixture
def mine(folder: Folder) -> Folder:
    """A project with a locked target on an image."""
    folder.target("mine", ON_IMAGE)
    folder.lock("mine")
    return folder


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> Inside:
    """What is inside of every image."""
    made = Inside()
    monkeypatch.setattr("rlbox.engine.docker.DockerEngine.read_image_file", lambda _, *words: made.read_file(*words))
    return made


def labels_of(folder: Folder, lock: Lock) -> dict[str, str]:
    return {**build_image_labels(load_target(folder.project, "mine").target, lock), "rlbox.build": "b1"}


@pytest.fixture
def built(mine: Folder, engine: EngineSocket, inside: Inside) -> Build:
    """Give the engine an image of the target as it is now."""

    def put(lock: Lock | None = None) -> dict[str, Any]:
        lock = lock or mine.fitting_lock("mine")
        inside.file = lock.to_json_text().encode()
        sizes = (0, 4_000, 3_000_000, 90_000, 2_000_000)
        history = [{"CreatedBy": "LABEL rlbox.target=mine", "Size": 0}]
        paths = ("/out/", "/out/", "/out/tools/", "/out/", "/out/")
        history += [
            {"CreatedBy": f"COPY {path} / # buildkit", "Size": size} for path, size in zip(paths, sizes, strict=True)
        ]
        history += [{"CreatedBy": "RUN apt-get", "Size": 1000}, {"CreatedBy": "ENV A=1", "Size": 0}]
        history += [{"CreatedBy": "/bin/sh -c #(nop) ADD file:1 in / ", "Size": 5_000_000}]
        image = {
            "Id": ID,
            "RepoTags": [TAG],
            "RepoDigests": [f"rlbox/mine@{ID}"],
            "Created": "2025-01-01T00:00:00Z",
            "Size": 12_345_678,
            "Config": {"Labels": labels_of(mine, lock)},
        }
        engine.images[TAG] = engine.images[ID] = image
        engine.answers[f"/images/{ID}/history"] = (200, json.dumps(history).encode())
        return image

    return put


def test_an_image_explains_itself(rlbox: Rlbox, mine: Folder, built: Build, golden: Callable[[str, str], None]) -> None:
    labels = built()["Config"]["Labels"]
    said = rlbox("show", TAG)
    assert (said.code, said.err) == (0, "")
    golden("cli/show-image.txt", said.out.replace(labels["rlbox.spec"], "SPEC").replace(labels["rlbox.lock"], "LOCK"))
    assert rlbox("show", ID).out == said.out.replace(f"# image {TAG}", f"# image {ID}")


def test_json(rlbox: Rlbox, mine: Folder, built: Build) -> None:
    image = built()
    data = rlbox("show", TAG, "--json").data
    assert data["schema"] == 1
    assert data["image"] | {"layers": [], "groups": []} == {
        "name": TAG,
        "id": ID,
        "digest": ID,
        "tags": [TAG],
        "created": "2025-01-01T00:00:00Z",
        "size": 12_345_678,
        "labels": image["Config"]["Labels"],
        "layers": [],
        "groups": [],
        "note": None,
        "standing": {"target": "mine", "spec": "same", "lock": "same", "changes": []},
    }
    assert [layer["part"] for layer in data["image"]["layers"]] == [
        "os", "os", "runtime", "environment", "tools", "fixes", "rlbox",
    ]  # fmt: skip
    assert data["image"]["groups"][1] == {
        "name": "tools",
        "packages": [{"name": "six", "version": "1.16.0", "sha256": "a" * 64}],
    }


def test_what_differs_from_the_target_now_is_named(rlbox: Rlbox, mine: Folder, built: Build) -> None:
    built()
    lock = mine.fitting_lock("mine")
    (tools,), (six,), (uv,) = lock.groups, lock.groups[0].packages, lock.runtime.packages
    mine.lock(
        "mine",
        groups=(replace(tools, packages=(replace(six, version="1.17.0", sha256="c" * 64), replace(six, name="new"))),),
        runtime=replace(lock.runtime, packages=(replace(uv, sha256="f" * 64),)),
        python="3.12",
    )
    mine.target("mine", ON_IMAGE + 'create = true\n[env]\nA = "1"\n'.replace("create = true\n", ""))
    assert rlbox("show", TAG).out.partition("# next to the target")[2] == (
        " mine of this project\nspec     differs\nlock     differs\n"
        "  target: python 3.11 → 3.12\n"
        f"  runtime: uv {uv.sha256[:12]} → {'f' * 12}\n"
        "  tools: new 1.16.0 was added\n"
        "  tools: six 1.16.0 → 1.17.0\n"
        "next: rlbox build mine\n"
    )
    mine.lock("mine", groups=(replace(tools, packages=()),))
    assert "  tools: six 1.16.0 was removed\n" in rlbox("show", TAG).out


def test_the_target_has_no_lock_or_is_gone_or_is_broken(rlbox: Rlbox, mine: Folder, built: Build) -> None:
    built()
    (mine.path / "images/mine/lock.json").unlink()
    assert rlbox("show", TAG).out.endswith("spec     same\nlock     missing\n")
    mine.target("mine", "title = 1\n")
    assert "\nspec     cannot be read: images/mine/target.toml: " in rlbox("show", TAG).out
    (mine.path / "images/mine/target.toml").unlink()
    assert rlbox("show", TAG).out.endswith("spec     there is no such target\n")


def test_an_image_of_another_rlbox(rlbox: Rlbox, mine: Folder, built: Build, inside: Inside) -> None:
    """Its lock is of another schema, or not there: all else is told."""
    built()
    inside.file = b'{"schema": 1}'
    out = rlbox("show", TAG).out
    assert "# packages: not known, /opt/rlbox/share/lock.json: schema 1, this rlbox reads 2\n" in out
    assert "   3.0 MB  tools\n" in out
    inside.file = None
    assert "# packages: not known, /opt/rlbox/share/lock.json is missing in it\n" in rlbox("show", TAG).out


def test_an_engine_without_manifests(rlbox: Rlbox, mine: Folder, built: Build) -> None:
    built()["RepoDigests"] = []
    assert "\ndigest   none: this engine keeps no manifest of it\n" in rlbox("show", TAG).out
    assert rlbox("show", TAG, "--json").data["image"]["digest"] is None


def test_an_image_that_is_not_of_rlbox(rlbox: Rlbox, engine: EngineSocket) -> None:
    engine.images["debian"] = {"Id": ID, "Config": {"Labels": None}}
    rlbox("show", "debian").check_error(2, "debian is not an image of rlbox: it has no label rlbox.target")


@pytest.mark.parametrize("word", [f"registry.example/team/x@sha256:{'1' * 64}", "team/x", "x:1"])
def test_an_image_that_the_engine_lacks(rlbox: Rlbox, engine: EngineSocket, word: str) -> None:
    rlbox("show", word).check_error(4, f"the engine has no image {word}")


def test_no_engine(rlbox: Rlbox, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A word that does not look like an image is a target that is not there; one that does needs an engine."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{folder.path}/no.sock")
    assert rlbox("show", "smoek").err.startswith("rlbox: error: unknown target or job 'smoek'")
    assert rlbox("show", TAG).code == EngineError.exit_code


def test_a_target_comes_before_an_image_of_the_same_name(rlbox: Rlbox, mine: Folder, engine: EngineSocket) -> None:
    engine.images["mine"] = {"Id": ID, "Config": {"Labels": None}}
    assert rlbox("show", "mine").out.startswith("# target mine\n")
