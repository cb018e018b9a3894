"""Mirrors of mainland China: in no file of another target, and nothing but them where the one in China gets files."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from fakes import CHECKOUT

from rlbox.artifacts.egress import HostContact, list_possible_host_contacts
from rlbox.artifacts.mirrors import MachineSourceSettings
from rlbox.artifacts.profile import load_implicitly_contacted_hosts, load_profile
from rlbox.cli.lock import load_target_with_fix_env_and_lock_artifacts
from rlbox.config.project import Project
from rlbox.image.context import list_hashed_context_entries
from rlbox.image.plan import load_image_plan
from rlbox.target.lock import load_lock
from rlbox.target.target import load_target

PROJECT = Project(folder=CHECKOUT)
TARGETS = sorted(PROJECT.own_pack_and_shipped_target_files())
IN_CHINA = [name for name in TARGETS if load_target(PROJECT, name).target.sources == "cn"]
ELSEWHERE = [name for name in TARGETS if name not in IN_CHINA]
HOSTS = sorted({urlsplit(rule.url).hostname or "" for rule in load_profile(PROJECT, "cn").rule})


def named(text: str) -> set[str]:
    return {host for host in HOSTS if host in text}


def source_text(source: str | Path) -> str:
    return source.read_text("utf-8", "replace") if isinstance(source, Path) else source


def test_the_profile_names_hosts() -> None:
    assert len(HOSTS) > 12
    assert IN_CHINA == ["a800-cn"]
    assert named("FROM m.daocloud.io/docker.io/library/debian") == {"m.daocloud.io"}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_no_file_of_another_target_names_one(name: str) -> None:
    """The spec, the lock, what is rendered, and every file that the build carries."""
    plan = load_image_plan(PROJECT, name)
    committed = [path for path in (CHECKOUT / "images" / name).glob("*") if path.is_file()]
    entries = {str(path): path for path in committed} | list_hashed_context_entries(plan) | plan.rendered_files
    assert len(entries) > 100
    found = {path: named(source_text(source)) for path, source in entries.items()}
    assert {path: hosts for path, hosts in found.items() if hosts} == {}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_nothing_in_the_environment_of_another_target_names_one(name: str) -> None:
    assert named(str(load_target_with_fix_env_and_lock_artifacts(PROJECT, name)[0].env)) == set()


@pytest.mark.parametrize("name", IN_CHINA)
def test_the_lock_of_the_target_in_china_names_no_mirror(name: str) -> None:
    """Where bytes come from is no part of what they are: the same lock is good anywhere."""
    lock = load_lock(PROJECT.own_or_shipped_lock_file(name))
    assert lock
    assert named(lock.to_json_text()) == set()


def contacts(name: str) -> tuple[HostContact, ...]:
    target, files = load_target_with_fix_env_and_lock_artifacts(PROJECT, name)
    found = list_possible_host_contacts(
        target,
        files,
        load_profile(PROJECT, target.sources),
        load_implicitly_contacted_hosts(),
        MachineSourceSettings(),
        {},
    )
    return tuple(one for one in found if not one.closed_by)


@pytest.mark.parametrize("name", IN_CHINA)
def test_the_target_in_china_gets_its_files_from_mirrors_alone(name: str) -> None:
    getting = {one.host for one in contacts(name) if {"lock", "fetch", "build"} & set(one.phases)}
    assert len(getting) > 3
    assert getting <= set(HOSTS)


@pytest.mark.parametrize("name", IN_CHINA)
def test_a_run_in_china_asks_no_hub_abroad(name: str) -> None:
    asked = {one.host for one in contacts(name) if "run" in one.phases}
    assert not {"huggingface.co", "*.xethub.hf.co", "usage-stats.ray.io"} & asked
