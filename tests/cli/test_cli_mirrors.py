"""`rlbox mirrors`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fakes import Folder, Rlbox, Said
from mirrorbox import MirrorServer, artifact, mirrors

from rlbox.artifacts.mirrors import MachineSourceSettings

BODY = b"the wheel" * 100
SIX = artifact(BODY)
DEB = artifact(b"deb" * 99, "pool/p.deb", "apt", name="p", origin="debian")
RULE = '[[rule]]\nkind = "{kind}"\nprotocol = "{protocol}"\nurl = "{url}"\nname = "{name}"\n'


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[MirrorServer]]:
    """Two hosts; the target's lock has two files, and this machine has no settings."""
    monkeypatch.setattr("rlbox.cli.lock.list_artifacts_without_compile_inputs", lambda lock: (SIX, DEB))
    monkeypatch.setattr(
        "rlbox.cli.lock.probe_machine_source_settings",
        lambda site: MachineSourceSettings(network_settings=site),
    )
    with mirrors(2) as servers:
        servers[0].index("/good/six/", {SIX.file: f"/{SIX.file}"})
        servers[0].file(f"/{SIX.file}", BODY)
        servers[1].file("/debian/pool/p.deb", b"deb" * 99)
        yield servers


def write(folder: Folder, *rules: str) -> None:
    folder.write("sources/lan.toml", 'title = "the lan"\n' + "".join(rules))


def python_rule(host: MirrorServer, name: str) -> str:
    return RULE.format(kind="python", protocol="index", url=f"{host.url}/{name}", name=name)


def apt_rule(host: MirrorServer) -> str:
    return RULE.format(kind="apt", protocol="archive", url=host.url, name="debs")


@pytest.mark.allow("sockets")
def test_probe_asks_each_mirror(rlbox: Rlbox, folder: Folder, hosts: list[MirrorServer]) -> None:
    write(folder, python_rule(hosts[1], "gone"), python_rule(hosts[0], "good"), apt_rule(hosts[1]))
    said = rlbox("mirrors", "probe", "--sources", "lan")
    assert (said.code, said.err) == (0, "")
    rows = [line.split() for line in said.out.splitlines()]
    assert [tuple(row[:2]) for row in rows] == [("python", "gone"), ("python", "good"), ("apt", "debs")]
    assert rows[0][2:] == ["dead", "answered", "404", "for", "/gone/six/"]
    assert rows[1][-1] == SIX.file


@pytest.mark.allow("sockets")
def test_a_kind_that_nobody_gives(rlbox: Rlbox, folder: Folder, hosts: list[MirrorServer]) -> None:
    write(folder, python_rule(hosts[1], "gone"), python_rule(hosts[1], "away"), apt_rule(hosts[1]))
    said = rlbox("mirrors", "probe", "--sources", "lan", "--json")
    assert (said.code, said.data["dead"], said.err) == (1, ["python"], "")
    said = rlbox("mirrors", "probe", "--sources", "lan")
    assert said.code == 1
    assert said.err == (
        "rlbox: error: no mirror of profile lan offers python\n"
        "  where: gone, away\n"
        "  next:  check the network, or choose another profile with --sources NAME\n"
    )


def test_list(rlbox: Rlbox, folder: Folder) -> None:
    write(
        folder,
        RULE.format(kind="python", protocol="index", url="https://a.example/simple", name="a")
        + "expires = 2020-01-01\n",
    )
    said = rlbox("mirrors", "ls", "--sources", "lan")
    assert said == Said(
        code=0,
        out="# the lan\npython  a  index  https://a.example/simple  expired 2020-01-01: read it up again\n",
        err="next: rlbox mirrors probe --sources lan\n",
    )


def test_the_variable_and_the_option(rlbox: Rlbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLBOX_SOURCES", "cn")
    assert rlbox("mirrors", "--json").data["sources"] == "cn"
    assert rlbox("mirrors", "--sources", "direct", "--json").data["sources"] == "direct"
