"""Measuring mirrors: bytes are compared, what is dead or lies is named, the order is remembered."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from fakes import Folder
from mirrorbox import Answer, MirrorServer, artifact, mirrors

from rlbox.artifacts import mirror_probe
from rlbox.artifacts.mirror_probe import (
    QUICK_RANKING_MAX_AGE_S,
    RANKING_MAX_AGE_S,
    MirrorProbe,
    choose_by_probes,
    choose_probe_file,
    load_ranking,
    parse_ranking,
    probe_mirrors,
    ranking_json,
    save_ranking,
    sort_probes,
)
from rlbox.artifacts.mirrors import MachineSources
from rlbox.artifacts.profile import MirrorRule, Profile
from rlbox.artifacts.source_selection import load_or_probe_mirrors
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
    monkeypatch.setattr("rlbox.artifacts.mirror_probe._SILENT_S", 2.0)
    monkeypatch.setattr("rlbox.artifacts.source_selection.QUICK_PROBE_TIMEOUT_S", 0.3)


def index(host: MirrorServer, name: str) -> MirrorRule:
    return MirrorRule(kind="python", protocol="index", url=f"{host.url}/{name}", name=name)


def profile(*rules: MirrorRule) -> Profile:
    return Profile(name="mine", title="", rule=rules)


def by_mirror(found: tuple[MirrorProbe, ...]) -> dict[str, str]:
    return {one.mirror: one.reason for one in found}


@pytest.mark.allow("sockets")
def test_every_habit_is_named(hosts: list[MirrorServer]) -> None:
    host, far = hosts[0], hosts[1]
    for name, link in {
        "good": far.file(f"/good/{SIX.file}", BODY),
        "liar": far.file(f"/liar/{SIX.file}", BODY[::-1]),
        "page": far.file(f"/page/{SIX.file}", b"<html>log in</html>", kind="text/html"),
        "short": far.file(f"/short/{SIX.file}", BODY[:-1]),
        "gone": f"{far.url}/gone/{SIX.file}",
        "stall": far.file(f"/stall/{SIX.file}", BODY, stalls=True),
    }.items():
        host.index(f"/{name}/six/", {SIX.file: link})
    names = ("liar", "page", "short", "gone", "stall", "nothing", "good")
    found = probe_mirrors(profile(*(index(host, name) for name in names)), MachineSources(), [SIX])
    assert found[0].mirror == "good"
    assert (found[0].file, found[0].verified) == (SIX.file, "sha256 of the file")
    assert 0 < found[0].first_byte_s <= found[0].total_s
    reasons = by_mirror(found)
    assert reasons.pop("liar").startswith(f"gives wrong bytes for {SIX.file}: sha256 ")
    assert reasons == {
        "good": "",
        "page": "answered with a web page instead of the file",
        "short": f"offers {len(BODY) - 1} bytes, the lock says {len(BODY)}",
        "gone": "answered 404",
        "stall": "stalls: nothing came for too long",
        "nothing": "answered 404 for /nothing/six/",
    }


@pytest.mark.allow("sockets")
def test_a_large_file_is_not_downloaded(hosts: list[MirrorServer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_probe, "_WHOLE_BYTES", 1000)
    monkeypatch.setattr(mirror_probe, "_PART_BYTES", 100_000)
    body = bytes(range(256)) * 4096
    wheel = artifact(body, "torch-2+cpu-x.whl", "torch-wheels", name="torch", origin="cpu")
    rules = []
    for number, digests in enumerate(({wheel.file: wheel.sha256}, None)):
        hosts[number].index("/cpu/torch/", {wheel.file: f"/f/{wheel.file}"}, digests)
        hosts[number].file(f"/f/{wheel.file}", body)
        rules.append(MirrorRule(kind="torch-wheels", protocol="index", url=hosts[number].url, name=f"host {number}"))
    hosts[2].index("/cpu/torch/", {wheel.file: f"/f/{wheel.file}"})
    hosts[2].file(f"/f/{wheel.file}", body + b"x")
    rules.append(MirrorRule(kind="torch-wheels", protocol="index", url=hosts[2].url, name="host 2"))
    found = {one.mirror: one for one in probe_mirrors(profile(*rules), MachineSources(), [wheel])}
    assert found["host 0"].verified == "sha256 on its page, first MiB read"
    assert found["host 1"].verified == "length, first MiB read (its page has no sha256)"
    assert found["host 0"].mib_per_s > 0
    assert found["host 2"].reason == f"offers {len(body) + 1} bytes of {wheel.file}, the lock says {len(body)}"


@pytest.mark.allow("sockets")
def test_the_machines_own_settings(hosts: list[MirrorServer], folder: Folder) -> None:
    """The profile `direct`: an archive of apt, an index, and a wheel that lies here."""
    hosts[0].file("/debian/pool/p.deb", b"deb" * 99)
    hosts[0].index("/simple/six/", {SIX.file: f"/{SIX.file}"})
    hosts[0].file(f"/{SIX.file}", BODY)
    torch = artifact(b"torch", "torch-2+cpu-x.whl", "torch-wheels", name="torch", origin="cpu")
    folder.write("torch-2+cpu-x.whl", "torch")
    site = NetworkSettings(index_url=f"{hosts[0].url}/simple", find_links={str(folder.path): ("torch-2+cpu-x.whl",)})
    machine = MachineSources(network_settings=site, archive_urls={"debian": f"{hosts[0].url}/debian"})
    found = probe_mirrors(Profile(name="direct", title=""), machine, [SIX, DEB, torch, HTTP][:3])
    assert [(one.kind, one.mirror, one.reason) for one in found] == [
        ("apt", "direct", ""),
        ("python", "direct", ""),
        ("torch-wheels", str(folder.path), ""),
    ]
    (folder.path / "torch-2+cpu-x.whl").write_text("other")
    assert (
        "other bytes than the lock" in by_mirror(probe_mirrors(Profile(name="d", title=""), machine, [torch]))["direct"]
    )


def probed(kind: str, place: str, total_s: float, reason: str = "") -> MirrorProbe:
    return MirrorProbe(kind=kind, mirror=place, place=place, total_s=total_s, reason=reason)


def test_the_fastest_live_one_comes_first() -> None:
    a, b, dead = probed("python", "a", 0.2), probed("python", "b", 0.1), probed("python", "c", 0.0, "answered 404")
    apt = probed("apt", "z", 9.0)
    assert sort_probes([dead, a, b, apt]) == (apt, b, a, dead)


def test_what_a_ranking_decides() -> None:
    a, b, c, d = (
        MirrorRule(kind="python", protocol="index", url=f"https://{name}.example", name=name) for name in "abcd"
    )
    mine = profile(a, b, c, d, MirrorRule(kind="apt", protocol="archive", url="https://apt.example"))
    found = [
        probed("python", a.base_url, 0.2),
        probed("python", b.base_url, 0.1),
        probed("python", d.base_url, 0, "answered 404"),
        probed("apt", "https://apt.example", 0, "no connection"),
    ]
    choice = choose_by_probes(mine, found)
    assert choice.rules_by_kind["python"] == (b, a, c)
    assert choice.rules_by_kind["apt"] == mine.rules_for("apt")
    assert choice.dead_mirrors == ((d.base_url, "answered 404"), ("https://apt.example", "no connection"))
    assert choice.find_preferred_mirror("python") == b
    assert choice.find_preferred_mirror("git") is None


def test_a_ranking_is_old_after_six_hours_or_when_the_rules_change() -> None:
    mine, found = (
        profile(MirrorRule(kind="apt", protocol="archive", url="https://a.example")),
        (probed("apt", "x", 1.0),),
    )
    data = ranking_json(mine, found, at=1000.0)
    assert parse_ranking(data, mine, 1000.0 + RANKING_MAX_AGE_S - 1) == found
    assert parse_ranking(data, mine, 1000.0 + RANKING_MAX_AGE_S) is None
    assert parse_ranking(data, mine, 999.0) is None
    quick = ranking_json(mine, found, at=1000.0, quick=True)
    assert parse_ranking(quick, mine, 1000.0 + QUICK_RANKING_MAX_AGE_S - 1) == found
    assert parse_ranking(quick, mine, 1000.0 + QUICK_RANKING_MAX_AGE_S) is None
    assert parse_ranking(data, profile(), 1001.0) is None
    for torn in ({}, {"at": "x"}, {**data, "found": [{"x": 1}]}, {**data, "found": 1}):
        assert parse_ranking(torn, mine, 1001.0) is None


def test_objects_are_the_smallest_that_a_rule_stands_for() -> None:
    larger = artifact(BODY * 2, "big.whl")
    files = [larger, SIX, DEB, HTTP]
    assert choose_probe_file(MirrorRule(kind="python", protocol="index", url="https://a.example"), files) == SIX
    assert choose_probe_file(MirrorRule(kind="oci", protocol="direct"), files) is None
    github = MirrorRule(kind="http", protocol="url-prefix", url="https://a.example", match="https://github.com/")
    assert choose_probe_file(github, files) == HTTP
    hub = MirrorRule(kind="huggingface", protocol="host", url="https://a.example", match="https://huggingface.co")
    assert choose_probe_file(hub, files) is None


@pytest.mark.allow("sockets")
def test_choosing_without_a_probe_takes_the_first_that_answers(hosts: list[MirrorServer]) -> None:
    hosts[0].close()
    hosts[1].answers["/stall/six/"] = Answer(body=b"x", stalls=True)
    hosts[1].index("/empty/six/", {})
    hosts[2].index("/good/six/", {SIX.file: f"/{SIX.file}"})
    hosts[2].file(f"/{SIX.file}", BODY)
    rules = index(hosts[0], "dead"), index(hosts[1], "empty"), index(hosts[1], "stall"), index(hosts[2], "good")
    last = index(hosts[2], "never-asked")
    choice = load_or_probe_mirrors(profile(*rules, last), NetworkSettings(), [SIX])
    assert choice.rules_by_kind == {"python": (rules[3], last)}
    assert [mirror for mirror, _ in choice.dead_mirrors] == ["dead", "empty", "stall"]
    assert hosts[2].asked == ["/good/six/", f"/{SIX.file}"]
    assert load_or_probe_mirrors(profile(*rules, last), NetworkSettings(), [SIX]) == choice  # by the next verb, at once
    assert len(hosts[2].asked) == 2


def test_a_fresh_ranking_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (MirrorRule(kind="python", protocol="index", url=f"https://{name}.example") for name in "ab")
    mine = profile(a, b)
    assert load_ranking(mine) is None
    save_ranking(mine, [probed("python", a.base_url, 2.0), probed("python", b.base_url, 1.0)])
    assert load_or_probe_mirrors(mine, NetworkSettings(), [SIX]).rules_by_kind == {"python": (b, a)}
    later = time.time() + RANKING_MAX_AGE_S
    monkeypatch.setattr(time, "time", lambda: later)
    assert load_ranking(mine) is None
