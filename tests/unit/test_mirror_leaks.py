"""No host of the profile `cn` is in what rlbox itself lays into the image of another target."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rlbox.act.context import context_entries
from rlbox.cli.app import App
from rlbox.spec.load import load_profile, load_target
from rlbox.spec.project import Project

PROJECT = Project(folder=Path(__file__).resolve().parents[2])
OTHERS = [name for name in PROJECT.targets() if load_target(PROJECT, name).target.sources != "cn"]


@pytest.mark.parametrize("name", OTHERS)
def test_nothing_of_the_images_own_names_a_mirror(name: str) -> None:
    hosts = {urlsplit(rule.url).hostname or "" for rule in load_profile(PROJECT, "cn").rule if rule.url}
    entries = context_entries(App(project=PROJECT).image_plan(name))
    texts = {
        path: source.read_text("utf-8", "replace") if isinstance(source, Path) else source
        for path, source in entries.items()
    }
    assert len(texts) > 100
    assert [(path, host) for path, text in texts.items() for host in hosts if host in text] == []
