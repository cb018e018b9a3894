"""Probing what is no plain file: commits by git, images by their manifest."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from mirrorbox import artifact
from registry_server import running

from rlbox.artifacts.mirror_probe import probe_mirrors
from rlbox.artifacts.mirrors import MachineSources
from rlbox.artifacts.profile import MirrorRule, Profile
from rlbox.engine.oci import MANIFEST_TYPES
from rlbox.target.artifact import Artifact

URL = "https://github.com/o/r.git"


def git(folder: Path, *words: str) -> str:
    argv = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=e@example", *words]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def repository(folder: Path, text: str) -> str:
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet")
    (folder / "a").write_text(text)
    git(folder, "add", "a")
    git(folder, "commit", "--quiet", "-m", text)
    return git(folder, "rev-parse", "HEAD")


@pytest.mark.allow("processes", "sockets")
def test_a_commit_is_fetched_by_its_id(tmp_path: Path) -> None:
    commit = repository(tmp_path / "good/o/r.git", "one")
    repository(tmp_path / "behind/o/r.git", "older")
    rules = tuple(
        MirrorRule(
            kind="git",
            protocol="git-instead-of",
            url=f"file://{tmp_path}/{name}/",
            match="https://github.com/",
            name=name,
        )
        for name in ("behind", "gone", "good")
    )
    tree = artifact(b"", "r.tar", "git", name="r", origin=f"{URL} {commit}")
    found = probe_mirrors(Profile(name="mine", title="", rule=rules), MachineSources(), [tree])
    assert [(one.mirror, one.file, one.verified) for one in found if not one.reason] == [
        ("good", commit[:12], "commit id")
    ]
    reasons = {one.mirror: one.reason for one in found}
    assert "not our ref" in reasons["behind"]
    assert reasons["gone"] != ""


@pytest.mark.allow("sockets")
def test_an_image_is_asked_for_by_its_digest() -> None:
    body = b'{"schemaVersion": 2, "layers": []}'
    with running() as full, running() as empty, running() as liar:
        digest = full.add_manifest("1", body, MANIFEST_TYPES[0])
        liar.manifests[digest] = (MANIFEST_TYPES[0], body + b" ")
        base = f"docker.io/library/debian@{digest}"
        image = Artifact(kind="oci", name="debian", file="debian", sha256="", size=0, group="base", origin=base)
        rules = [
            MirrorRule(kind="oci", protocol="host", url=f"http://{host.host}", match="docker.io", name=name)
            for name, host in (("empty", empty), ("liar", liar), ("full", full))
        ]
        closed = {"kind": "oci", "protocol": "registry-prefix", "url": "https://x.example", "allow": ("docker.io/o/*",)}
        rules.append(MirrorRule.model_validate(closed))
        found = probe_mirrors(Profile(name="mine", title="", rule=tuple(rules)), MachineSources(), [image])
    assert [(one.mirror, one.verified) for one in found if not one.reason] == [("full", "sha256 of the manifest")]
    reasons = {one.mirror: one.reason for one in found}
    assert "has no" in reasons["empty"]
    assert reasons["liar"] != ""
    assert reasons["x.example"] == "has no docker.io/library/debian (allow-list)"
