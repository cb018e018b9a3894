"""A wheel by address and checksum: in the lock without a question, in every context, of a size that may be unknown."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from fakes import Folder, fitting_lock

from rlbox.artifacts.mirrors import explain_bad_response
from rlbox.artifacts.object_store import ObjectStore
from rlbox.artifacts.python_lock import ResolverOutput, build_python_lock
from rlbox.errors import SpecError
from rlbox.image.plan import plan_python_layers
from rlbox.target.artifact import list_artifacts_without_compile_inputs
from rlbox.target.lock import compute_lock_spec_checksum, parse_lock
from rlbox.target.target import Target, load_target

URL = "https://example.org/v1/flash_attn-2.8.3%2Bcu12torch2.6cxx11abiFALSE-cp311-cp311-linux_x86_64.whl"
SPEC = f"""
title = "t"
[base]
bootstrap = "debian:bookworm"
[[stack]]
name = "s"
packages = ["six==1.16.0"]
[[stack.wheels]]
url = "{URL}"
sha256 = "{"a" * 64}"
[disk]
host = "~/disk"
"""


@pytest.fixture
def target(folder: Folder) -> Target:
    folder.target("mine", SPEC)
    return load_target(folder.project, "mine").target


def resolution(name: str, version: str) -> ResolverOutput:
    wheel = {"name": f"{name}-{version}-py3-none-any.whl", "hashes": {"sha256": "b" * 64}}
    row = {"name": name, "version": version, "wheels": [wheel]}
    return ResolverOutput(
        requirements=f"{name}=={version}\n    # via -r s.in\n", pylock={"packages": [row]}, size_by_sha256={"b" * 64: 7}
    )


def test_the_lock_has_it_as_it_is_written(target: Target) -> None:
    resolved = {
        "stack": resolution("six", "1.16.0"),
        "runtime": resolution("rich", "14.0"),
        "build": resolution("w", "1"),
    }
    lock = build_python_lock(target, ("rich",), resolved)
    assert [package.name for package in lock.groups[0].packages] == ["flash-attn", "six"]
    wheel = lock.groups[0].packages[0]
    assert (wheel.version, wheel.sha256, wheel.size) == ("2.8.3+cu12torch2.6cxx11abifalse", "a" * 64, 0)
    assert wheel.file == "flash_attn-2.8.3+cu12torch2.6cxx11abiFALSE-cp311-cp311-linux_x86_64.whl"
    assert parse_lock(lock.to_json_text(), "x", "y") == lock
    (file,) = [file for file in list_artifacts_without_compile_inputs(lock) if file.name == "flash-attn"]
    assert (file.kind, file.origin, file.group) == ("http", URL, "s")
    assert [len(layer.packages) for layer in plan_python_layers(target, lock)] == [2]


def test_a_spec_without_wheels_keeps_the_checksum_of_its_lock(target: Target, folder: Folder) -> None:
    """Fields that came later are part of the checksum when they are set."""
    folder.target("plain", SPEC.partition("[[stack.wheels]]")[0] + '[disk]\nhost = "~/disk"\n')
    plain = load_target(folder.project, "plain").target
    assert fitting_lock(plain, ("rich",)).spec == compute_lock_spec_checksum(plain, ("rich",))
    assert compute_lock_spec_checksum(plain, ("rich",)) != compute_lock_spec_checksum(target, ("rich",))
    later = folder.target("later", folder.path.joinpath("images/plain/target.toml").read_text())
    later.write_text(later.read_text() + '[python]\nbefore = "2026-01-01"\n')
    assert compute_lock_spec_checksum(
        load_target(folder.project, "later").target, ("rich",)
    ) != compute_lock_spec_checksum(plain, ("rich",))


def test_a_size_that_is_not_known_is_not_compared(tmp_path: Path, target: Target) -> None:
    store = ObjectStore(tmp_path)
    digest = hashlib.sha256(b"wheel").hexdigest()
    path = store.path(digest)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"wheel")
    assert store.verify_and_mark_if_intact(digest, 0)
    assert not store.verify_and_mark_if_intact(digest, 4)
    lock = build_python_lock(target, (), {key: resolution("six", "1.16.0") for key in ("stack", "runtime", "build")})
    unknown = next(file for file in list_artifacts_without_compile_inputs(lock) if not file.size)
    assert explain_bad_response(200, "application/zip", 12345, unknown) is None


@pytest.mark.parametrize(
    "url", ["ftp://example.org/a-1-py3-none-any.whl", "https://example.org/a.zip", "https://example.org/no_wheel.whl"]
)
def test_what_is_no_wheel(folder: Folder, url: str) -> None:
    folder.target("mine", SPEC.replace(URL, url))
    with pytest.raises(SpecError, match="wheels"):
        load_target(folder.project, "mine")
