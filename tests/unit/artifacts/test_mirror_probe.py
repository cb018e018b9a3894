"""Asking mirrors: what is dead or offers something else is named, and left out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fakes import Folder
from mirrorbox import Answer, MirrorServer, artifact, mirrors

from rlbox.artifacts.locator import (
    drop_and_list_dead_mirrors_before_live_one,
    pick_smallest_match,
    probe_file_mirrors,
)
from rlbox.artifacts.mirrors import MachineSourceSettings
from rlbox.artifacts.profile import MirrorRule, Profile
from rlbox.system.network_settings import NetworkSettings

BODY = b"the wheel" * 100
SIX = artifact(BODY)
DEB = artifact(b"deb" * 99, "pool/p.deb", "apt", name="p", origin="debian")
HTTP = artifact(b"http" * 9, "x.whl", "http", name="x", origin="https://github.com/x.whl")


@pytest.fixture
def hosts() -> Iterator[list[MirrorServer]]:
    """Three hosts."""
    with mirrors(3) as servers:
        yield servers


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A staller is given up in short, and not so soon that a machine at work stalls as long."""
    monkeypatch.setattr("rlbox.artifacts.locator.PROBE_TIMEOUT_S", 1.0)


def index(host: MirrorServer, name: str) -> MirrorRule:
    return MirrorRule(kind="python", protocol="index", url=f"{host.url}/{name}", name=name)


def profile(*rules: MirrorRule) -> Profile:
    return Profile(name="mine", title="", rule=rules)


@pytest.mark.allow("sockets")
def test_the_machines_own_settings(hosts: list[MirrorServer], folder: Folder) -> None:
    """The profile `direct`: an archive of apt, an index, and a wheel that lies here."""
    hosts[0].file("/debian/pool/p.deb", b"deb" * 99)
    hosts[0].index("/simple/six/", {SIX.file: f"/{SIX.file}"})
    hosts[0].file(f"/{SIX.file}", BODY)
    torch = artifact(b"torch", "torch-2+cpu-x.whl", "torch-wheels", name="torch", origin="cpu")
    folder.write("torch-2+cpu-x.whl", "torch")
    site = NetworkSettings(
        index_url=f"{hosts[0].url}/simple", wheels_by_find_links_folder={str(folder.path): ("torch-2+cpu-x.whl",)}
    )
    machine = MachineSourceSettings(network_settings=site, url_by_apt_archive={"debian": f"{hosts[0].url}/debian"})
    probes = probe_file_mirrors(Profile(name="direct", title=""), machine, [SIX, DEB, torch])
    assert sorted((probe.kind, probe.mirror, probe.fault) for probe in probes) == [
        ("apt", "direct", None),
        ("python", "direct", None),
        ("torch-wheels", "direct", None),
    ]


def test_objects_are_the_smallest_that_a_rule_stands_for() -> None:
    larger = artifact(BODY * 2, "big.whl")
    files = [larger, SIX, DEB, HTTP]
    assert pick_smallest_match(MirrorRule(kind="python", protocol="index", url="https://a.example"), files) == SIX
    assert pick_smallest_match(MirrorRule(kind="oci", protocol="direct"), files) is None
    github = MirrorRule(kind="http", protocol="url-prefix", url="https://a.example", match="https://github.com/")
    assert pick_smallest_match(github, files) == HTTP
    hub = MirrorRule(kind="huggingface", protocol="host", url="https://a.example", match="https://huggingface.co")
    assert pick_smallest_match(hub, files) is None


@pytest.mark.allow("sockets")
def test_the_rules_before_the_first_that_answers_are_dropped(hosts: list[MirrorServer]) -> None:
    hosts[0].close()
    hosts[1].answers["/stall/six/"] = Answer(body=b"x", stalls=True)
    hosts[1].index("/empty/six/", {})
    hosts[2].index("/good/six/", {SIX.file: f"/{SIX.file}"})
    hosts[2].file(f"/{SIX.file}", BODY)
    rules = index(hosts[0], "dead"), index(hosts[1], "empty"), index(hosts[1], "stall"), index(hosts[2], "good")
    last = index(hosts[2], "never-asked")
    live, dead = drop_and_list_dead_mirrors_before_live_one(profile(*rules, last), NetworkSettings(), [SIX])
    assert live.rule == (rules[3], last)
    assert [probe.mirror for probe in dead] == ["dead", "empty", "stall"]
    assert hosts[2].asked == ["/good/six/", f"/{SIX.file}"]
    assert drop_and_list_dead_mirrors_before_live_one(profile(*rules[:2]), NetworkSettings(), [SIX]) == (
        profile(*rules[:2]),
        [],
    )
