"""What a change costs, exactly: which layers get another digest, and which wheels are downloaded."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from enginebox import CHECKOUT, TINY, Box, docker
from fakes import load_cases
from mirrorbox import mirrors
from projectbox import own
from registrybox import registry_running
from wheelbox import Index, make_wheel

from rlbox.artifacts.object_store import ObjectStore, resolve_store_dir
from rlbox.target.lock import load_lock

CASES = load_cases("engine", "test_layer_churn")
pytestmark = pytest.mark.slow

NAME = "layers"
OCI = "application/vnd.oci.image.manifest.v1+json"
FIXES, OWN, LOCK, OTHER = "rlbox.fixes", "rlbox.files", "the lock", "rlbox.other"
COPY = r"^COPY --link --from=(\S+) /out/(?:(\S+)/)? /$"
MIB = 1 << 20
SPEC = CASES["SPEC"]
WHEELS = {"bottom": 1000, "large": 2 * MIB, "leaf": 1000, "upper": 1000}


@dataclass(frozen=True, kw_only=True)
class Layers:
    """The target with its index and a registry; `first` are the layers of the image as `SPEC` says."""

    box: Box
    index: Index
    registry: str
    first: Mapping[str, str]

    def changed(self, old: str = "", new: str = "", *, checkout: Path = CHECKOUT) -> set[str]:
        """Replace a text of the spec, lock and build; return the layers that differ from the first ones."""
        assert not old or SPEC.count(old) == 1
        now = self.built(SPEC.replace(old, new) if old else SPEC, checkout)
        assert set(now) == set(self.first)
        return {layer for layer, digest in now.items() if digest != self.first[layer]}

    def built(self, spec: str, checkout: Path = CHECKOUT) -> dict[str, str]:
        """Return the digest of every layer of the image of `spec` as a registry has it, by what it holds."""
        (self.box.project / f"images/{NAME}/target.toml").write_text(spec)
        for verb in ("lock", "build"):
            self.index.forget()
            result = self.box(verb, NAME, PYTHONPATH=str(checkout))
            assert result.code == 0, result.err
        return dict(zip(self._layers(), self._digests(), strict=True))

    def labels(self) -> dict[str, str]:
        """The labels of the image that was built last."""
        return json.loads(docker("image", "inspect", own(NAME)))[0]["Config"]["Labels"]

    def _layers(self) -> list[str]:
        folder = self.box.project / "context"
        assert self.box("render", NAME, "--context", str(folder)).code == 0
        copies = re.findall(COPY, (folder / "Dockerfile").read_text(), re.M)
        *below, highest = [layer or stage for stage, layer in copies]
        return ["rlbox.os", *below, LOCK, highest]

    def _digests(self) -> list[str]:
        """Push the image and read its manifest."""
        name = f"{self.registry}/rlbox-test-{NAME}:1"
        docker("tag", own(NAME), name)
        docker("push", "--quiet", name)
        docker("rmi", "--no-prune", name)
        address = f"http://{self.registry}/v2/rlbox-test-{NAME}/manifests/1"
        with urlopen(Request(address, headers={"Accept": OCI}), timeout=30) as answer:
            return [layer["digest"] for layer in json.load(answer)["layers"]]


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Layers]:
    """The image of `SPEC`, built: its wheels are of this run alone, so that no cache has seen them."""
    box = Box(project=tmp_path_factory.mktemp("layers"), data=tmp_path_factory.mktemp("disk"))
    (box.project / f"images/{NAME}").mkdir(parents=True)
    (box.project / "sources").mkdir()
    with mirrors(1) as (server,), registry_running(tmp_path_factory.mktemp("registry")) as registry:
        index = Index(server)
        _offer_runtime(box, index)
        for name, size in WHEELS.items():
            index.add(name, *make_wheel(name, "1.0", size))
            index.add(name, *make_wheel(name, "1.1", size))
        rule = f'title = "wheels"\n[[rule]]\nkind = "python"\nprotocol = "index"\nurl = "{index.url}"\n'
        (box.project / "sources/wheels.toml").write_text(rule)
        made = Layers(box=box, index=index, registry=registry, first={})
        yield Layers(box=box, index=index, registry=registry, first=made.built(SPEC))
    docker("rmi", "--force", own(NAME))


def _offer_runtime(box: Box, index: Index) -> None:
    """Lock and fetch a target from where this machine gets its packages, and offer what rlbox itself needs."""
    (box.project / f"images/{NAME}/target.toml").write_text(TINY)
    for verb in ("lock", "fetch"):
        result = box(verb, NAME)
        assert result.code == 0, result.err
    lock = load_lock(box.project / f"images/{NAME}/lock.json")
    assert lock
    index.add_runtime(lock, ObjectStore(resolve_store_dir(None)))


def test_every_part_is_a_layer_of_its_own(layers: Layers) -> None:
    parts = ["rlbox.os", "rlbox.runtime", "rlbox.venv", "lower.large", "lower", "upper", FIXES, OWN, LOCK, OTHER]
    assert list(layers.first) == parts
    assert len(set(layers.first.values())) == len(layers.first)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("package", "layer"),
    [
        ("leaf", "upper"),
        pytest.param("bottom", "lower", marks=SLOW),
        ("large", "lower.large"),
        pytest.param("upper", "upper", marks=SLOW),
    ],
)
def test_another_version_moves_one_layer_and_downloads_one_wheel(layers: Layers, package: str, layer: str) -> None:
    assert layers.changed(f"{package}==1.0", f"{package}==1.1") == {layer, LOCK}
    assert layers.index.wheels_asked_for() == {f"{package}-1.1-py3-none-any.whl"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('FIX = "1"', 'FIX = "2"\nMORE = "3"'),
        pytest.param('title = "layers"', 'title = "other words"', marks=SLOW),
    ],
)
def test_settings_and_labels_move_no_layer(layers: Layers, old: str, new: str) -> None:
    assert layers.changed() == set()
    before = layers.labels()
    assert layers.changed(old, new) == set()
    assert layers.index.wheels_asked_for() == set()
    assert layers.labels()["rlbox.spec"] != before["rlbox.spec"]


def test_a_group_installed_anew_has_the_same_digest(layers: Layers) -> None:
    """A group with another name is another build step, whose result nothing remembers."""
    renamed = layers.built(SPEC.replace('name = "upper"', 'name = "renamed"'))
    assert "renamed" in renamed
    assert renamed["renamed"] == layers.first["upper"]
    assert {*renamed.values()} - {*layers.first.values()} == {renamed[LOCK]}  # the lock names the group


def later(checkout: Path, module: str) -> Path:
    """Return a copy of this checkout in which a module has one more line."""
    for name in ("rlbox", "templates", "images", "jobs"):
        shutil.copytree(CHECKOUT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    with open(checkout / module, "a") as file:
        file.write("# a later version\n")
    return checkout
