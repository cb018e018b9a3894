"""An image that fits is used, whatever project or rlbox gave it its name; nothing is built, and nobody's name moves."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from fakes import ON_IMAGE, UV_WHEEL, EngineSocket, Folder, Rlbox, Said, hold

from rlbox.image.context import compute_build_digest, list_hashed_entries
from rlbox.image.plan import load_image_plan
from rlbox.system.files import cache_path

pytestmark = [pytest.mark.allow("sockets", "processes"), pytest.mark.usefixtures("remembering")]
TAG, THEIRS, OLD = "rlbox/mine:tests", "rlbox/mine:work-0a1b2c", "rlbox/mine:latest"


@pytest.fixture
def fits(folder: Folder) -> dict[str, Any]:
    """An image that is what the specs say; the target is locked."""
    shutil.rmtree(cache_path("checks"), ignore_errors=True)  # the tests of a file share a cache
    folder.target("mine", ON_IMAGE)
    folder.lock("mine")
    hold(UV_WHEEL)
    plan = load_image_plan(folder.project, "mine")
    labels = {"rlbox.target": "mine", "rlbox.build": compute_build_digest(list_hashed_entries(plan), plan.epoch)}
    return {"Id": "sha256:" + "1" * 64, "Config": {"Labels": labels}}


@pytest.mark.parametrize("name", [THEIRS, OLD])
def test_build_adopts(rlbox: Rlbox, engine: EngineSocket, fits: dict[str, Any], name: str) -> None:
    engine.images[name] = fits
    said = rlbox("build", "mine")
    assert said == Said(
        code=0,
        out=f"{TAG}  sha256:111111111111  adopted\n",
        err=f"{name} is what the specs say: it is {TAG}, too, and nothing is built\nnext: rlbox shell mine\n",
    )
    assert engine.images == {name: fits, TAG: fits}
    [checks] = engine.made
    assert checks["Cmd"][-2:] == ["rlbox.doctor", "build"]
    assert rlbox("build", "mine").out.endswith("unchanged\n")
    assert len(engine.made) == 1


@pytest.mark.parametrize("line", ["shell mine -- true", "save mine x.tar", "push mine --to 127.0.0.1:1/team/"])
def test_other_verbs_adopt_too(
    rlbox: Rlbox, engine: EngineSocket, fits: dict[str, Any], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.images[OLD] = fits
    words = line.split()
    dry = [*words[:2], "--dry-run", *words[2:]]
    (tmp_path / "disk").mkdir()
    monkeypatch.setenv("RLBOX_DATA", str(tmp_path / "disk"))
    said = rlbox(*dry)
    assert (said.code, f"# first: {OLD} is what the specs say" in said.out) == (0, True), said
    rlbox(*words)  # this engine gives no archive, and there is no such registry
    assert engine.images == {OLD: fits, TAG: fits}


def test_a_rebuild_adopts_nothing(rlbox: Rlbox, engine: EngineSocket, fits: dict[str, Any]) -> None:
    engine.images[THEIRS] = fits
    assert rlbox("build", "mine", "--rebuild").code != 0  # this machine has no docker client
    assert TAG not in engine.images


def test_an_image_that_its_checks_refuse_loses_the_name(
    rlbox: Rlbox, engine: EngineSocket, fits: dict[str, Any]
) -> None:
    engine.images[THEIRS] = fits
    engine.answers["/containers/c1/wait"] = (200, b'{"StatusCode": 1}')
    engine.answers["/containers/c1/logs"] = (200, b"\x02\0\0\0\0\0\0\x0cNo such file")
    said = rlbox("build", "mine")
    assert (said.code, said.out) == (1, "")
    assert f"the checks of {TAG} could not be run: No such file" in said.err
    assert engine.images == {THEIRS: fits}
