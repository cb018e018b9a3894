"""Rendered files, byte for byte: those of the repository, and those of targets that try what templates can do."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from fakes import CHECKOUT, Folder, Rlbox

from rlbox.cli.app import App
from rlbox.plan.image import ImagePlan
from rlbox.spec.project import Project

SHIPPED = Project(folder=CHECKOUT)
DIGEST = "0123456789abcdef" * 4
MINE = """
include = "local"
[env]
MINE = "1"
"""
PINNED = f"""
title = "on an image, with packages"
[base]
image = "registry.example/cuda:12.8@sha256:{DIGEST}"
packages = ["python3-venv", "git", "iproute2"]
[[stack]]
name = "torch"
packages = ["torch==2.13.0"]
source = "torch-wheels"
channel = "cu128"
[[stack]]
name = "tools"
packages = ["six==1.16.0", "rich>=13"]
"""
BARE = f"""
title = "nothing but one group"
[base]
image = "registry.example/base@sha256:{DIGEST}"
[python]
interpreter = "/opt/python's/bin/python3"
[[stack]]
name = "tools"
packages = ["six"]
"""
QUOTES = """
title = "Zeichen: äöü 世界 ${HOME} # no \\\\ end"
[base]
bootstrap = "debian:bookworm"
[[stack]]
name = "tools"
packages = ["six"]
[env]
BACKSLASH = 'C:\\dir\\'
BLANKS = "  two  words  "
DOLLAR = "$HOME ${PATH:-x} $$"
EMPTY = ""
QUOTES = '''"double" 'single' `back`'''
UNICODE = "äöü 世界 "
"""
TARGETS = {"mine": MINE, "pinned": PINNED, "bare": BARE, "quotes": QUOTES}
# What no image file may name, in pieces so that this file does not.
REGISTRY = re.compile("|".join(r"\.".join(parts) for parts in (("pypi", "org"), ("debian", "org"), ("npmjs", "org"))))
SECRET = re.compile(
    r"(?:TOKEN(?!IZERS_PARALLELISM=)|SECRET|PASSW|CREDENTIAL|API_?KEY)\w*=|hf_[A-Za-z0-9]{20}|sk-\w{20}|://[^/\s:]+:[^/\s@]+@"
)


def plan(project: Project, name: str) -> ImagePlan:
    return App(project=project).image_plan(name)


@pytest.mark.parametrize("name", SHIPPED.targets())
def test_committed_files_are_current(name: str) -> None:
    """Stale? `rlbox render` in the checkout, and review the diff."""
    for path, text in plan(SHIPPED, name).rendered.items():
        assert (CHECKOUT / path).read_bytes() == text.encode(), f"{path}: rlbox render {name}"


@pytest.mark.parametrize("name", SHIPPED.targets())
def test_committed_locks_are_current(name: str) -> None:
    assert plan(SHIPPED, name).lock == "current", f"rlbox lock {name}"


@pytest.mark.parametrize("name", TARGETS)
def test_targets_that_try_the_templates(
    name: str, folder: Folder, rlbox: Rlbox, golden: Callable[[str, str], None]
) -> None:
    folder.target(name, TARGETS[name])
    assert rlbox("render", name).code == 0
    text = (folder.path / f"images/{name}/Dockerfile").read_bytes().decode()
    # `mine` follows the shipped target: its golden is that target's Dockerfile and this difference.
    golden(f"{name}.Dockerfile", text if name != "mine" else difference(text))


def difference(text: str) -> str:
    """Return the lines of `mine` that the Dockerfile of `local` does not have."""
    local = (CHECKOUT / "images/local/Dockerfile").read_bytes().decode().splitlines(keepends=True)
    lines = [line for line in text.splitlines(keepends=True) if line not in local]
    return re.sub(r'rlbox.spec="[0-9a-f]{64}"', 'rlbox.spec="…"', "".join(lines))


def test_rendering_twice_gives_the_same_bytes(folder: Folder, rlbox: Rlbox, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in TARGETS.items():
        folder.target(name, text)
    assert rlbox("render").code == 0
    first = {name: (folder.path / name).read_bytes() for name in folder.files()}
    for name in first:
        if not name.endswith("target.toml"):
            (folder.path / name).unlink()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.path.parent / "another cache"))
    assert rlbox("render").code == 0
    assert {name: (folder.path / name).read_bytes() for name in folder.files()} == first
    assert sorted(first) == sorted(
        ["Dockerfile.base"]
        + [f"images/{name}/Dockerfile" for name in (*TARGETS, *SHIPPED.targets())]
        + [f"images/{name}/target.toml" for name in TARGETS]
    )


def test_every_image_begins_with_the_same_stage(folder: Folder) -> None:
    base = (CHECKOUT / "Dockerfile.base").read_text(encoding="utf-8")
    head, _, stage = base.partition("\n\n")
    assert head == "# Rendered by `rlbox render`: the first stage of every images/*/Dockerfile."
    assert stage.startswith("# ---- first stage of every image")
    dockerfiles = sorted(CHECKOUT.glob("images/*/Dockerfile"))
    assert [path.parent.name for path in dockerfiles] == list(SHIPPED.targets())
    for name, text in TARGETS.items():
        folder.target(name, text)
    texts = [path.read_text(encoding="utf-8") for path in dockerfiles]
    texts += [plan(folder.project, name).rendered[f"images/{name}/Dockerfile"] for name in TARGETS]
    for text in texts:
        assert text.count(f"\n{stage}\n# ---- the stack") == 1


def test_the_first_line_names_the_command() -> None:
    for path in (*CHECKOUT.glob("images/*/Dockerfile"), CHECKOUT / "Dockerfile.base"):
        assert path.read_text(encoding="utf-8").startswith("# Rendered by `rlbox render"), path


def texts_of_images() -> dict[str, str]:
    files = [*CHECKOUT.glob("Dockerfile*"), *CHECKOUT.glob("images/**/*"), *CHECKOUT.glob("templates/**/*")]
    found = {path.relative_to(CHECKOUT).as_posix(): path.read_text("utf-8") for path in files if path.is_file()}
    for name in SHIPPED.targets():
        found |= {f"context of {name}: {path}": text for path, text in plan(SHIPPED, name).context.items()}
    return found


def test_no_registry_and_no_secret_in_what_images_are_made_from() -> None:
    texts = texts_of_images()
    assert len(texts) > 5
    assert [name for name, text in texts.items() if REGISTRY.search(text)] == []
    assert [(name, hit.group()) for name, text in texts.items() for hit in SECRET.finditer(text)] == []


@pytest.mark.parametrize("name", SHIPPED.targets())
def test_the_context_has_what_the_dockerfile_copies(name: str) -> None:
    """Every source of COPY, ADD and of a bind mount is in the context."""
    image = plan(SHIPPED, name)
    there = {*image.context, "rootfs.tar", "wheels", "rlbox"}
    dockerfile = image.context["Dockerfile"]
    copied = [words.split()[:-1] for words in re.findall(r"^(?:COPY|ADD) (?!--from)(.+)$", dockerfile, re.M)]
    wanted = {word for words in copied for word in words} | set(re.findall(r"type=bind,source=([^,\s]+)", dockerfile))
    assert wanted - there == set()
    assert {f"requirements/{group}.txt" for group in image.groups} <= set(image.context)
