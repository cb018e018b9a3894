"""Names of images: a project has its own, whoever shares the engine, and no image depends on it."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from fakes import Folder

from rlbox.config.project import Project
from rlbox.engine.reference import parse_reference
from rlbox.errors import SpecError
from rlbox.image.context import compute_build_digest, list_hashed_context_entries
from rlbox.image.names import (
    find_recorded_project_dir_or_empty,
    format_rlbox_image_tag,
    get_or_make_project_name,
    make_hashed_project_name,
    parse_image_tag_or_empty,
    try_record_project_dir,
    validate_project_name,
)
from rlbox.image.plan import load_image_plan


@pytest.fixture(autouse=True)
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLBOX_PROJECT_NAME")


def project(path: Path, *folders: str) -> Project:
    for name in ("", *folders):
        (path / name).mkdir(parents=True, exist_ok=True)
    return Project(folder=path)


def test_two_checkouts_of_one_project_have_two_names(tmp_path: Path) -> None:
    one, other = project(tmp_path / "a/work", "images"), project(tmp_path / "b/work", "images")
    names = {get_or_make_project_name(one), get_or_make_project_name(other)}
    assert len(names) == 2
    assert all(name.startswith("work-") for name in names)


def test_a_link_to_a_project_is_the_project(tmp_path: Path) -> None:
    there = project(tmp_path / "work", "templates")
    (tmp_path / "link").symlink_to("work")
    assert get_or_make_project_name(Project(folder=tmp_path / "link")) == get_or_make_project_name(there)


def test_folders_without_specs_share_the_users_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = project(tmp_path / "a", "jobs"), project(tmp_path / "b")
    assert get_or_make_project_name(one) == get_or_make_project_name(other)
    monkeypatch.setattr(os, "getuid", lambda: 4321)
    assert get_or_make_project_name(one).startswith("4321-")


def test_users_of_one_name_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlbox.image.names.get_user_name_or_uid", lambda: "ann")
    mine = get_or_make_project_name(project(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: 4321)
    assert get_or_make_project_name(project(tmp_path)) != mine


def test_machines_that_share_an_engine_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = project(tmp_path, "images")
    here = get_or_make_project_name(there)
    monkeypatch.setattr("rlbox.image.names._machine", lambda: "another")
    assert get_or_make_project_name(there) != here


@pytest.mark.parametrize("name", ["a b", "-a", "a.b", "a:b", "a/b", "é", "x" * 101])
def test_what_names_no_project(name: str) -> None:
    with pytest.raises(SpecError, match="cannot name a project"):
        validate_project_name(name, "RLBOX_PROJECT_NAME")


@pytest.mark.parametrize("word", ["work", "Ärger & Co", "模型", "", "x" * 300, "a..b"])
def test_every_folder_gives_a_tag(word: str) -> None:
    name = make_hashed_project_name(word, "identity")
    assert validate_project_name(name, "") == name
    assert parse_reference(format_rlbox_image_tag("local", name)).tag == name


def test_a_name_is_read_as_it_is_made() -> None:
    assert parse_image_tag_or_empty(format_rlbox_image_tag("local", "work-0a1b2c")) == ("local", "work-0a1b2c")
    assert parse_image_tag_or_empty("rlbox/local:latest") == ("local", "latest")
    for other in ("debian:bookworm", "rlbox/local", "127.0.0.1:5000/rlbox/local:v1", "rlbox/a/b:c", "<none>:<none>"):
        assert parse_image_tag_or_empty(other) == ("", "")


def test_no_image_depends_on_the_name(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.target("mine")
    plans = []
    for name in ("one", "other"):
        monkeypatch.setenv("RLBOX_PROJECT_NAME", name)
        plans.append(load_image_plan(folder.project, "mine"))
    assert [plan.tag for plan in plans] == ["rlbox/mine:one", "rlbox/mine:other"]
    assert dataclasses.replace(plans[0], tag="") == dataclasses.replace(plans[1], tag="")
    digests = [compute_build_digest(list_hashed_context_entries(plan), plan.epoch) for plan in plans]
    assert digests[0] == digests[1]


def test_where_a_project_is_is_remembered(tmp_path: Path) -> None:
    there = project(tmp_path / "work", "images")
    assert find_recorded_project_dir_or_empty(get_or_make_project_name(there)) == ""
    try_record_project_dir(there)
    assert find_recorded_project_dir_or_empty(get_or_make_project_name(there)) == str(tmp_path / "work")
