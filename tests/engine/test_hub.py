"""A model that was locked and fetched, read by runs without a network: in a container, in place, and taken up again."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from enginebox import Box
from fakes import load_cases
from hubserver import Repo, make_files, serving_hub

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
CASES = load_cases("engine", "test_hub")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("owner", "place"), [("reads", "docker"), ("reads", "here"), ("alone", "docker")])
def test_run_and_its_resume_read_the_fetched_model(owner: str, place: str, tiny: Box, tmp_path: Path) -> None:
    entry = {owner: CASES["ENTRY"]}
    (tiny.project / "images/alone").mkdir()
    (tiny.project / "images/alone/target.toml").write_text(CASES["TARGET"] + entry.get("alone", ""))
    tiny.job("reads", CASES["JOB"] + entry.get("reads", ""))
    repo = Repo()
    repo.push(make_files(200_000, 50_000))
    with serving_hub({"models/acme/tiny": repo}) as hub:
        box = dataclasses.replace(tiny, extra={"HF_ENDPOINT": hub.url, "RLBOX_STORE": str(tmp_path / "store")})
        upgrade = ("lock", owner, "--upgrade", "model")  # after the build: the image does not depend on models
        for words in (("lock", "alone"), ("build", "alone"), ("lock", owner), upgrade, ("fetch", owner)):
            said = box(*words)
            assert said.code == 0, (words, said.err)
    said = box("run", "reads", "--place", place)
    assert [stage["state"] for stage in box.state()["stages"]] == ["passed", "failed"], said.err
    log = (box.runs()[-1] / "stages/1-read/stage.log").read_text()
    assert ('"qwen2"' in log, "no network" in log, "read-only" in log) == (True, place == "docker", place == "docker")
    (box.data / "go").touch()
    said = box("run", "--resume", box.runs()[-1].name)
    assert (said.code, box.state()["attempt"]) == (0, 2), said.err
    assert '"qwen2"' in (box.runs()[-1] / "stages/2-train/stage.log").read_text()
