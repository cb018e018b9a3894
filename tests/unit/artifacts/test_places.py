"""A target's sources on this machine, as the verbs see them."""

from __future__ import annotations

import pytest
from fakes import Folder
from mirrorbox import mirrors

from rlbox.app import App
from rlbox.artifacts.locator import load_profile_without_dead_mirrors, prepare_lock_sources
from rlbox.artifacts.mirrors import MachineSourceSettings
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
def test_dead_mirrors_are_said(folder: Folder, app: App, capsys: pytest.CaptureFixture[str]) -> None:
    with mirrors(2) as (dead, good):
        dead.close()
        rules = RULE.format("python", "index", dead.url) + 'name = "dead"\n' + RULE.format("python", "index", good.url)
        folder.write("sources/lan.toml", f'title = "x"\n{rules}name = "good"\n')
        profile = load_profile_without_dead_mirrors(app, "lan", NetworkSettings())
    assert [rule.display_name for rule in profile.rule] == ["good"]
    assert capsys.readouterr().err == "dead is passed over: cannot reach 127.0.0.1: Connection refused\n"


@pytest.mark.allow("sockets")
def test_a_lock_is_resolved_by_the_profile(folder: Folder, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = MachineSourceSettings(
        url_by_apt_archive={"debian": "http://mine.example/debian", "ubuntu": "http://mine.example/ubuntu"}
    )
    monkeypatch.setattr("rlbox.artifacts.locator.probe_machine_source_settings", lambda site, ask_uv_for_index: machine)
    folder.target("mine", SPEC)
    target = load_target(folder.project, "mine").target
    assert dict(prepare_lock_sources(app, target).url_by_apt_archive) == dict(machine.url_by_apt_archive)
    with mirrors(1) as (host,):
        rules = RULE.format("apt", "archive", f"{host.url}/m/") + RULE.format("python", "index", f"{host.url}/simple")
        folder.write("sources/lan.toml", f'title = "x"\n{rules}')
        places = prepare_lock_sources(app, target, "lan")
    assert places.url_by_apt_archive == {
        "debian": f"{host.url}/m/debian",
        "debian-security": f"{host.url}/m/debian-security",
        "ubuntu": "http://mine.example/ubuntu",
    }
    assert places.index_settings.env == {
        "UV_DEFAULT_INDEX": f"{host.url}/simple",
        "PIP_INDEX_URL": f"{host.url}/simple",
    }
