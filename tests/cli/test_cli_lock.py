"""`rlbox lock`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from fakes import DEB, PACKAGE, TARGET, UV, Folder, Rlbox, Said, fitting_lock

from rlbox.artifacts.python_lock import UpgradeRequest
from rlbox.config.project import Project
from rlbox.target.lock import GitTree, Lock, LockedPackageGroup, Package, load_lock, make_locked_patch
from rlbox.target.target import Target


class Resolver:
    """What uv, apt and git would find now; `asked` are the upgrades that were wanted."""

    def __init__(self) -> None:
        self.packages: tuple[Package, ...] = (PACKAGE,)
        self.debs = (DEB,)
        self.git: tuple[GitTree, ...] = ()
        self.asked: list[UpgradeRequest] = []
        self.sources: list[str] = []
        self.before: list[Lock | None] = []

    def resolve(
        self,
        target: Target,
        runtime: tuple[str, ...],
        before: Lock | None,
        upgrade: UpgradeRequest,
        places: str,
        patches: Mapping[str, str],
    ) -> Lock:
        self.asked.append(upgrade)
        self.sources.append(places)
        self.before.append(before)
        groups = tuple(LockedPackageGroup(name=group.name, packages=self.packages) for group in target.stack)
        locked = tuple(make_locked_patch(patch.file, patches[patch.file]) for patch in target.patches)
        return replace(fitting_lock(target, runtime), groups=groups, debs=self.debs, git=self.git, patches=locked)


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    """A resolver that finds six for every group."""
    made = Resolver()
    monkeypatch.setattr("rlbox.artifacts.relock.resolve_lock", made.resolve)
    monkeypatch.setattr("rlbox.artifacts.relock.prepare_lock_sources", lambda app, target, sources: sources)
    return made


NEXT = "next: rlbox build mine\n"
COUNTS = "os              1 packages   26.3 kB\nruntime         1 packages       2 B\n"
WRITTEN = COUNTS + "tools           1 packages   11.1 kB\nlock.json {}\n"
NEWER = replace(PACKAGE, version="1.17.0", sha256="f" * 64, size=3_450_000)


def written(folder: Folder, name: str = "mine") -> Lock:
    lock = load_lock(folder.path / f"images/{name}/lock.json")
    assert lock is not None
    return lock


def test_writing(rlbox: Rlbox, folder: Folder, resolver: Resolver) -> None:
    folder.target("mine")
    said = rlbox("lock", "mine", "--dry-run")
    path = folder.path / "images/mine/lock.json"
    would = f"\n# verdict: this would write {path}\n"
    assert said == Said(code=0, out=WRITTEN.replace("lock.json {}\n", would), err="")
    assert not (folder.path / "images/mine/lock.json").exists()
    assert rlbox("lock", "mine") == Said(code=0, out=WRITTEN.format("written"), err=NEXT)
    assert rlbox("lock", "mine") == Said(code=0, out=WRITTEN.format("unchanged"), err=NEXT)
    assert written(folder) == folder.fitting_lock("mine")
    assert rlbox("lock", "mine", "--json").data == {
        "schema": 1,
        "target": "mine",
        "groups": {"os": 1, "runtime": 1, "tools": 1},
        "bytes": {"os": DEB.size, "runtime": UV.size, "build": 0, "tools": PACKAGE.size},
        "changed": False,
    }


def test_a_lock_that_fits_asks_nobody(rlbox: Rlbox, folder: Folder, resolver: Resolver) -> None:
    folder.target("mine")
    rlbox("lock", "mine")
    rlbox("lock", "mine")
    assert resolver.asked == [UpgradeRequest()]
    folder.target("mine", TARGET.replace("1.16.0", "1.17.0"))
    rlbox("lock", "mine")
    assert resolver.asked == [UpgradeRequest()] * 2


def test_a_changed_patch_asks_nobody(rlbox: Rlbox, folder: Folder, resolver: Resolver) -> None:
    folder.target("mine", TARGET + '[[patches]]\nfile = "one.diff"\ninto = "/opt"\n')
    folder.write("images/mine/patches/one.diff", "1\n")
    rlbox("lock", "mine")
    folder.write("images/mine/patches/one.diff", "2\n")
    assert rlbox("build", "mine").err.startswith(
        "rlbox: error: the lock of target mine is stale: one.diff changed since\n"
    )
    old, new = (make_locked_patch("one.diff", text).sha256[:12] for text in ("1\n", "2\n"))
    assert rlbox("lock", "mine").err == f"patches: one.diff {old} → {new}\n{NEXT}"
    assert len(resolver.asked) == 1
    assert written(folder).patches == (make_locked_patch("one.diff", "2\n"),)


INCLUDES = 'include = "under"\ntitle = "mine"\n[env]\nOMP_NUM_THREADS = "4"\n'


def test_a_target_begins_with_the_lock_of_the_one_it_includes(rlbox: Rlbox, folder: Folder, resolver: Resolver) -> None:
    """A variable is nothing that anybody must be asked about."""
    folder.target("under")
    rlbox("lock", "under")
    folder.target("mine", INCLUDES)
    folder.target("yours", INCLUDES.replace("under", "mine"))
    said = rlbox("lock", "mine")
    assert said.err == f"mine has no lock yet: it begins with that of under, which it includes\n{NEXT}"
    assert written(folder) == replace(written(folder, "under"), target="mine")
    assert rlbox("lock", "yours").err.startswith("yours has no lock yet: it begins with that of mine,")
    assert rlbox("lock", "mine").err == NEXT
    assert len(resolver.asked) == 1


def test_what_changed_is_shown(rlbox: Rlbox, folder: Folder, resolver: Resolver) -> None:
    folder.target("mine")
    rlbox("lock", "mine")
    resolver.packages = (NEWER, replace(PACKAGE, name="rich", version="15"))
    resolver.debs = (replace(DEB, sha256="9" * 64),)
    resolver.git = (GitTree(name="tree", url="u", ref="main", commit="1", tree="2", sha256="3" * 64, size=4),)
    said = rlbox("lock", "mine", "--upgrade")
    assert said.out == (COUNTS + "tools           2 packages    3.5 MB\nlock.json written\n")
    assert said.err == (
        "os: python3 dddddddddddd → 999999999999\n"
        "tools: rich 15 was added\n"
        "tools: six 1.16.0 → 1.17.0\n"
        "git: tree 1 was added\n" + NEXT
    )


@pytest.mark.parametrize(
    ("words", "upgrade"),
    [
        (["--upgrade"], UpgradeRequest(all_packages=True)),
        (["six", "--upgrade"], UpgradeRequest(packages=frozenset({"six"}))),
        (["--upgrade", "six", "python3", "uv"], UpgradeRequest(packages=frozenset({"six", "python3", "uv"}))),
    ],
)
def test_upgrades(rlbox: Rlbox, folder: Folder, resolver: Resolver, words: list[str], upgrade: UpgradeRequest) -> None:
    folder.target("mine")
    rlbox("lock", "mine")
    assert rlbox("lock", "mine", *words) == Said(code=0, out=WRITTEN.format("unchanged"), err=NEXT)
    assert resolver.asked == [UpgradeRequest(), upgrade]


@pytest.mark.parametrize(
    ("name", "near"), [("sixx", " (did you mean 'six'?)"), ("pyton3", " (did you mean 'python3'?)"), ("zzz", "")]
)
def test_an_upgrade_of_what_is_not_locked(
    rlbox: Rlbox, folder: Folder, resolver: Resolver, name: str, near: str
) -> None:
    folder.target("mine")
    rlbox("lock", "mine")
    before = written(folder)
    resolver.packages = (NEWER,)
    rlbox("lock", "mine", "--upgrade", "six", name).check_error(2, f"the lock has no package {name!r}{near}")
    assert written(folder) == before


def test_check(rlbox: Rlbox, folder: Folder, resolver: Resolver) -> None:
    folder.target("mine")
    wrong = "rlbox: error: the lock of target mine is {}\n  where: rlbox lock\n  next:  rlbox lock mine\n"
    assert rlbox("lock", "mine", "--check") == Said(code=1, out="", err=wrong.format("missing"))
    rlbox("lock", "mine")
    assert rlbox("lock", "mine", "--check") == Said(code=0, out="mine  lock is current\n", err="")
    assert rlbox("lock", "mine", "--check", "--json").data == {"schema": 1, "target": "mine", "lock": "current"}
    assert resolver.asked == [UpgradeRequest()] * 3
    folder.target("mine", TARGET + '[env]\nA = "1"\n')
    assert rlbox("lock", "mine", "--check").code == 0
    folder.target("mine", TARGET.replace("1.16.0", "1.17.0"))
    said = rlbox("lock", "mine", "--check")
    assert said == Said(code=1, out="", err=wrong.format("stale: the spec changed since"))
    rlbox("lock", "mine")
    assert rlbox("lock", "mine", "--check").code == 0


def test_check_finds_what_the_sources_changed(rlbox: Rlbox, folder: Folder, resolver: Resolver) -> None:
    folder.target("mine")
    rlbox("lock", "mine")
    before = written(folder)
    resolver.packages = (replace(PACKAGE, sha256="f" * 64),)
    rlbox("lock", "mine", "--check").check_error(
        1, "the lock of target mine drifted", "tools: six aaaaaaaaaaaa → ffffffffffff", "rlbox lock mine --upgrade six"
    )
    assert written(folder) == before


def test_sources(rlbox: Rlbox, folder: Folder, resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.target("mine")
    rlbox("lock", "mine", "--sources", "cn")
    folder.write("sources/lan.toml", 'title = "our own"\n')
    monkeypatch.setenv("RLBOX_SOURCES", "lan")
    rlbox("lock", "mine", "--check")
    assert resolver.sources == ["cn", "lan"]
    rlbox("lock", "mine", "--sources", "wan").check_error(2, "unknown sources profile 'wan' (did you mean 'lan'?)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"schema": 2, ',
            "not a lock file: JSONDecodeError: "
            "Expecting property name enclosed in double quotes: line 1 column 15 (char 14)",
        ),
        ('{"schema": 1}', "schema 1, this rlbox reads 2"),
    ],
)
def test_a_lock_that_cannot_be_read_is_made_again(
    rlbox: Rlbox, folder: Folder, resolver: Resolver, text: str, message: str
) -> None:
    """The step that the message names must work."""
    folder.target("mine")
    path = folder.write("images/mine/lock.json", text)
    said = rlbox("lock", "mine", "--check")
    said.check_error(2, f"{path}: {message}")
    assert rlbox("build", "mine").err == said.err.replace("where: rlbox lock", "where: rlbox build")
    assert rlbox("lock", "mine") == Said(
        code=0, out=WRITTEN.format("written"), err=f"{path}: {message}; it is created again\n{NEXT}"
    )
    assert rlbox("lock", "mine", "--check").code == 0


def test_the_lock_of_a_shipped_target_is_written_into_the_project(
    rlbox: Rlbox, folder: Folder, resolver: Resolver
) -> None:
    shipped = folder.project.own_or_shipped_lock_file("local")
    text = shipped.read_bytes()
    said = rlbox("lock", "local", "--upgrade")
    assert (said.code, said.out.splitlines()[-1]) == (0, "lock.json written")
    assert folder.files() == ["images/local/lock.json"]
    assert [group.name for group in written(folder, "local").groups] == ["torch", "engine", "framework"]
    assert shipped.read_bytes() == text
    assert Project(folder=folder.path).own_or_shipped_lock_file("local") == folder.path / "images/local/lock.json"
    assert rlbox("lock", "local", "--check", "--offline").code == 0


def test_a_shipped_lock_that_fits_is_copied(rlbox: Rlbox, folder: Folder) -> None:
    shipped = folder.project.own_or_shipped_lock_file("local")
    said = rlbox("lock", "local")
    assert (said.code, said.out.splitlines()[-1], said.err) == (0, "lock.json written", "next: rlbox build local\n")
    assert (folder.path / "images/local/lock.json").read_bytes() == shipped.read_bytes()
