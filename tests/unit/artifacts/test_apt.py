"""Apt packages of a bootstrapped base: apt's own folder, its commands, and what it prints."""

from __future__ import annotations

import shutil

import pytest
from fakes import TARGET, Folder, load_cases

from rlbox.artifacts.apt_lock import (
    debian_architecture_or_processor,
    list_bootstrap_and_base_packages,
    map_urls_to_mirrored_name_or_url,
    parse_print_uris,
    render_apt_conf_and_pin_files,
    resolve_bootstrapped_base_debs,
    rewrite_source_lists,
)
from rlbox.artifacts.mirrors import map_suites_to_archive_names
from rlbox.errors import MachineError, SpecError, WorkFailed
from rlbox.target.lock import Deb
from rlbox.target.target import Base, load_target

CASES = load_cases("artifacts", "test_apt")
A, B = "a" * 64, "b" * 64
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
MAIN, SECURITY = "http://apt.example/debian", "http://apt.example/debian-security"


def base(folder: Folder, more: str = "") -> Base:
    folder.target("mine", TARGET.replace("[[stack]]", f"{more}\n[[stack]]"))
    return load_target(folder.project, "mine").target.base


@pytest.mark.parametrize(("more", "suites"), CASES["suites_and_their_archives"])
def test_suites_and_their_archives(folder: Folder, more: str, suites: dict[str, str]) -> None:
    found = map_suites_to_archive_names(base(folder, more))
    assert found == suites
    assert list(found) == list(suites)


def test_a_suite_of_another_release(folder: Folder) -> None:
    with pytest.raises(SpecError) as caught:
        map_suites_to_archive_names(base(folder, 'suites = ["trixie-security"]'))
    assert str(caught.value) == "base.suites: 'trixie-security' is not a suite of debian:bookworm"


def test_the_folder_of_apt() -> None:
    files = render_apt_conf_and_pin_files({"bash": "5.2-1", "adduser": "1:3.134"}, "amd64", "/r")
    assert 'Dir "/r/";\n' in files["apt.conf"]
    assert files["etc/apt/preferences.d/rlbox"] == (
        "Package: adduser\nPin: version 1:3.134\nPin-Priority: 1001\n\n"
        "Package: bash\nPin: version 5.2-1\nPin-Priority: 1001\n\n"
    )


def test_what_apt_is_asked_for(folder: Folder) -> None:
    minimal = ("?essential", "?priority(required)", "apt", "usr-is-merged")
    assert list_bootstrap_and_base_packages(base(folder, 'packages = ["python3", "git"]')) == (
        *minimal,
        "git",
        "python3",
    )


URLS = {MAIN: "debian", SECURITY: "debian-security"}


ONE_LINE = """\
# deb http://old.example/ubuntu jammy main
deb http://archive.example/ubuntu/ jammy main universe
deb [arch=amd64 signed-by=/usr/share/keyrings/cuda.gpg] https://cuda.example/repos/ubuntu2204/x86_64/ /
deb http://archive.example/ubuntu-ports jammy main
"""
MANY_LINES = """\
Types: deb
URIs: http://archive.example/debian
Suites: bookworm bookworm-updates
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""


def test_source_lists_of_an_image() -> None:
    lists = {"/r/etc/apt/sources.list": ONE_LINE, "/r/etc/apt/sources.list.d/debian.sources": MANY_LINES}
    archives = {"ubuntu": "https://mirror.example/ubuntu", "debian": "http://apt.example/debian"}
    assert rewrite_source_lists(lists, archives, "/r") == {
        "/r/etc/apt/sources.list": """\
# deb https://mirror.example/ubuntu jammy main
deb https://mirror.example/ubuntu jammy main universe
deb [arch=amd64 signed-by=/r/usr/share/keyrings/cuda.gpg] https://cuda.example/repos/ubuntu2204/x86_64/ /
deb http://archive.example/ubuntu-ports jammy main
""",
        "/r/etc/apt/sources.list.d/debian.sources": """\
Types: deb
URIs: http://apt.example/debian
Suites: bookworm bookworm-updates
Signed-By: /r/usr/share/keyrings/debian-archive-keyring.gpg
""",
    }
    assert rewrite_source_lists(lists, {}, "/r")["/r/etc/apt/sources.list"] == ONE_LINE.replace("=/usr", "=/r/usr")


def test_archives_of_an_image() -> None:
    """A mirror has an archive by its name; what only its owner has is named by its address."""
    assert map_urls_to_mirrored_name_or_url((ONE_LINE, MANY_LINES), ("debian", "ubuntu")) == {
        "http://archive.example/debian": "debian",
        "http://archive.example/ubuntu": "ubuntu",
        "http://archive.example/ubuntu-ports": "http://archive.example/ubuntu-ports",
        "https://cuda.example/repos/ubuntu2204/x86_64": "https://cuda.example/repos/ubuntu2204/x86_64",
    }


def test_the_longest_address_names_the_archive() -> None:
    text = f"'http://apt.example/debian/more/pool/a_1_all.deb' a_1_all.deb 1 SHA256:{A}"
    urls = {"http://apt.example/debian": "debian", "http://apt.example/debian/more/": "http://apt.example/debian/more"}
    [deb] = parse_print_uris(text, urls)
    assert (deb.archive, deb.path) == ("http://apt.example/debian/more", "pool/a_1_all.deb")


def test_what_apt_prints() -> None:
    """`%3a` is the colon of an epoch, which is no part of the path; a plus is escaped in the address alone."""
    text = f"""
'http://apt.example/debian/pool/main/u/util-linux/util_2.38.1-5%2bdeb12u3_amd64.deb' util_1%3a2.38.1-5+deb12u3_amd64.deb 94412 SHA256:{A}
'http://apt.example/debian-security/pool/updates/main/g/g%2b%2b_12.2.0-3_amd64.deb' g++_4%3a12.2.0-3_amd64.deb 1356 SHA256:{B}
'http://apt.example/debian/pool/main/a/adduser/adduser_3.134_all.deb' adduser_3.134_all.deb 183272 SHA256:{A}
"""  # noqa: E501 - these are apt's lines
    assert parse_print_uris(text, URLS) == (
        Deb(
            name="adduser",
            version="3.134",
            archive="debian",
            path="pool/main/a/adduser/adduser_3.134_all.deb",
            sha256=A,
            size=183272,
        ),
        Deb(
            name="g++",
            version="4:12.2.0-3",
            archive="debian-security",
            path="pool/updates/main/g/g++_12.2.0-3_amd64.deb",
            sha256=B,
            size=1356,
        ),
        Deb(
            name="util",
            version="1:2.38.1-5+deb12u3",
            archive="debian",
            path="pool/main/u/util-linux/util_2.38.1-5+deb12u3_amd64.deb",
            sha256=A,
            size=94412,
        ),
    )


FOREIGN = f"'http://other.example/debian/pool/a_1_all.deb' a_1_all.deb 1 SHA256:{A}"
BESIDE = f"'http://apt.example/debian-security/pool/a_1_all.deb' a_1_all.deb 1 SHA256:{A}"
WEAK = "'http://apt.example/debian/pool/a_1_all.deb' a_1_all.deb 1 MD5Sum:0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize("line", [FOREIGN, BESIDE, WEAK, "Reading package lists..."])
def test_what_is_no_package_of_the_archives(line: str) -> None:
    with pytest.raises(WorkFailed) as caught:
        parse_print_uris(line + "\n", {MAIN: "debian"})
    assert str(caught.value) == f"apt printed a line that does not name a package of its archives: {line}"


@pytest.mark.parametrize(("platform", "architecture"), CASES["architectures"])
def test_architectures(platform: str, architecture: str) -> None:
    assert debian_architecture_or_processor(platform) == architecture


@pytest.mark.parametrize(
    ("has_apt", "has_keyring", "archives", "what"),
    [
        (False, True, {}, "apt-get is missing"),
        (True, False, {"debian": MAIN}, f"{KEYRING} is missing"),
        (True, True, {"debian-security": SECURITY}, "no address of the archive 'debian' is known here"),
    ],
)
def test_a_machine_that_cannot_ask_apt(
    monkeypatch: pytest.MonkeyPatch, has_apt: bool, has_keyring: bool, archives: dict[str, str], what: str
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/apt-get" if has_apt else None)
    monkeypatch.setattr("pathlib.Path.is_file", lambda path: has_keyring)
    base = Base(bootstrap="debian:bookworm", suites=(), image="", packages=(), holds={}, holds_apt=())
    with pytest.raises(MachineError) as caught:
        resolve_bootstrapped_base_debs(base, "x86_64-unknown-linux-gnu", archives, {}, "")
    assert caught.value.what.startswith(what)
    assert caught.value.next_step
