"""`a800-cn` built for real: its repositories through the `cn` profile's own rewrite of addresses.

`RLBOX_GIT_SNAPSHOTS` names a folder of bare repositories (`OWNER+NAME`); a mirror on loopback serves them by the name
of the profile's first mirror, and packages come from where this machine gets them. Without it the profile's mirrors are
asked for all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from bigimage import BigImage, built, empty_box
from enginebox import CHECKOUT
from gitmirror import git_mirror

from rlbox.config.toml_files import load_toml

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]

TARGET = "a800-cn"
IMPORTED = ("torch", "ray", "sglang")
HERE = """
title = "mirrors of git of mainland China; packages from where this machine gets them"
include = "cn"
[[rule]]
kind = "python"
protocol = "direct"
[[rule]]
kind = "apt"
protocol = "direct"
"""


def repositories() -> dict[str, str]:
    """Address of each repository of the target, to the folder that it has in the image."""
    return {row["url"]: row["into"] for row in load_toml(CHECKOUT / f"images/{TARGET}/target.toml")["git"]}


def mirror_host() -> str:
    rules = load_toml(CHECKOUT / "rlbox/artifacts/profiles/cn.toml")["rule"]
    return urlsplit(next(rule["url"] for rule in rules if rule["kind"] == "git")).hostname or ""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BigImage]:
    """The image, built and taken away afterwards; the store is the tests' own, so that nothing is there already."""
    folder = tmp_path_factory.mktemp(TARGET)
    box = empty_box(folder)
    snapshots = os.environ.get("RLBOX_GIT_SNAPSHOTS")
    if not snapshots:
        with built(TARGET, box) as image:
            yield image
        return
    (box.project / "sources").mkdir()
    (box.project / "sources/here.toml").write_text(HERE)
    served = {
        f"github.com{urlsplit(url).path}": Path(snapshots, urlsplit(url).path.strip("/").replace("/", "+"))
        for url in repositories()
    }
    bare = {path: place / "repo" if (place / "repo").is_dir() else place for path, place in served.items()}
    with git_mirror(mirror_host(), bare, tmp_path_factory.mktemp("mirror")) as mirror:
        env = {**mirror.env, "RLBOX_STORE": str(folder / "store")}
        with built(TARGET, box, "--sources", "here", env=env) as image:
            for path in served:
                assert any(asked.startswith(f"/{path}/") for asked in mirror.asked), mirror.asked
            print(image.said)
            yield image


def test_it_imports_what_is_locked(image: BigImage) -> None:
    locked = image.locked()
    assert image.versions(*IMPORTED) == {name: locked[name] for name in IMPORTED}


def test_the_repositories_are_there(image: BigImage) -> None:
    listed = image.run("ls", *repositories().values())
    assert {"megatron", "train.py"} <= set(listed.split())


def test_slime_preloads_a_library_for_cuda_13(image: BigImage) -> None:
    wanted = image.run(
        "sh", "-c", "readelf -d /opt/venv/lib/python3*/site-packages/torch_memory_saver_hook_mode_preload_cu12*.so"
    )
    assert "[libcudart.so.13]" in wanted


def test_the_component_test_passes_without_a_gpu(image: BigImage) -> None:
    report = json.loads(image.run("rlbox", "components", "--json", "--timeout", "1500", timeout_s=1600))
    assert [part for part in report["parts"] if part["state"] == "failed"] == []
