"""The lock file: stable, read as it was written, told when torn; and when it is stale."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import CHECKOUT, PACKAGE, TARGET, Folder, fitting_lock
from hypothesis import given
from hypothesis import strategies as st

from rlbox.config.project import Project
from rlbox.errors import SpecError
from rlbox.target.lock import (
    Deb,
    GitTree,
    HttpFile,
    Lock,
    LockedPackageGroup,
    LockedPatch,
    Package,
    compute_lock_spec_checksum,
    explain_lock_fault,
    format_requirements,
    load_lock,
    make_locked_patch,
)
from rlbox.target.target import load_target

A, B, C = "a" * 64, "b" * 64, "c" * 64


def test_text_has_one_file_a_line() -> None:
    package = Package(name="six", version="1.16.0", file="six-ä.whl", sha256=A, size=3, source="torch-wheels/cpu")
    lock = Lock(
        target="mine",
        spec="s",
        python="3.11",
        platform="x86_64-manylinux_2_36",
        base="debian:bookworm",
        debs=(Deb(name="bash", version="1:5", archive="debian", path="pool/b.deb", sha256=C, size=4),),
        runtime=LockedPackageGroup(
            name="runtime", packages=(replace(package, name="uv", file="uv.whl", source="python"),)
        ),
        groups=(LockedPackageGroup(name="tools", packages=(package,)), LockedPackageGroup(name="none", packages=())),
        git=(GitTree(name="t", url="u", ref="r", commit="c", tree="e", sha256=B, size=5),),
        http=(HttpFile(name="f", url="u", sha256=B, size=6),),
        patches=(LockedPatch(name="p", sha256=B),),
    )
    uv = f'{{"name": "uv", "version": "1.16.0", "file": "uv.whl", "sha256": "{A}", "size": 3, "source": "python"}}'
    six = f'"version": "1.16.0", "file": "six-ä.whl", "sha256": "{A}", "size": 3, "source": "torch-wheels/cpu"'
    deb = f'"version": "1:5", "archive": "debian", "path": "pool/b.deb", "sha256": "{C}", "size": 4'
    assert (
        lock.to_json_text()
        == f"""{{
  "schema": 2,
  "target": "mine",
  "spec": "s",
  "python": "3.11",
  "platform": "x86_64-manylinux_2_36",
  "base": "debian:bookworm",
  "apt": [
    {{"name": "bash", {deb}}}
  ],
  "runtime": [
    {uv}
  ],
  "build": [],
  "groups": [
    {{"name": "tools", "packages": [
      {{"name": "six", {six}}}
    ]}},
    {{"name": "none", "packages": []}}
  ],
  "git": [
    {{"name": "t", "url": "u", "ref": "r", "commit": "c", "tree": "e", "sha256": "{B}", "size": 5}}
  ],
  "http": [
    {{"name": "f", "url": "u", "sha256": "{B}", "size": 6}}
  ],
  "patches": [
    {{"name": "p", "sha256": "{B}"}}
  ]
}}
"""
    )
    assert lock.compute_json_sha256() == hashlib.sha256(lock.to_json_text().encode()).hexdigest()
    assert [package.name for package in lock.list_python_packages()] == ["uv", "six"]


def test_requirements_demand_the_hash() -> None:
    assert PACKAGE.format_requirement_line_with_hash() == f"six==1.16.0 --hash=sha256:{A}\n"
    other = replace(PACKAGE, name="rich", version="15+x", sha256=B)
    assert (
        format_requirements([PACKAGE, other])
        == PACKAGE.format_requirement_line_with_hash() + f"rich==15+x --hash=sha256:{B}\n"
    )
    assert format_requirements([]) == ""


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=8)
SUMS, SIZES = st.sampled_from([A, B, C]), st.integers(0, 1 << 40)
TEXTS = dict.fromkeys(("target", "spec", "python", "platform", "base"), WORDS)


def rows(kind: Any, *words: str, **more: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    row = st.builds(kind, sha256=SUMS, **dict.fromkeys(("name", *words), WORDS), **more)
    return st.lists(row, max_size=3).map(tuple)


PACKAGES = rows(Package, "version", "file", "source", size=SIZES)
LOCKS = st.builds(
    Lock,
    **TEXTS,
    debs=rows(Deb, "version", "archive", "path", size=SIZES),
    runtime=st.builds(LockedPackageGroup, name=st.just("runtime"), packages=PACKAGES),
    build=st.builds(LockedPackageGroup, name=st.just("build"), packages=PACKAGES),
    groups=st.lists(st.builds(LockedPackageGroup, name=WORDS, packages=PACKAGES), max_size=3).map(tuple),
    git=rows(GitTree, "url", "ref", "commit", "tree", size=SIZES),
    http=rows(HttpFile, "url", size=SIZES),
    patches=rows(LockedPatch),
)


@given(lock=LOCKS)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, lock: Lock) -> None:
    path = tmp_path_factory.getbasetemp() / "lock.json"
    path.write_text(lock.to_json_text(), encoding="utf-8", newline="")
    read = load_lock(path)
    assert read == lock
    assert read.to_json_text() == lock.to_json_text()
    assert json.loads(lock.to_json_text())["schema"] == 2


def test_shipped_locks_are_written_as_they_are_read() -> None:
    project = Project(folder=CHECKOUT)
    for name in project.own_pack_and_shipped_target_files():
        path = project.own_or_shipped_lock_file(name)
        if name != "local" and not path.is_file():
            continue  # its stack is locked where it is first built
        lock = load_lock(path)
        assert lock is not None, path
        assert lock.to_json_text() == path.read_text(encoding="utf-8")
        assert lock.target == name
        names = [package.name for group in lock.groups for package in group.packages]
        assert len(names) == len(set(names)), "a package in two groups"
        sized = [
            row for row in lock.list_python_packages() if "://" not in row.source
        ]  # a wheel by address may have none
        assert all(package.size for package in (*sized, *lock.debs)), "a file of unknown size"


def test_no_lock(tmp_path: Path) -> None:
    assert load_lock(tmp_path / "images/mine/lock.json") is None


HEAD = '"schema": 2, "target": "t", "spec": "s", "python": "3.11", "platform": "p", "base": "b"'
REST = '"runtime": [], "build": [], "groups": [], "git": [], "http": [], "patches": []'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a lock file: JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
        (
            '{"schema": 2, "target": "mi',
            "not a lock file: JSONDecodeError: Unterminated string starting at: line 1 column 25 (char 24)",
        ),
        ("[]", "not a lock file: TypeError: list indices must be integers or slices, not str"),
        ('{"schema": 2}', "not a lock file: KeyError: 'target'"),
        ('{"schema": 1}', "schema 1, this rlbox reads 2"),
        (f"{{{HEAD}}}", "not a lock file: KeyError: 'apt'"),
        (
            f'{{{HEAD}, "apt": [{{"name": "bash", "epoch": 1}}], {REST}}}',
            "not a lock file: TypeError: Deb.__init__() got an unexpected keyword argument 'epoch'",
        ),
        (
            f'{{{HEAD}, "apt": [], {REST.replace("[]", """[{"name": "uv"}]""", 1)}}}',
            "not a lock file: TypeError: Package.__init__() missing 4 required keyword-only arguments: "
            "'version', 'file', 'sha256', and 'size'",
        ),
        ("\xff", "not a lock file: UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: "
                 "invalid start byte"),
    ],
)  # fmt: skip
def test_a_torn_lock(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine/lock.json"
    path.parent.mkdir()
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(SpecError) as caught:
        load_lock(path)
    assert str(caught.value) == f"{path}: {message}\n  next:  rlbox lock mine"


def test_a_lock_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        load_lock(tmp_path)
    assert str(caught.value) == f"{tmp_path}: cannot be read: Is a directory"


STALE = {
    "package": TARGET.replace("1.16.0", "1.17.0"),
    "group": TARGET.replace('"tools"', '"tool"'),
    "python": TARGET + '[python]\nversion = "3.12"\n',
    "exclude": TARGET + '[python]\nexclude = ["x"]\n',
    "build tools": TARGET + '[python]\nbuild = ["hatchling"]\n',
    "apt package": TARGET.replace("[[stack]]", 'packages = ["git"]\n[[stack]]'),
    "suite": TARGET.replace("[[stack]]", 'suites = ["bookworm-security"]\n[[stack]]'),
    "git": TARGET + '[[git]]\nname = "t"\nurl = "https://git.example/t"\nref = "main"\ninto = "/opt/t"\n',
    "http": TARGET + '[[http]]\nname = "f"\nurl = "https://files.example/f"\ninto = "/opt/f"\n',
    "patch": TARGET + '[[patches]]\nfile = "one.diff"\ninto = "/opt"\n',
}
FRESH = {
    "environment": TARGET + '[env]\nA = "1"\n',
    "limits": TARGET + "[run]\npids = 7\n",
    "build settings": TARGET + '[build]\nnetwork = "none"\nown_layer_mib = 5\n',
    "sources": 'sources = "cn"\n' + TARGET,
    "order of requirements": TARGET,
}


def test_what_makes_a_lock_stale(folder: Folder) -> None:
    def checksum(text: str, *runtime: str) -> str:
        folder.target("mine", text)
        return compute_lock_spec_checksum(load_target(folder.project, "mine").target, runtime)

    fresh = checksum(TARGET, "click", "rich")
    assert {name: checksum(text, "rich", "click") for name, text in FRESH.items()} == dict.fromkeys(FRESH, fresh)
    stale = {checksum(TARGET, "click"), *(checksum(text, "click", "rich") for text in STALE.values())}
    assert fresh not in stale
    assert len(stale) == len(STALE) + 1


PATCHED = TARGET + '[[patches]]\nfile = "one.diff"\ninto = "/opt"\n[[patches]]\nfile = "two.diff"\ninto = "/opt"\n'
TEXTS_OF_PATCHES = {"one.diff": "1\n", "two.diff": "2\n"}


@pytest.mark.parametrize(
    ("changes", "patches", "fault"),
    [
        ({}, TEXTS_OF_PATCHES, None),
        (
            {"python": "3.12"},
            TEXTS_OF_PATCHES,
            "stale: made for Python 3.12 on x86_64-unknown-linux-gnu, "
            "the spec says Python 3.11 on x86_64-unknown-linux-gnu",
        ),
        (
            {"platform": "aarch64-unknown-linux-gnu"},
            TEXTS_OF_PATCHES,
            "stale: made for Python 3.11 on aarch64-unknown-linux-gnu, "
            "the spec says Python 3.11 on x86_64-unknown-linux-gnu",
        ),
        ({"target": "other"}, TEXTS_OF_PATCHES, "stale: made for the target 'other'"),
        ({"spec": A}, TEXTS_OF_PATCHES, "stale: the spec changed since"),
        ({"spec": A, "target": "other", "python": "3.11"}, {}, "stale: made for the target 'other'"),
        ({}, {**TEXTS_OF_PATCHES, "two.diff": "3\n"}, "stale: two.diff changed since"),
        ({}, {}, "stale: one.diff, two.diff changed since"),
    ],
)
def test_faults_of_a_lock(folder: Folder, changes: dict[str, str], patches: dict[str, str], fault: str | None) -> None:
    folder.target("mine", PATCHED)
    mine = load_target(folder.project, "mine").target
    locked = tuple(make_locked_patch(name, text) for name, text in TEXTS_OF_PATCHES.items())
    lock = replace(fitting_lock(mine, ("click",)), patches=locked)
    assert explain_lock_fault(mine, replace(lock, **changes), ("click",), patches) == fault


def test_faults_of_no_lock_and_of_other_requirements(folder: Folder) -> None:
    folder.target("mine")
    mine = load_target(folder.project, "mine").target
    assert explain_lock_fault(mine, None, (), {}) == "missing"
    assert explain_lock_fault(mine, fitting_lock(mine, ("click",)), ("rich",), {}) == "stale: the spec changed since"
