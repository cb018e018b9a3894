"""A repository of GitHub through the `cn` profile's own rewrite of its address, from a mirror on loopback."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from gitmirror import git_mirror

from rlbox.artifacts.git_tree import resolve_git_ref
from rlbox.artifacts.mirrors import list_git_urls
from rlbox.artifacts.profile import load_profile
from rlbox.config.project import Project

URL = "https://github.com/rlbox-test/project"


def repository(folder: Path) -> tuple[Path, str]:
    """Make a repository of one commit; return its git directory and that commit."""
    who = ("-c", "user.name=a", "-c", "user.email=a@a.invalid")
    folder.mkdir()
    (folder / "train.py").write_text("print('trained')\n")
    for words in (("init", "-q", "-b", "main"), ("add", "."), (*who, "commit", "-q", "-m", "one")):
        subprocess.run(["git", *words], cwd=folder, check=True)
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True)
    return folder / ".git", done.stdout.strip()


@pytest.mark.allow("processes", "sockets")
@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl to make a certificate with")
def test_the_first_mirror_of_the_profile_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, commit = repository(tmp_path / "project")
    places = list_git_urls(URL, load_profile(Project(folder=tmp_path), "cn"))
    first = urlsplit(places[0].url)
    (tmp_path / "mirror").mkdir()
    with git_mirror(str(first.hostname), {first.path.strip("/"): made}, tmp_path / "mirror") as mirror:
        for name, value in mirror.env.items():
            monkeypatch.setenv(name, value)
        facts = resolve_git_ref(URL, "main", places, mirror.env["RLBOX_CA_BUNDLE"])
    assert facts.commit == commit
    assert all(asked.startswith("/github.com/rlbox-test/project/") for asked in mirror.asked)
    assert mirror.asked
