"""A model that was locked and fetched, read by runs without a network: in a container, in place, and taken up again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from enginebox import Box
from fakes import load_cases
from hubserver import Hub, Repo, make_files, serving_hub

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
CASES = load_cases("engine", "test_hub")
JOB, ENTRY = CASES["JOB"], CASES["ENTRY"]


@pytest.fixture
def hub() -> Iterator[Hub]:
    repo = Repo()
    repo.push(make_files(200_000, 50_000))
    with serving_hub({"models/acme/tiny": repo}) as made:
        yield made


@pytest.fixture
def box(tiny: Box, hub: Hub, tmp_path: Path) -> Box:
    """The target `alone`, whose containers have no network, and a store of its own."""
    spec = tiny.project / "images/alone/target.toml"
    spec.parent.mkdir()
    spec.write_text('include = "tiny"\ntitle = "no network"\n[run]\nnetwork = "none"\n' + ENTRY)
    return dataclasses.replace(tiny, extra={"HF_ENDPOINT": hub.url, "RLBOX_STORE": str(tmp_path / "store")})


def require_passed(box: Box, *commands: tuple[str, ...]) -> None:
    for words in commands:
        said = box(*words)
        assert said.code == 0, (words, said.err)


def read_log(box: Box, stage: str) -> str:
    return (box.runs()[-1] / f"stages/{stage}/stage.log").read_text()


@pytest.mark.parametrize("place", ["docker", "here"])
def test_run_and_its_resume_read_the_fetched_model(place: str, box: Box, hub: Hub) -> None:
    box.job("reads", JOB + ENTRY)
    require_passed(box, ("lock", "alone"), ("build", "alone"), ("lock", "reads"), ("fetch", "reads"))
    asked = len(hub.asked)
    said = box("run", "reads", "--place", place, "--json")
    assert [stage["state"] for stage in box.state()["stages"]] == ["passed", "failed"], said.err
    log = read_log(box, "1-read")
    assert '{"model_type": "qwen2"}' in log
    assert ("no network" in log, "read-only" in log) == (place == "docker", place == "docker")
    (box.data / "go").touch()
    require_passed(box, ("run", "--resume", box.runs()[-1].name))
    assert box.state()["attempt"] == 2
    assert '{"model_type": "qwen2"}' in read_log(box, "2-train")
    assert len(hub.asked) == asked


def test_entry_of_a_target_is_locked_fetched_and_read(box: Box, hub: Hub) -> None:
    box.job("reads", JOB)
    (box.data / "go").touch()
    require_passed(box, ("lock", "alone"), ("fetch", "alone"), ("build", "alone"), ("run", "reads"))
    assert "acme/tiny" in (box.project / "images/alone/hub.lock.json").read_text()
    assert '{"model_type": "qwen2"}' in read_log(box, "1-read")
    hub.repos["models/acme/tiny"].push(make_files(100_000, 50_000))
    require_passed(box, ("lock", "alone", "--upgrade", "model"), ("fetch", "alone"), ("run", "reads"))
    assert "no network" in read_log(box, "1-read")
