"""`--set source=DIR`, typed for real over runs in place: what runs is the user's tree, and the run says which."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from following import Follow
from launched import Said, Site

JOB = """
title = "calls a framework"
target = "mine"
[source]
package = "frame"
version = "0.9.1"
[env]
PYTHONPATH = "INSTALLED"
[[stages]]
name = "train"
title = "one call"
command = ["{python}", "-c", "import frame; frame.train(); raise SystemExit({attempt} == 1 and FAILS)"]
limits = { total_s = 60, silence_s = 30 }
[stages.gate]
require = [{ pattern = 'loss' }]
"""


RUN = ("run", "calls", "--place", "here")


class Forks:
    """A site with an installed framework, and trees of it."""

    def __init__(self, site: Site, root: Path) -> None:
        self.site = site
        self.root = root
        self.installed = self.tree("installed", "installed")
        self.job(fails=0)

    def tree(self, name: str, says: str, version: str = "0.9.1") -> Path:
        folder = self.root / name
        (folder / "frame/version").mkdir(parents=True, exist_ok=True)
        (folder / "frame/__init__.py").write_text(f"def train():\n    print('loss of {says}')\n")
        (folder / "frame/version/version").write_text(version)
        return folder

    def job(self, fails: int) -> None:
        text = JOB.replace("INSTALLED", str(self.installed)).replace("FAILS", str(fails))
        self.site.folder.job("calls", text)

    def run(self, *words: str) -> Said:
        return self.site(*RUN, *words)

    def log(self) -> str:
        return (self.site.run_dir() / "stages/1-train/stage.log").read_text()


@pytest.fixture
def forks(site: Site, tmp_path: Path) -> Forks:
    return Forks(site, tmp_path)


def test_the_users_tree_is_what_runs(forks: Forks) -> None:
    assert forks.run().code == 0
    assert "loss of installed" in forks.log()
    plain = forks.site.run_dir().name

    said = forks.run("--set", f"source={forks.tree('fork', 'fork')}")
    assert said.code == 0, said.err
    assert "source: frame 0.9.1, no git commit, digest " in said.err
    assert "loss of fork" in forks.log()
    mine = forks.site.run_dir().name
    assert json.loads((forks.site.run_dir() / "plan.json").read_text())["params"]["source"] == str(forks.root / "fork")

    shown = forks.site("runs", "show", mine)
    assert "source: frame 0.9.1, no git commit, digest " in " ".join(shown.out.split())
    assert forks.site("runs", "show", mine, "--json").data["run"]["source"]["folder"] == str(forks.root / "fork")
    assert forks.site("runs", "show", plain, "--json").data["run"]["source"] == {}
    differs = forks.site("runs", "diff", plain, mine)
    assert "@@ source\n" in differs.out
    assert f"+folder: {forks.root / 'fork'}" in differs.out


@pytest.mark.slow
def test_another_minor_version_is_refused_but_with_force(forks: Forks, follow: Follow) -> None:
    fork = forks.tree("fork", "fork", version="0.8.2")
    step = follow(*RUN, "--set", f"source={fork}")
    assert step.said.code == 2
    assert "it is frame 0.8.2, and job calls is written for 0.9.1" in step.said.err
    assert forks.site.runs() == []
    follow.again(step, *step.options({}))
    assert json.loads((forks.site.run_dir() / "overrides.json").read_text())["entries"][0]["force"] is True

    forks.tree("fork", "fork", version="0.9.3")
    follow.again(step)


def test_a_tree_that_changed_is_refused_on_resume(forks: Forks, follow: Follow) -> None:
    forks.job(fails=1)
    fork = forks.tree("fork", "fork")
    assert forks.run("--set", f"source={fork}").code == 1
    run = forks.site.run_dir()
    forks.tree("fork", "changed fork")
    refused = forks.site("run", "--resume", run.name)
    assert refused.code == 2
    assert f"run {run.name} cannot go on: spec/source.toml changed since" in refused.err
    forced = forks.site("run", "--resume", run.name, "--force")
    assert forced.code == 0, forced.err
    assert "loss of changed fork" in forks.log()
    assert (run / "spec/attempt-1/source.toml").read_text() != (run / "spec/source.toml").read_text()
    entries = json.loads((run / "overrides.json").read_text())["entries"]
    assert entries[1]["changed_specs"] == ["spec/source.toml"]


@pytest.mark.slow
def test_another_tree_is_refused_on_resume(forks: Forks, follow: Follow) -> None:
    forks.job(fails=1)
    assert forks.run("--set", f"source={forks.tree('fork', 'fork')}").code == 1
    run, other = forks.site.run_dir().name, forks.tree("other", "other fork")
    step = follow("run", "--resume", run, "--set", f"source={other}")
    assert "keeps the source that it was started with" in step.said.err
    follow.types(step, code=1)
    assert "loss of other fork" in forks.log()


@pytest.mark.slow
def test_an_unchanged_tree_is_resumed(forks: Forks) -> None:
    forks.job(fails=1)
    assert forks.run("--set", f"source={forks.tree('fork', 'fork')}").code == 1
    said = forks.site("run", "--resume", forks.site.run_dir().name)
    assert said.code == 0, said.err
    assert "loss of fork" in forks.log()
