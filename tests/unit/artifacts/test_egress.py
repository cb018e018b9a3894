"""Which hosts are contacted: by files, by settings, by software that nobody asked."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import Folder, load_cases
from mirrorbox import Answer, artifact, mirrors

from rlbox.artifacts.egress import (
    HostContact,
    env_condition_holds,
    list_possible_host_contacts,
    list_remote_source_urls,
    map_phases_to_hosts_not_closed_by_env,
    probe_redirect_and_listed_hosts_by_url,
)
from rlbox.artifacts.mirrors import MachineSourceSettings
from rlbox.artifacts.profile import HiddenHost, MirrorRule, Profile, load_implicitly_contacted_hosts
from rlbox.system.network_settings import NetworkSettings
from rlbox.target.artifact import Artifact
from rlbox.target.target import Target, load_target

CASES = load_cases("artifacts", "test_egress")
SMALL = CASES["SMALL"]
BODY = b"six"
SIX = artifact(BODY)
DEB = artifact(b"d", "pool/p.deb", "apt", name="p", origin="debian")
TORCH = artifact(b"t", "torch-2+cpu-x.whl", "torch-wheels", name="torch", origin="cpu")
NONE = Profile(name="direct", title="")
MACHINE = MachineSourceSettings(
    network_settings=NetworkSettings(index_url="https://index.example/simple"),
    url_by_apt_archive={"debian": "http://apt.example/debian"},
)


@pytest.fixture
def target(folder: Folder) -> Target:
    """The smallest target."""
    folder.target("mine", SMALL)
    return load_target(folder.project, "mine").target


def changed(target: Target, **changes: Any) -> Target:
    return Target.model_validate({**target.model_dump(), **changes})


def plan(
    target: Target,
    files: tuple[Artifact, ...] = (SIX, DEB),
    profile: Profile = NONE,
    hidden: tuple[HiddenHost, ...] = (),
    machine: MachineSourceSettings = MACHINE,
    behind: dict[str, tuple[str, ...]] | None = None,
) -> tuple[HostContact, ...]:
    return list_possible_host_contacts(target, files, profile, hidden, machine, behind or {})


def shown(found: tuple[HostContact, ...]) -> list[tuple[str, str, str]]:
    return [(one.host, one.declared, one.why) for one in found]


def test_the_machines_settings_and_where_they_lead(target: Target) -> None:
    behind = {
        "https://index.example/simple/six/": ("index.example", "files.example"),
        "http://apt.example/debian/pool/p.deb": (),
    }
    found = plan(target, behind=behind)
    assert shown(found) == [
        ("apt.example", "machine", "this machine's apt sources"),
        ("index.example", "machine", "this machine's index"),
        ("files.example", "machine", "index.example leads there"),
    ]
    assert {one.phases for one in found} == {("lock", "fetch", "build")}
    assert map_phases_to_hosts_not_closed_by_env(found) == {
        "lock": ["apt.example", "files.example", "index.example"],
        "fetch": ["apt.example", "files.example", "index.example"],
        "build": ["apt.example", "files.example", "index.example"],
        "run": [],
    }


def test_what_could_not_be_asked_is_said(target: Target) -> None:
    found = plan(target, machine=MachineSourceSettings())
    assert [(one.host, one.kind, one.why) for one in found] == [
        ("", "apt", "default of the client (not asked: no network)"),
        ("", "python", "default of the client (not asked: no network)"),
    ]
    assert map_phases_to_hosts_not_closed_by_env(found)["build"] == []
    assert plan(target)[1].why == "this machine's index (not asked where it leads: no network)"


def test_rules_name_every_host_of_the_fail_over(target: Target) -> None:
    rules = (
        MirrorRule(kind="python", protocol="index", url="https://a.example/simple"),
        MirrorRule(kind="python", protocol="flat", url="https://b.example", name="b"),
        MirrorRule(kind="apt", protocol="archive", url="https://c.example"),
    )
    found = plan(target, profile=Profile(name="mine", title="", rule=rules))
    assert [(one.host, one.declared) for one in found] == [
        ("c.example", "profile"),
        ("a.example", "profile"),
        ("b.example", "profile"),
    ]


def test_files_and_repositories_and_images_of_the_spec(target: Target) -> None:
    mine = changed(
        target,
        base={**target.base.model_dump(), "bootstrap": "", "image": "nvcr.io/nvidia/cuda@sha256:" + "a" * 64},
        http=({"name": "x", "url": "https://github.com/x.whl", "into": "/x"},),
        git=({"name": "r", "url": "https://codeberg.example/r.git", "ref": "main", "into": "/r"},),
    )
    behind = {"https://github.com/x.whl": ("github.com", "release-assets.example")}
    assert [(one.host, one.kind, one.declared) for one in plan(mine, (), behind=behind)][1:] == [
        ("github.com", "http", "target"),
        ("release-assets.example", "http", "target"),
        ("codeberg.example", "git", "target"),
        ("nvcr.io", "oci", "target"),
    ]


def test_a_wheel_on_this_machine_needs_no_host(target: Target) -> None:
    local = MachineSourceSettings(
        network_settings=NetworkSettings(
            index_url="https://index.example", wheels_by_find_links_folder={"/w": (TORCH.file,)}
        )
    )
    assert [one.host for one in plan(target, (SIX, TORCH), machine=local)] == ["index.example"]
    away = MachineSourceSettings(network_settings=NetworkSettings(index_url="https://index.example"))
    assert "download.pytorch.org" in [one.host for one in plan(target, (TORCH,), machine=away)]


def test_before_there_is_a_lock_the_spec_says_what_will_be_asked(target: Target) -> None:
    stack = [
        {"name": "torch", "packages": ("torch==2.9.0",), "source": "torch-wheels", "channel": "cu128"},
        {"name": "leaf", "packages": ("six",)},
    ]
    found = list_remote_source_urls(changed(target, stack=tuple(stack)), (), NONE, MACHINE)
    assert [(one.kind, one.file_url.url) for one in found] == [
        ("torch-wheels", "https://download.pytorch.org/whl/cu128/torch/"),
        ("apt", "http://apt.example/debian/dists/bookworm/InRelease"),
        ("python", "https://index.example/simple/uv/"),
    ]


def test_a_proxy_is_a_host(target: Target) -> None:
    site = NetworkSettings(proxy_env={"HTTPS_PROXY": "http://proxy.example:3128", "no_proxy": "localhost"})
    (first, *_) = plan(target, (), machine=MachineSourceSettings(network_settings=site))
    assert (first.host, first.kind, first.declared) == ("proxy.example", "proxy", "machine")


ROWS = load_implicitly_contacted_hosts()


def hidden(target: Target, *names: str, env: dict[str, str] | None = None, file: str = "x.whl") -> dict[str, str]:
    """Return the hidden hosts of a lock with these packages: host to what closes it."""
    files = tuple(artifact(b"", file, name=name) for name in names)
    found = plan(
        changed(target, env=env or {}),
        files,
        hidden=ROWS,
        machine=MachineSourceSettings(),
    )
    return {one.host: one.closed_by for one in found if one.declared == "hidden"}


@pytest.mark.parametrize(("package", "host", "env", "closed_by"), CASES["hidden_hosts"])
def test_hidden_hosts(target: Target, package: str, host: str, env: dict[str, str], closed_by: str) -> None:
    assert hidden(target, package)[host] == ""
    assert hidden(target, package, env=env)[host] == closed_by
    assert host not in hidden(target, "six")


def test_xet_goes_its_way_whatever_the_endpoint_says(target: Target) -> None:
    env = {"HF_ENDPOINT": "https://hf-mirror.com"}
    found = hidden(target, "huggingface-hub", "hf-xet", env=env)
    assert found == {"hf-mirror.com": "", "*.hf.co": "HF_ENDPOINT", "*.xethub.hf.co": ""}


def test_flash_attn_downloads_only_when_it_is_built(target: Target) -> None:
    archive = "flash_attn-2.8.3.tar.gz"
    assert set(hidden(target, "flash-attn", file=archive)) == {"github.com", "release-assets.githubusercontent.com"}
    assert hidden(target, "flash-attn", file="flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl") == {}
    forced = hidden(target, "flash-attn", file=archive, env={"FLASH_ATTENTION_FORCE_BUILD": "TRUE"})
    assert set(forced.values()) == {"FLASH_ATTENTION_FORCE_BUILD=TRUE"}


def test_docker_hub_has_more_than_one_host(target: Target) -> None:
    image = {**target.base.model_dump(), "bootstrap": "", "image": "debian@sha256:" + "a" * 64}
    found = plan(changed(target, base=image), (SIX,), hidden=ROWS)
    assert {"docker.io", "registry-1.docker.io", "auth.docker.io"} <= {one.host for one in found}


@pytest.mark.parametrize(("condition", "env", "held"), CASES["conditions"])
def test_conditions(condition: str, env: dict[str, str], held: bool) -> None:
    assert env_condition_holds(condition, env) is held


@pytest.mark.allow("sockets")
def test_asking_follows_pages_and_redirects(target: Target) -> None:
    with mirrors(2) as (first, second):
        here, there = (server.url.replace("127.0.0.1", "localhost") for server in (first, second))
        first.index("/simple/six/", {SIX.file: f"{there}/{SIX.file}", "other.whl": "https://never.example/other.whl"})
        second.answers[f"/{SIX.file}"] = Answer(status=302, headers={"Location": f"{first.url}/end"})
        first.file("/end", BODY)
        first.answers["/debian/pool/p.deb"] = Answer(status=302, headers={"Location": f"{second.url}/deb"})
        second.file("/deb", b"d")
        machine = MachineSourceSettings(
            network_settings=NetworkSettings(index_url=f"{here}/simple"),
            url_by_apt_archive={"debian": f"{here}/debian"},
        )
        assert probe_redirect_and_listed_hosts_by_url(target, (SIX, DEB), NONE, machine) == {
            f"{here}/simple/six/": ("localhost", "127.0.0.1"),
            f"{here}/debian/pool/p.deb": ("localhost", "127.0.0.1"),
        }
    assert probe_redirect_and_listed_hosts_by_url(target, (SIX, DEB), NONE, machine) == {}
