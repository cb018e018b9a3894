"""A target's sources on this machine, as the verbs see them."""

from __future__ import annotations

import pytest
from fakes import Folder
from mirrorbox import mirrors

from rlbox.app import App
from rlbox.artifacts.mirrors import MachineSources
from rlbox.artifacts.source_selection import prepare_lock_sources, select_sources, suggest_mirror_on_failure
from rlbox.errors import WorkFailed
from rlbox.system.network_settings import NetworkSettings
from rlbox.target.target import load_target

RULE = '[[rule]]\nkind = "{}"\nprotocol = "{}"\nurl = "{}"\n'
SPEC = """
title = "smallest target"
[base]
bootstrap = "debian:bookworm"
suites = ["bookworm-security"]
[[stack]]
name = "leaf"
packages = ["six==1.16.0"]
[disk]
host = "~/disk"
"""


@pytest.fixture
def app(folder: Folder) -> App:
    """The command line's own object."""
    return App(project=folder.project)


@pytest.mark.allow("sockets")
def test_dead_and_outdated_mirrors_are_said(folder: Folder, app: App, capsys: pytest.CaptureFixture[str]) -> None:
    with mirrors(2) as (dead, good):
        dead.close()
        rules = RULE.format("python", "index", dead.url) + 'name = "dead"\n' + RULE.format("python", "index", good.url)
        folder.write("sources/lan.toml", f'title = "x"\n{rules}name = "good"\nexpires = 2020-01-01\n')
        profile, choice = select_sources(app, "lan", NetworkSettings())
    assert [rule.title for rule in choice.rules_by_kind["python"]] == ["good"]
    assert profile.name == choice.profile_name == "lan"
    assert capsys.readouterr().err == (
        "dead is passed over: cannot reach 127.0.0.1: Connection refused\n"
        "profile lan: what it says of good is past its date; `rlbox mirrors ls`\n"
    )


@pytest.mark.allow("sockets")
def test_a_lock_is_resolved_by_the_profile(folder: Folder, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = MachineSources(
        archive_urls={"debian": "http://mine.example/debian", "ubuntu": "http://mine.example/ubuntu"}
    )
    monkeypatch.setattr("rlbox.artifacts.source_selection.probe_machine_sources", lambda site, probe_index: machine)
    folder.target("mine", SPEC)
    target = load_target(folder.project, "mine").target
    assert dict(prepare_lock_sources(app, target).archive_urls) == dict(machine.archive_urls)
    with mirrors(1) as (host,):
        rules = RULE.format("apt", "archive", f"{host.url}/m/") + RULE.format("python", "index", f"{host.url}/simple")
        folder.write("sources/lan.toml", f'title = "x"\n{rules}')
        places = prepare_lock_sources(app, target, "lan")
    assert places.archive_urls == {
        "debian": f"{host.url}/m/debian",
        "debian-security": f"{host.url}/m/debian-security",
        "ubuntu": "http://mine.example/ubuntu",
    }
    assert places.index_settings.env == {
        "UV_DEFAULT_INDEX": f"{host.url}/simple",
        "PIP_INDEX_URL": f"{host.url}/simple",
    }
    assert places.index_settings.profile_name == "lan"


def test_a_failure_about_a_host_says_the_rule_to_add() -> None:
    with pytest.raises(WorkFailed) as caught, suggest_mirror_on_failure("direct"):
        raise WorkFailed("it failed\n  | curl: (6) Could not resolve host: x.example", next_step="whole log: L")
    assert caught.value.what == "it failed\n  | curl: (6) Could not resolve host: x.example"
    assert caught.value.next_step.startswith("x.example is not reached from here.")
    assert "sources/direct.toml" in caught.value.next_step
    assert caught.value.next_step.endswith("\n         whole log: L")


def test_any_other_failure_is_left_alone() -> None:
    failure = WorkFailed("it failed", next_step="n")
    with pytest.raises(WorkFailed) as caught, suggest_mirror_on_failure("direct"):
        raise failure
    assert caught.value is failure
