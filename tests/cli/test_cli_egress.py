"""`rlbox egress`."""

from __future__ import annotations

import pytest
from fakes import Folder, Rlbox
from mirrorbox import mirrors

from rlbox.artifacts.mirrors import MachineSourceSettings
from rlbox.system.network_settings import NetworkSettings

SPEC = """
title = "smallest target"
[base]
bootstrap = "debian:bookworm"
[[stack]]
name = "engine"
packages = ["ray==2.60.0", "vllm==0.12.0"]
[env]
VLLM_NO_USAGE_STATS = "1"
[disk]
host = "~/disk"
"""
MACHINE = MachineSourceSettings(
    network_settings=NetworkSettings(index_url="https://index.example/simple"),
    url_by_apt_archive={"debian": "http://apt.example/d"},
)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with settings, and no network to ask."""
    monkeypatch.setattr("rlbox.cli.lock.probe_machine_source_settings", lambda site: MACHINE)
    monkeypatch.setattr("rlbox.cli.lock.probe_redirect_and_listed_hosts_by_url", lambda *asked: {})


def test_table(rlbox: Rlbox, folder: Folder) -> None:
    folder.target("mine", SPEC)
    said = rlbox("egress", "mine")
    assert said.code == 0
    unasked = "(not asked where it leads: no network)"
    lines = [" ".join(line.split()) for line in said.out.splitlines()]
    assert f"apt.example apt lock+fetch+build machine this machine's apt sources {unasked}" in lines
    assert f"index.example python lock+fetch+build machine this machine's index {unasked}" in lines
    assert "stats.vllm.ai" in said.out
    assert "[closed by RAY_USAGE_STATS_ENABLED=0" in said.out, "a fix closes it"
    assert "[closed by VLLM_NO_USAGE_STATS=1]" in said.out


def test_json(rlbox: Rlbox, folder: Folder) -> None:
    folder.target("mine", SPEC)
    folder.write(
        "sources/lan.toml",
        'title = "x"\n[[rule]]\nkind = "python"\nprotocol = "index"\nurl = "https://a.example/simple"\n',
    )
    data = rlbox("egress", "mine", "--sources", "lan", "--json").data
    assert data["sources"] == "lan"
    assert data["hosts"] == {
        "lock": ["a.example", "apt.example"],
        "fetch": ["a.example", "apt.example"],
        "build": ["a.example", "apt.example"],
        "run": [],
    }
    keys = {"host", "kind", "phases", "declared", "why", "rule", "closed_by"}
    assert {tuple(sorted(row)) for row in data["contacts"]} == {tuple(sorted(keys))}


def test_the_targets_own_profile(rlbox: Rlbox, folder: Folder) -> None:
    folder.target("mine", f'sources = "cn"\n{SPEC}')
    assert "pypi.tuna.tsinghua.edu.cn" in rlbox("egress", "mine").out
    assert "pypi.tuna.tsinghua.edu.cn" not in rlbox("egress", "mine", "--sources", "direct").out


@pytest.mark.allow("sockets")
def test_asked_for_real(rlbox: Rlbox, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlbox.artifacts import egress as egress

    monkeypatch.undo()
    monkeypatch.setenv("HOME", str(folder.path))
    monkeypatch.chdir(folder.path)
    with mirrors(1) as (host,):
        host.index("/simple/uv/", {"uv-1.tar.gz": "http://files.invalid/uv-1.tar.gz"})
        machine = MachineSourceSettings(network_settings=NetworkSettings(index_url=f"{host.url}/simple"))
        monkeypatch.setattr("rlbox.cli.lock.probe_machine_source_settings", lambda site: machine)
        assert egress.probe_redirect_and_listed_hosts_by_url
        folder.target("mine", SPEC)
        assert rlbox("egress", "mine", "--json").data["hosts"]["lock"] == ["127.0.0.1", "files.invalid"]
