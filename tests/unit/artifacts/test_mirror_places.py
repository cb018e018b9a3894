"""Where a file may be: the order of places for every protocol, from rules and the machine's settings."""

from __future__ import annotations

from typing import Any

import pytest
from mirrorbox import artifact

from rlbox.artifacts.mirrors import (
    DownloadLocation,
    MachineSourceSettings,
    iter_download_locations,
    list_git_mirror_urls_or_original,
    list_http_mirror_urls_or_original,
    list_image_references_or_original,
    merge_profile_apt_urls_over_machine,
)
from rlbox.artifacts.profile import MirrorRule, Profile
from rlbox.system.network_settings import NetworkSettings

SIX = artifact(b"six")
TORCH = artifact(b"t", "torch-2.9.0+cu128-cp311-cp311-linux_x86_64.whl", "torch-wheels", name="torch", origin="cu128")
DEB = artifact(b"d", "pool/main/p/p/p_1+b1_amd64.deb", "apt", name="p", origin="debian-security")
DIGEST = "sha256:" + "0123456789abcdef" * 4
NONE = Profile(name="direct", title="")


def rule(kind: str, protocol: str, url: str = "", **more: Any) -> MirrorRule:
    return MirrorRule.model_validate({"kind": kind, "protocol": protocol, "url": url, **more})


def profile(*rules: MirrorRule) -> Profile:
    return Profile(name="mine", title="", rule=rules)


def urls(found: Any) -> list[str]:
    return [place.url for place in found]


def test_python_without_rules_is_the_machines_own_index_then_its_extra_ones() -> None:
    site = NetworkSettings(
        wheels_by_find_links_folder={"/w": ("six-1.16.0-py2.py3-none-any.whl", "other.whl")},
        index_url="https://lan.example/simple/",
        extra_index_urls=("file:///opt/index", "https://extra.example"),
    )
    assert list(
        iter_download_locations(
            SIX, NONE, MachineSourceSettings(network_settings=site, default_index="https://default.example/simple")
        )
    ) == [
        DownloadLocation(mirror="/w", url="file:///w/six-1.16.0-py2.py3-none-any.whl", named_by="machine"),
        DownloadLocation(
            mirror="this machine's index",
            url="https://lan.example/simple/six/",
            page_at_url="index",
            named_by="machine",
        ),
        DownloadLocation(
            mirror="an extra index of this machine",
            url="https://extra.example/six/",
            page_at_url="index",
            named_by="machine",
        ),
    ]


def test_python_without_any_setting_is_what_uv_reads() -> None:
    machine = MachineSourceSettings(default_index="https://default.example/simple")
    (place,) = iter_download_locations(artifact(b"", name="Flash_Attn.x"), NONE, machine)
    assert place == DownloadLocation(
        mirror="uv's default index",
        url="https://default.example/simple/flash-attn-x/",
        page_at_url="index",
        named_by="default",
    )
    assert list(iter_download_locations(SIX, NONE, MachineSourceSettings())) == []


def test_python_rules_take_the_place_of_the_machines_index() -> None:
    mine = profile(
        rule("python", "index", "https://a.example/simple"),
        rule("python", "flat", "https://b.example/wheels/", name="b"),
        rule("python", "direct"),
    )
    machine = MachineSourceSettings(network_settings=NetworkSettings(index_url="https://lan.example/simple"))
    assert [(p.mirror, p.url, p.page_at_url, p.named_by) for p in iter_download_locations(SIX, mine, machine)] == [
        ("a.example", "https://a.example/simple/six/", "index", "profile"),
        ("b", "https://b.example/wheels/", "flat", "profile"),
        ("this machine's index", "https://lan.example/simple/six/", "index", "machine"),
    ]


def test_torch_wheels_stand_in_their_channel() -> None:
    mine = profile(
        rule("torch-wheels", "flat", "https://a.example/pytorch-wheels"),
        rule("torch-wheels", "index", "https://b.example/whl"),
        rule("torch-wheels", "direct"),
    )
    site = NetworkSettings(wheels_by_find_links_folder={"/w": ("torch-2.9.0%2Bcu128-cp311-cp311-linux_x86_64.whl",)})
    assert [
        (p.url, p.page_at_url, p.named_by)
        for p in iter_download_locations(TORCH, mine, MachineSourceSettings(network_settings=site))
    ] == [
        ("file:///w/torch-2.9.0%252Bcu128-cp311-cp311-linux_x86_64.whl", "", "machine"),
        ("https://a.example/pytorch-wheels/cu128/", "flat", "profile"),
        ("https://b.example/whl/cu128/torch/", "index", "profile"),
        ("https://download.pytorch.org/whl/cu128/torch/", "index", "default"),
    ]


def test_apt_archives_stand_below_a_mirror() -> None:
    machine = MachineSourceSettings(
        url_by_apt_archive={"debian": "http://m.example/debian", "debian-security": "http://s.example/security"}
    )
    file = "pool/main/p/p/p_1%2Bb1_amd64.deb"
    assert [(p.url, p.named_by) for p in iter_download_locations(DEB, NONE, machine)] == [
        (f"http://s.example/security/{file}", "machine")
    ]
    assert list(iter_download_locations(DEB, NONE, MachineSourceSettings())) == []
    mine = profile(rule("apt", "archive", "https://a.example/"), rule("apt", "direct"))
    assert urls(iter_download_locations(DEB, mine, machine)) == [
        f"https://a.example/debian-security/{file}",
        f"http://s.example/security/{file}",
    ]
    assert merge_profile_apt_urls_over_machine(("debian",), mine, machine) == {
        **machine.url_by_apt_archive,
        "debian": "https://a.example/debian",
    }
    assert merge_profile_apt_urls_over_machine(("debian", "ubuntu"), NONE, machine) == dict(machine.url_by_apt_archive)


GITHUB = "https://github.com/o/r/releases/download/v1/x.whl"


@pytest.mark.parametrize(
    ("one", "url"),
    [
        (rule("http", "url-prefix", "https://p.example"), f"https://p.example/{GITHUB}"),
        (rule("http", "url-prefix", "https://p.example/", match="https://github.com/"), f"https://p.example/{GITHUB}"),
        (
            rule("http", "host", "https://h.example/github.com", match="https://github.com"),
            "https://h.example/github.com/o/r/releases/download/v1/x.whl",
        ),
        (
            rule("huggingface", "host", "https://h.example/", match="https://github.com/"),
            "https://h.example/o/r/releases/download/v1/x.whl",
        ),
        (rule("http", "url-prefix", "https://p.example", match="https://other.example/"), GITHUB),
        (rule("http", "direct", match="https://github.com/"), GITHUB),
        (rule("python", "index", "https://p.example"), GITHUB),
    ],
)
def test_addresses_of_files(one: MirrorRule, url: str) -> None:
    (place,) = list_http_mirror_urls_or_original(GITHUB, profile(one))
    assert place.url == url
    assert place.named_by == ("profile" if url != GITHUB else "target")


def test_the_original_is_a_last_resort_only_when_a_rule_says_so() -> None:
    prefix = rule("http", "url-prefix", "https://p.example")
    assert urls(list_http_mirror_urls_or_original(GITHUB, profile(prefix))) == [f"https://p.example/{GITHUB}"]
    assert urls(list_http_mirror_urls_or_original(GITHUB, profile(prefix, rule("http", "direct")))) == [
        f"https://p.example/{GITHUB}",
        GITHUB,
    ]


def test_addresses_of_repositories() -> None:
    url = "https://github.com/o/r.git"
    mine = profile(
        rule("git", "git-instead-of", "https://g.example/github.com/", match="https://github.com/"),
        rule("git", "url-prefix", "https://p.example", match="https://github.com/"),
        rule("git", "direct"),
    )
    assert urls(list_git_mirror_urls_or_original(url, mine)) == [
        "https://g.example/github.com/o/r.git",
        f"https://p.example/{url}",
        url,
    ]
    assert urls(list_git_mirror_urls_or_original("https://codeberg.org/o/r", mine)) == ["https://codeberg.org/o/r"]
    assert urls(list_git_mirror_urls_or_original(url, NONE)) == [url]


def test_references_of_images() -> None:
    mine = profile(
        rule("oci", "registry-prefix", "https://m.example"),
        rule("oci", "host", "https://hub.example/sub", match="docker.io"),
        rule("oci", "direct"),
    )
    assert urls(list_image_references_or_original(f"debian@{DIGEST}", mine)) == [
        f"m.example/docker.io/library/debian@{DIGEST}",
        f"hub.example/sub/library/debian@{DIGEST}",
        f"debian@{DIGEST}",
    ]
    assert urls(list_image_references_or_original(f"nvcr.io/nvidia/pytorch@{DIGEST}", mine)) == [
        f"m.example/nvcr.io/nvidia/pytorch@{DIGEST}",
        f"nvcr.io/nvidia/pytorch@{DIGEST}",
    ]
    assert urls(list_image_references_or_original(f"quay.io/x@{DIGEST}", NONE)) == [f"quay.io/x@{DIGEST}"]
