"""Rendered files, byte for byte: those of the repository, and those of targets that try what templates can do."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import CHECKOUT, PACKAGE, Folder, Rlbox

from rlbox.config.project import Project
from rlbox.image.plan import (
    ImagePlan,
    layer_dir_relative_to_wheels,
    load_image_plan,
    map_git_http_names_to_context_paths,
    stage_name_of_layer,
)
from rlbox.target.lock import GitTree, HttpFile, LockedPackageGroup, load_lock, make_locked_patch

SHIPPED = Project(folder=CHECKOUT)
LINES = 230  # of a Dockerfile that is read to its end
LARGE = replace(PACKAGE, name="Large", version="2.0", sha256="e" * 64, size=1 << 20)
LOCKED: dict[str, Any] = {
    "groups": (LockedPackageGroup(name="tools", packages=(LARGE, PACKAGE)),),
    "git": (GitTree(name="verl", url="u", ref="v0.5", commit="1", tree="2", sha256="1" * 64, size=1),),
    "http": tuple(HttpFile(name=name, url="u", sha256="2" * 64, size=1) for name in ("tool", "table")),
    "patches": tuple(make_locked_patch(f"{name}.diff", name) for name in ("six", "verl")),
}
SPECS = (".toml", ".json", ".diff")
TARGETS = {path.stem: path.read_text("utf-8") for path in sorted(Path(__file__).with_name("targets").glob("*.toml"))}
# What no image file may name, in pieces so that this file does not.
REGISTRY = re.compile("|".join(r"\.".join(parts) for parts in (("pypi", "org"), ("debian", "org"), ("npmjs", "org"))))
# A value written out; a script may pass on what a variable has.
SECRET = re.compile(
    r"(?:TOKEN(?!IZERS_PARALLELISM=)|SECRET|PASSW|CREDENTIAL|API_?KEY)\w*=[\"']?[A-Za-z0-9_+-]{6}"
    r"|hf_[A-Za-z0-9]{20}|sk-\w{20}|://[^/\s:]+:[^/\s@]+@"
)


def plan(project: Project, name: str) -> ImagePlan:
    return load_image_plan(project, name)


@pytest.mark.parametrize("name", SHIPPED.own_pack_and_shipped_target_files())
def test_committed_files_are_current(name: str) -> None:
    """Stale? `rlbox render` in the checkout, and review the diff."""
    for path, text in plan(SHIPPED, name).rendered_files.items():
        assert (CHECKOUT / path).read_bytes() == text.encode(), f"{path}: rlbox render {name}"


@pytest.mark.parametrize("name", SHIPPED.own_pack_and_shipped_target_files())
def test_committed_locks_are_current(name: str) -> None:
    wanted = {None} if name == "local" else {None, "missing"}  # a stack is locked where it is first built
    assert plan(SHIPPED, name).lock_fault in wanted, f"rlbox lock {name}"


@pytest.mark.parametrize("name", TARGETS)
def test_targets_that_try_the_templates(
    name: str, folder: Folder, rlbox: Rlbox, golden: Callable[[str, str], None]
) -> None:
    write_target(folder, name)
    assert rlbox("render", name).code == 0
    text = (folder.path / f"images/{name}/Dockerfile").read_bytes().decode()
    # `mine` follows the shipped target: its golden is that target's Dockerfile and this difference.
    golden(f"{name}.Dockerfile.xz", text) if name != "mine" else golden("mine.Dockerfile", difference(text))


def write_target(folder: Folder, name: str) -> None:
    """Write one of `TARGETS`; only `parts` has a lock, and that of `rlbox` itself is no part of its text."""
    folder.target(name, TARGETS[name])
    if name == "parts":
        for patch in ("six", "verl"):
            folder.write(f"images/parts/patches/{patch}.diff", patch)
        folder.lock("parts", spec="0", **LOCKED)


def difference(text: str) -> str:
    """Return the lines of `mine` that the Dockerfile of `local` does not have."""
    local = (CHECKOUT / "images/local/Dockerfile").read_bytes().decode().splitlines(keepends=True)
    lines = [line for line in text.splitlines(keepends=True) if line not in local]
    return re.sub(r'rlbox.(spec|lock)="[0-9a-f]{64}"', r'rlbox.\1="…"', "".join(lines))


def test_rendering_twice_gives_the_same_bytes(folder: Folder, rlbox: Rlbox, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TARGETS:
        write_target(folder, name)
    assert rlbox("render").code == 0
    first = {name: (folder.path / name).read_bytes() for name in folder.files()}
    for name in first:
        if not name.endswith(SPECS):
            (folder.path / name).unlink()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.path.parent / "another cache"))
    assert rlbox("render").code == 0
    assert {name: (folder.path / name).read_bytes() for name in folder.files()} == first
    written = {name for name in first if not name.endswith(SPECS)}
    shipped = {
        path for name in SHIPPED.own_pack_and_shipped_target_files() for path in plan(SHIPPED, name).rendered_files
    }
    own = {f"images/{name}/{file}" for name in TARGETS for file in ("Dockerfile", "compose.yaml")}
    assert written == {"Dockerfile.base", *shipped, *own}


def test_every_image_begins_with_the_same_stages(folder: Folder) -> None:
    base = (CHECKOUT / "Dockerfile.base").read_text(encoding="utf-8")
    head, _, stage = base.partition("\n\n")
    assert head == "# Rendered by `rlbox render`: the first stages of every images/*/Dockerfile."
    assert stage.startswith("# ---- first stages of every image")
    dockerfiles = sorted(CHECKOUT.glob("images/*/Dockerfile"))
    assert [path.parent.name for path in dockerfiles] == list(SHIPPED.own_pack_and_shipped_target_files())
    for name in TARGETS:
        write_target(folder, name)
    texts = [path.read_text(encoding="utf-8") for path in dockerfiles]
    texts += [plan(folder.project, name).rendered_files[f"images/{name}/Dockerfile"] for name in TARGETS]
    for text in texts:
        python = re.search(r"install\.sh venv (.*?)(?: --system-site-packages)?\n", text)
        assert python
        own = stage.replace("/usr/bin/python3", python[1])  # the target's interpreter makes rlbox's environment too
        assert text.count(f"\n{own}\n# ---- the stack") == 1


def texts_of_images() -> dict[str, str]:
    files = [*CHECKOUT.glob("Dockerfile*"), *CHECKOUT.glob("images/**/*"), *CHECKOUT.glob("templates/**/*")]
    found = {path.relative_to(CHECKOUT).as_posix(): path.read_text("utf-8") for path in files if _is_text(path)}
    for name in SHIPPED.own_pack_and_shipped_target_files():
        found |= {f"context of {name}: {path}": text for path, text in plan(SHIPPED, name).context_files.items()}
    return found


def _is_text(path: Path) -> bool:
    return path.is_file() and path.suffix != ".pyc"  # of programs that other tests imported


def test_no_registry_and_no_secret_in_what_images_are_made_from() -> None:
    texts = texts_of_images()
    assert len(texts) > 5
    assert [name for name, text in texts.items() if REGISTRY.search(text)] == []
    assert [(name, hit.group()) for name, text in texts.items() for hit in SECRET.finditer(text)] == []


@pytest.mark.parametrize("name", SHIPPED.own_pack_and_shipped_target_files())
def test_a_reader_reaches_the_end(name: str) -> None:
    assert len((CHECKOUT / f"images/{name}/Dockerfile").read_text("utf-8").splitlines()) <= LINES


@pytest.mark.parametrize("name", SHIPPED.own_pack_and_shipped_target_files())
def test_no_frontend_is_fetched_and_no_port_is_taken(name: str) -> None:
    """A `# syntax` line asks Docker Hub before anything else; on rented machines each EXPOSE uses up a port."""
    text = (CHECKOUT / f"images/{name}/Dockerfile").read_text("utf-8")
    assert re.findall(r"^# *syntax *=|^EXPOSE\b", text, re.M | re.I) == []


@pytest.mark.parametrize("name", [*SHIPPED.own_pack_and_shipped_target_files(), *TARGETS])
def test_the_context_has_what_the_dockerfile_copies(name: str, folder: Folder) -> None:
    """Every source of COPY, ADD and of a bind mount is in the context, and every build stage that is named is there."""
    project = SHIPPED
    if name in TARGETS:
        write_target(folder, name)
        if name != "parts":
            folder.lock(name)
        project = folder.project
    image = plan(project, name)
    carried = map_git_http_names_to_context_paths(
        load_lock(project.own_or_shipped_lock_file(name)) or folder.fitting_lock(name)
    )
    there = {*image.context_files, "rootfs.tar", *carried.values()}
    there |= {f"wheels/{stage}" for stage in ("uv", "runtime", *map(stage_name_of_layer, image.layers))}
    there |= {f"{path.rpartition('/')[0]}/" for path in image.context_files} | {
        "files/",
        "other/",
        "fixes/",
        "scripts",
        "debs",
    }
    there |= {"programs/"} & {f"{path.partition('/')[0]}/" for path in image.context_files}
    dockerfile = image.context_files["Dockerfile"]
    copied = [
        words.split()[:-1] for words in re.findall(r"^(?:COPY|ADD) (?:--chmod=\d+ )?(?!--)(.+)$", dockerfile, re.M)
    ]
    wanted = {word for words in copied for word in words} | set(re.findall(r"type=bind,source=([^,\s]+)", dockerfile))
    assert wanted - there == set()
    assert {f"wheels/{layer_dir_relative_to_wheels(layer)}/requirements.txt" for layer in image.layers} <= set(
        image.context_files
    )
    stages = re.findall(r"^FROM \S+ AS (\S+)$", dockerfile, re.M)
    assert len(stages) == len(set(stages))
    assert set(re.findall(r"(?:--from=|from=)([^,\s]+)", dockerfile)) <= set(stages)
