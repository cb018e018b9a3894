"""A repository of GitHub through the `cn` profile's own rewrite of its address."""

from __future__ import annotations

import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rlbox.artifacts.git_tree import resolve_git_ref
from rlbox.artifacts.mirrors import list_git_urls
from rlbox.artifacts.profile import load_profile
from rlbox.config.project import Project

URL = "https://github.com/rlbox-test/project"


@pytest.mark.allow("processes")
def test_the_first_mirror_of_the_profile_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git is told that the mirror is a folder: nothing else than its address leads there."""
    places = list_git_urls(URL, load_profile(Project(folder=tmp_path), "cn"))
    mirror = urlsplit(places[0].url)
    folder = tmp_path / "mirror" / mirror.path.strip("/")
    folder.mkdir(parents=True)
    who = ("-c", "user.name=a", "-c", "user.email=a@a.invalid")
    for words in (("init", "-q", "-b", "main"), (*who, "commit", "-q", "--allow-empty", "-m", "one")):
        subprocess.run(["git", *words], cwd=folder, check=True)
    settings = tmp_path / "gitconfig"
    settings.write_text(f'[url "file://{tmp_path}/mirror/"]\n\tinsteadOf = https://{mirror.hostname}/\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True)
    assert resolve_git_ref(URL, "main", places[:1], "").commit == head.stdout.strip()
