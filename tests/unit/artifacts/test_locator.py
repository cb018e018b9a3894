"""Finding files on real mirrors of this machine's loopback, with all their bad habits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mirrorbox import Answer, MirrorServer, artifact, mirrors

from rlbox.artifacts.locator import MirrorUrlFinder
from rlbox.artifacts.mirrors import DownloadLocation, MachineSourceSettings
from rlbox.artifacts.profile import MirrorRule, Profile
from rlbox.system.http import HttpClient, create_netrc_client
from rlbox.system.network_settings import NetworkSettings
from rlbox.target.artifact import Artifact

pytestmark = pytest.mark.allow("sockets")
BODY = b"the wheel" * 100
SIX = artifact(BODY)
TORCH = artifact(BODY, "torch-2.9.0+cpu-cp311-cp311-linux_x86_64.whl", "torch-wheels", name="torch", origin="cpu")


@pytest.fixture
def hosts() -> Iterator[list[MirrorServer]]:
    """Three hosts."""
    with mirrors(3) as servers:
        yield servers


@pytest.fixture(scope="module")
def client() -> Iterator[HttpClient]:
    """A client that waits for 0.3 s."""
    with create_netrc_client(NetworkSettings(), idle_timeout_s=0.3) as made:
        yield made


class Found:
    """A locator over index rules for some addresses, and what it said."""

    def __init__(self, client: HttpClient, *rules: MirrorRule, machine: MachineSourceSettings | None = None) -> None:
        self.said: list[tuple[str, str]] = []
        profile = Profile(name="mine", title="", rule=rules)
        skip = lambda mirror, reason: self.said.append((mirror, reason))  # noqa: E731
        self.locator = MirrorUrlFinder(profile, machine or MachineSourceSettings(), client, on_skip=skip)

    def __call__(self, wanted: Artifact = SIX) -> list[str]:
        return [link.url for link in self.locator.find_ordered_urls_reading_index_pages(wanted)]


def index(host: MirrorServer, name: str, **more: str) -> MirrorRule:
    return MirrorRule.model_validate(
        {"kind": "python", "protocol": "index", "url": f"{host.url}/simple", "name": name, **more}
    )


def test_contents_at_other_addresses(hosts: list[MirrorServer], client: HttpClient) -> None:
    """The page of one host lists files of another, and of itself by a path that starts elsewhere."""
    far = hosts[1].file("/x/9f/six.whl", BODY)
    hosts[0].index("/simple/six/", {"six-1.15.0.tar.gz": "../old.tar.gz", SIX.file: f"../../files/{SIX.file}"})
    hosts[2].index("/simple/six/", {SIX.file: f"{hosts[1].url}/x/9f/{SIX.file}"}, {SIX.file: SIX.sha256})
    found = Found(client, index(hosts[0], "a"), index(hosts[2], "b"))
    assert list(found.locator.find_ordered_urls_reading_index_pages(SIX)) == [
        DownloadLocation(url=f"{hosts[0].url}/files/{SIX.file}", mirror="a"),
        DownloadLocation(url=f"{hosts[1].url}/x/9f/{SIX.file}", mirror="b"),
    ]
    assert far.startswith(hosts[1].url)
    assert found.said == []


def test_a_flat_page(hosts: list[MirrorServer], client: HttpClient) -> None:
    name = TORCH.file.replace("+", "%2B")
    hosts[0].index("/whl/cpu/", {"torch-2.8.0%2Bcpu.whl": "torch-2.8.0%2Bcpu.whl", name: name})
    rule = MirrorRule(kind="torch-wheels", protocol="flat", url=f"{hosts[0].url}/whl")
    assert Found(client, rule)(TORCH) == [f"{hosts[0].url}/whl/cpu/{name}"]


def test_folders_of_this_machine_come_first(tmp_path: Path, hosts: list[MirrorServer], client: HttpClient) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / SIX.file).write_bytes(BODY)
    site = NetworkSettings(
        wheels_by_find_links_folder={str(tmp_path / "wheels"): (SIX.file,)},
        index_url=f"{hosts[0].url}/simple",
    )
    hosts[0].index("/simple/six/", {SIX.file: f"/{SIX.file}"})
    found = Found(client, machine=MachineSourceSettings(network_settings=site))
    assert found() == [
        f"file://{tmp_path}/wheels/{SIX.file}",
        f"{hosts[0].url}/{SIX.file}",
    ]
    assert found.said == []


def test_each_bad_habit_is_said_and_the_next_mirror_asked(hosts: list[MirrorServer], client: HttpClient) -> None:
    good = hosts[2]
    good.index("/simple/six/", {SIX.file: f"/{SIX.file}"})
    for path, answer in {
        "/gone/six/": Answer(status=404),
        "/login/six/": Answer(body=b"<html><body><a href='/login'>please log in</a></body></html>", kind="text/html"),
        "/stall/six/": Answer(body=b"<html>", stalls=True),
    }.items():
        hosts[0].answers[path] = answer
    hosts[0].index("/liar/six/", {SIX.file: f"/{SIX.file}"}, {SIX.file: "f" * 64})
    hosts[1].close()
    rules = [
        MirrorRule(kind="python", protocol="index", url=f"{hosts[0].url}/{name}", name=name)
        for name in ("gone", "login", "liar", "stall")
    ]
    found = Found(client, *rules, index(hosts[1], "dead"), index(good, "good"))
    assert found() == [f"{good.url}/{SIX.file}"]
    assert [mirror for mirror, _ in found.said] == ["gone", "login", "liar", "stall", "dead"]
    reasons = dict(found.said)
    assert reasons["gone"] == "answered 404 for /gone/six/"
    assert reasons["login"] == f"does not list {SIX.file}"
    assert reasons["liar"] == f"lists {SIX.file} with another sha256 than the lock"
    assert reasons["stall"] == "stalls: nothing came for too long"
    assert reasons["dead"] == "cannot reach 127.0.0.1: Connection refused"


def test_a_host_that_does_not_answer_is_not_asked_again(hosts: list[MirrorServer], client: HttpClient) -> None:
    hosts[0].answers["/simple/six/"] = Answer(body=b"x", stalls=True)
    hosts[1].index("/simple/six/", {SIX.file: f"/{SIX.file}"})
    hosts[1].index("/simple/rich/", {"rich.whl": "/rich.whl"})
    found = Found(client, index(hosts[0], "slow"), index(hosts[1], "good"))
    assert found() != []
    assert found(artifact(b"", "rich.whl", name="rich")) == [f"{hosts[1].url}/rich.whl"]
    assert hosts[0].asked == ["/simple/six/"]
    assert len(found.said) == 1
