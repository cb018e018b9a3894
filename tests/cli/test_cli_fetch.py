"""`rlbox fetch`: what is fetched, exported and imported; what is said when it cannot be."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes import EngineSocket, Folder, Rlbox, Said
from following import Follow
from mirror import Mirror, serving
from registry_server import CONFIG_TYPE, LAYER_TYPE, RegistryServer, create_image_manifest, descriptor_to_json
from registry_server import running as running_registry

from rlbox.app import list_rlbox_base_requirements
from rlbox.artifacts.object_store import ObjectStore
from rlbox.artifacts.store_upkeep import find_unused_objects_and_partials
from rlbox.engine import oci
from rlbox.system.files import cache_path
from rlbox.target.lock import HttpFile, Lock, LockedPackageGroup, Package, compute_lock_spec_checksum
from rlbox.target.target import load_target

pytestmark = pytest.mark.allow("sockets")

FILES = {"one.bin": b"1" * 1000, "two.bin": b"22" * 1000, "three.bin": b"333" * 1000}
SPEC = """
title = "files from one mirror"
[base]
{base}
[python]
platform = "{platform}"
[[stack]]
name = "engine"
packages = ["six==1.16.0"]
"""
X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
BOOTSTRAP = 'bootstrap = "debian:bookworm"'
NEXT = "next: rlbox build mine --hermetic\n"
Write = Callable[..., Lock]


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    with serving(FILES) as made:
        yield made


@pytest.fixture
def write(folder: Folder, mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write target and lock; this machine has no sources of its own."""
    monkeypatch.setattr("rlbox.artifacts.locator.probe_apt_or_mmdebstrap_url_by_archive", dict)
    monkeypatch.setattr("rlbox.artifacts.locator.ask_uv_for_index_url_or_empty", lambda: "", raising=False)

    def write(
        base: str = BOOTSTRAP, packages: tuple[Package, ...] = (), platform: str = "x86_64-unknown-linux-gnu"
    ) -> Lock:
        folder.target("mine", SPEC.format(base=base, platform=platform))
        target = load_target(folder.project, "mine").target
        lock = Lock(
            target="mine",
            spec=compute_lock_spec_checksum(target, list_rlbox_base_requirements()),
            python="3.11",
            platform=platform,
            base=target.base.bootstrap or target.base.image,
            runtime=LockedPackageGroup(name="runtime", packages=()),
            groups=(LockedPackageGroup(name="engine", packages=packages),),
            http=tuple(
                HttpFile(name=name.partition(".")[0], url=f"{mirror.url}/{name}", sha256=sha(data), size=len(data))
                for name, data in FILES.items()
            ),
        )
        folder.write("images/mine/lock.json", lock.to_json_text())
        return lock

    return write


@pytest.fixture
def store() -> ObjectStore:
    return ObjectStore(cache_path("store"))


def whole(store: ObjectStore) -> bool:
    return {store.path(digest).read_bytes() for digest in store.list_digests()} == set(FILES.values())


def test_fetching(rlbox: Rlbox, write: Write, store: ObjectStore, mirror: Mirror) -> None:
    write()
    said = rlbox("fetch", "mine")
    assert said.code == 0, said.err
    assert said.out == "mine  3 files, 6.0 kB: 0 present, 3 fetched (6.0 kB)\n     6.0 kB from direct\n"
    lines = said.err.splitlines()
    assert (lines[0], lines[-1]) == ("fetching 3 files, 6.0 kB", NEXT.strip())
    assert sorted(lines[1:-1]) == [
        f"✓ {name}  {size}  direct"
        for name, size in [("one.bin", "1.0 kB"), ("three.bin", "3.0 kB"), ("two.bin", "2.0 kB")]
    ]
    assert whole(store)
    again = rlbox("fetch", "mine")
    assert again == Said(code=0, out="mine  3 files, 6.0 kB: 3 present, 0 fetched (0 B)\n", err=NEXT)
    assert len(mirror.asked) == 3
    data = rlbox("fetch", "mine", "--json").data
    assert {key: data[key] for key in ("target", "present", "present_bytes", "fetched", "by_mirror")} == {
        "target": "mine",
        "present": 3,
        "present_bytes": 6000,
        "fetched": 0,
        "by_mirror": {},
    }


def test_the_store_is_chosen(rlbox: Rlbox, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write()
    assert rlbox("fetch", "mine", "--store", str(tmp_path / "a")).code == 0
    assert whole(ObjectStore(tmp_path / "a"))
    monkeypatch.setenv("RLBOX_STORE", str(tmp_path / "b"))
    assert rlbox("fetch", "mine").code == 0
    assert whole(ObjectStore(tmp_path / "b"))


def test_dry_run(rlbox: Rlbox, write: Write, store: ObjectStore) -> None:
    """A lock for another platform needs nothing of this machine."""
    wheel = Package(
        name="torch",
        version="2.9.0",
        file="torch-2.9.0+cu128.whl",
        sha256="b" * 64,
        size=899_755_786,
        source="torch-wheels/cu128",
    )
    write(packages=(wheel,), platform=ARM)
    with store.wait_for_partial(sha(FILES["one.bin"])) as draft:
        draft.write(FILES["one.bin"])
        draft.commit()
    assert rlbox("fetch", "mine", "--dry-run") == Said(
        code=0,
        out="group             files       size    present    missing\n"
        "engine                1   899.8 MB        0 B   899.8 MB\n"
        "http                  3     6.0 kB     1.0 kB     5.0 kB\n"
        "total                 4   899.8 MB     1.0 kB   899.8 MB\n"
        "\n"
        "# not checked: sources direct: a dry run asks no network\n"
        "# verdict: this would fetch 3 files, as far as it is checked\n",
        err="",
    )
    data = rlbox("fetch", "mine", "--dry-run", "--json").data
    assert data["groups"][1] == {
        "group": "http",
        "files": 3,
        "bytes": 6000,
        "present_files": 1,
        "present_bytes": 1000,
        "missing_bytes": 5000,
    }
    assert data["total"]["missing_bytes"] == 899_755_786 + 5000


def test_what_cannot_be_had(rlbox: Rlbox, write: Write, mirror: Mirror, store: ObjectStore) -> None:
    write()
    del mirror.files["two.bin"]
    said = rlbox("fetch", "mine", "-q")
    said.check_error(1, "no source offers two.bin any more", "rlbox lock mine --upgrade two")
    assert len(list(store.list_digests())) == 2
    mirror.files["two.bin"] = FILES["two.bin"]
    assert rlbox("fetch", "mine").out.startswith("mine  3 files, 6.0 kB: 2 present, 1 fetched (2.0 kB)\n")


def test_export_and_import(rlbox: Rlbox, write: Write, mirror: Mirror, store: ObjectStore, tmp_path: Path) -> None:
    write()
    out, other = tmp_path / "out", tmp_path / "other"
    said = rlbox("fetch", "mine", "--export", str(out))
    assert said.out.endswith(f"exported to {out}\n")
    for data in FILES.values():
        assert os.path.samefile(ObjectStore(out).path(sha(data)), store.path(sha(data)))
    asked = len(mirror.asked)
    mirror.files.clear()
    done = rlbox("fetch", "mine", "--store", str(other), "--import", str(out))
    assert done == Said(code=0, out="mine  3 files: 0 present, 3 imported\n", err=NEXT)
    assert whole(ObjectStore(other))
    assert len(mirror.asked) == asked
    again = rlbox("fetch", "mine", "--store", str(other), "--import", str(out), "--json").data
    assert (again["imported"], again["present"]) == (0, 3)


def test_a_damaged_export_is_named_and_made_good(rlbox: Rlbox, write: Write, tmp_path: Path) -> None:
    write()
    out, other = tmp_path / "out", tmp_path / "other"
    rlbox("fetch", "mine", "--export", str(out))
    for name, data in {"one.bin": b"1" * 999 + b"x", "two.bin": b"22"}.items():
        path = ObjectStore(out).path(sha(FILES[name]))
        path.unlink()
        path.write_bytes(data)
    said = rlbox("fetch", "mine", "--store", str(other), "--import", str(out))
    said.check_error(1, "damaged files: ")
    assert "one.bin" in said.err
    assert "two.bin" in said.err
    assert list(ObjectStore(other).list_digests()) == [sha(FILES["three.bin"])]
    assert rlbox("fetch", "mine", "--export", str(out)).code == 0
    assert rlbox("fetch", "mine", "--store", str(other), "--import", str(out)).code == 0


def test_an_export_of_another_lock(rlbox: Rlbox, write: Write, tmp_path: Path) -> None:
    write()
    out = tmp_path / "out"
    rlbox("fetch", "mine", "--export", str(out))
    wheel = Package(name="six", version="1", file="six-1.whl", sha256="b" * 64, size=5)
    write(packages=(wheel,))
    said = rlbox("fetch", "mine", "--store", str(tmp_path / "other"), "--import", str(out))
    said.check_error(1, "the export does not hold: six-1.whl")


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with running_registry() as made:
        yield made


def test_a_base_image(rlbox: Rlbox, folder: Folder, write: Write, registry: RegistryServer, store: ObjectStore) -> None:
    """Its manifest and blobs are objects like others, and are known as what they are."""
    config, layer = b'{"os": "linux"}', b"layer" * 500
    blobs = [oci.create_descriptor(data, kind) for data, kind in ((config, CONFIG_TYPE), (layer, LAYER_TYPE))]
    body = create_image_manifest(blobs[0], blobs[1:])
    rows = [
        {
            **descriptor_to_json(oci.create_descriptor(body, oci.MANIFEST_TYPE)),
            "platform": {"os": "linux", "architecture": "amd64"},
        },
        {
            **descriptor_to_json(oci.create_descriptor(b"other", oci.MANIFEST_TYPE)),
            "platform": {"os": "linux", "architecture": "arm64"},
        },
    ]
    index = json.dumps({"schemaVersion": 2, "mediaType": oci.INDEX_TYPE, "manifests": rows}).encode()
    for data in (config, layer):
        registry.add_blob(data)
    registry.add_manifest("amd64", body, oci.MANIFEST_TYPE)
    digest = registry.add_manifest("latest", index, oci.INDEX_TYPE)
    image = f"{registry.host}/team/base@{digest}"
    write(base=f'image = "{image}"')
    dry = rlbox("fetch", "mine", "--dry-run")
    assert f"# not checked: files of the base image {image}: its manifest is not in the store\n" in dry.out
    said = rlbox("fetch", "mine")
    assert said.code == 0
    assert f"fetching 2 files of {registry.host}/team/base, " in said.err
    assert "✓ base layer 1  2.5 kB\n" in said.err
    held = {store.path(name).read_bytes() for name in store.list_digests()}
    assert held == {*FILES.values(), config, layer, body, index}
    row = rlbox("fetch", "mine", "--dry-run", "--json").data["groups"][0]
    assert (row["group"], row["files"], row["missing_bytes"]) == ("base", 4, 0)
    asked = len(registry.seen)
    assert rlbox("fetch", "mine").code == 0
    assert len(registry.seen) == asked
    assert "base layer 1 (oci, base; mine)" in rlbox("store", "ls").out
    assert not find_unused_objects_and_partials(store, folder.project)


def test_a_base_image_that_nobody_has(rlbox: Rlbox, write: Write, registry: RegistryServer) -> None:
    image = f"{registry.host}/team/base@sha256:{'0' * 64}"
    write(base=f'image = "{image}"')
    said = rlbox("fetch", "mine")
    assert said.code == 6
    assert said.err.startswith(f"rlbox: error: the base image {image} cannot be fetched\n  direct: ")


def test_what_apply_takes_and_no_more(
    rlbox: Rlbox, write: Write, registry: RegistryServer, store: ObjectStore, tmp_path: Path
) -> None:
    """A kit for a machine without Docker: no base image, which that could not unpack and nobody here has."""
    write(base=f'image = "{registry.host}/team/base@sha256:{"0" * 64}"')
    dry = rlbox("fetch", "mine", "--place", "here", "--dry-run", "--json")
    assert [row["group"] for row in dry.data["groups"]] == ["http"]
    kit = str(tmp_path / "kit")
    said = rlbox("fetch", "mine", "--place", "here", "--export", kit)
    assert (said.code, said.err.splitlines()[-1]) == (0, "next: rlbox apply mine --offline")
    assert registry.seen == []
    other = str(tmp_path / "other")
    whole_image = rlbox("fetch", "mine", "--store", other, "--import", kit)
    assert whole_image.code == 1
    assert f"the export does not hold: {registry.host}/team/base@" in whole_image.err
    taken = rlbox("fetch", "mine", "--store", str(tmp_path / "third"), "--place", "here", "--import", kit)
    assert (taken.code, taken.out) == (0, "mine  3 files: 0 present, 3 imported\n")


def test_a_full_store_is_pruned(
    follow: Follow, write: Write, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write()
    old = store.path("e" * 64)
    old.parent.mkdir(parents=True)
    old.write_bytes(b"old")
    monkeypatch.setattr("rlbox.artifacts.fetch.free_bytes_or_0", lambda path: 0 if old.exists() else 1 << 40)
    step = follow("fetch", "mine")
    follow.changed(step, [*step.commands({})[0], "--yes"], 0)
    follow.again(step)


def base_image(registry: RegistryServer, name: str = "latest") -> str:
    """Put a base image into the registry, and return its name."""
    blobs = [oci.create_descriptor(data, kind) for data, kind in ((b"{}", CONFIG_TYPE), (b"layer", LAYER_TYPE))]
    for data in (b"{}", b"layer"):
        registry.add_blob(data)
    body = create_image_manifest(blobs[0], blobs[1:])
    return f"{registry.host}/team/base@{registry.add_manifest(name, body, oci.MANIFEST_TYPE)}"


def test_what_was_fetched_is_built_without_a_network(
    follow: Follow, write: Write, registry: RegistryServer, engine: EngineSocket
) -> None:
    write(base=f'image = "{base_image(registry)}"')
    step = follow("fetch", "mine")
    (command,) = step.commands({})
    said = follow.rlbox(*command, "--dry-run")
    assert "store lacks" not in said.out
    assert said.code == 0, said.out
