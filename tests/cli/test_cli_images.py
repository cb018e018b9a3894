"""`rlbox images`: whose image each is and how it stands, and which can go; nobody else's does."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from fakes import ON_IMAGE, UV_WHEEL, EngineSocket, Folder, Rlbox, hold

from rlbox.image.context import compute_build_digest, list_hashed_context_entries
from rlbox.image.plan import load_image_plan
from rlbox.system.files import cache_path, state_path, write_atomic

pytestmark = [pytest.mark.allow("sockets", "processes"), pytest.mark.usefixtures("remembering")]
OWN, THEIRS, GONE, OLD = "rlbox/mine:tests", "rlbox/mine:ann-0a1b2c", "rlbox/mine:left-0a1b2c", "rlbox/mine:latest"
NAMELESS = "sha256:" + "9" * 64
SHORT = NAMELESS[:19]


def image(digit: str, size: int = 1000, **labels: str) -> dict[str, Any]:
    return {"Id": "sha256:" + digit * 64, "Size": size, "Config": {"Labels": {"rlbox.target": "mine", **labels}}}


@pytest.fixture
def kept(folder: Folder, engine: EngineSocket) -> None:
    """An image of every kind: this project's, another user's, of a folder that is gone, of before, replaced."""
    shutil.rmtree(cache_path("checks"), ignore_errors=True)
    folder.target("mine", ON_IMAGE)
    folder.lock("mine")
    hold(UV_WHEEL)
    plan = load_image_plan(folder.project, "mine")
    labels = {"rlbox.build": compute_build_digest(list_hashed_context_entries(plan), plan.epoch)}
    write_atomic(state_path("projects", "left-0a1b2c.json"), '{"schema": 1, "folder": "/srv/left"}')
    engine.images |= {OWN: image("1", **labels), THEIRS: image("2"), GONE: image("3"), OLD: image("4")}
    engine.images[NAMELESS] = image("9", size=2000)


@pytest.mark.usefixtures("kept")
def test_whose_each_is(rlbox: Rlbox) -> None:
    said = rlbox("images", "--json")
    assert said.code == 0, said.err
    assert [(row["name"], row["state"], row["spare"]) for row in said.data["images"]] == [
        (OWN, "as its specs say", False),
        (THEIRS, "of project ann-0a1b2c, of another user or machine", False),
        (OLD, "of an rlbox that had one name for all projects", False),
        (GONE, "its project is gone: /srv/left", True),
        (NAMELESS, "replaced by a later build", True),
    ]
    assert rlbox("images").out == rlbox("images", "ls").out
    assert f"{OWN} " in rlbox("images").out


@pytest.mark.usefixtures("kept")
def test_prune_takes_what_nothing_needs(rlbox: Rlbox, engine: EngineSocket) -> None:
    dry = rlbox("prune", "--dry-run")
    assert (dry.code, f"would remove {SHORT}, 2.0 kB: replaced by a later build" in dry.out) == (0, True)
    assert set(engine.images) == {OWN, THEIRS, GONE, OLD, NAMELESS}
    asked = rlbox("prune")
    assert (asked.code, "--yes to remove 2 images" in asked.err) == (2, True)
    said = rlbox("prune", "--yes")
    assert said.code == 0, said.err
    assert set(engine.images) == {OWN, THEIRS, OLD}


@pytest.mark.usefixtures("kept")
def test_one_that_a_container_is_made_from_stays(rlbox: Rlbox, engine: EngineSocket) -> None:
    engine.containers = [{"Id": "c1", "Names": ["/work"], "ImageID": NAMELESS}]
    assert SHORT not in rlbox("prune", "--dry-run").out
    refused = rlbox("images", "rm", "9" * 12, "--yes")
    assert refused.code == 4
    assert refused.err == (
        f"rlbox: error: container work is made from {SHORT}\n  where: rlbox images\n"
        "  next:  docker rm work, once it is not needed any more\n"
    )
    engine.containers = []
    assert rlbox("images", "rm", "9" * 12, "--yes").code == 0
    assert NAMELESS not in engine.images


@pytest.mark.usefixtures("kept")
def test_rm_takes_what_is_named_and_no_other(rlbox: Rlbox, engine: EngineSocket) -> None:
    assert rlbox("images", "rm", "mine", "--dry-run").out.startswith(f"would remove {OWN}, 1.0 kB")
    assert rlbox("images", "rm", "mine", THEIRS, "--yes").code == 0
    assert set(engine.images) == {GONE, OLD, NAMELESS}
    unknown = rlbox("images", "rm", "rlbox/mine:lates", "--yes")
    assert unknown.code == 2
    assert f"rlbox built no image 'rlbox/mine:lates' in this engine (did you mean '{OLD}'?)" in unknown.err
    assert unknown.err.endswith("next:  rlbox images ls\n")
