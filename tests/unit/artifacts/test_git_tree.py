"""The archive of a git tree: the same bytes from every clone, by any machine's git settings."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from mirror import FakeLocator

from rlbox.artifacts.fetch import fetch_missing_artifacts
from rlbox.artifacts.git_tree import hash_git_ref_tree
from rlbox.artifacts.mirrors import DownloadLocation
from rlbox.artifacts.object_store import ObjectStore
from rlbox.errors import WorkFailed
from rlbox.target.artifact import Artifact
from rlbox.target.lock import GitTree

pytestmark = pytest.mark.allow("processes", "sockets")
# sha256 of the archive of `project`, so that a lock made years ago still fits.
EXPECTED = "07bcedded5a468547c64eb41701a26705fd77b8e95e09ad174857926eed30bb1"
WHO = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")


def git(folder: Path, *words: str) -> str:
    env = {**os.environ, "GIT_AUTHOR_DATE": "2020-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2020-01-01T00:00:00Z"}
    done = subprocess.run(["git", *WHO, "-C", str(folder), *words], check=True, capture_output=True, text=True, env=env)
    return done.stdout.strip()


def commit(folder: Path, text: str) -> str:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", text)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with one of everything that a tree may hold."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    for name, text in {"a.txt": "$Format:%H$\r\n", "b/c.sh": "#!/bin/sh\n", "b.d": "", f"{'x' * 120}/ü": "é"}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(text.encode())
    (folder / "b/c.sh").chmod(0o755)
    (folder / "link").symlink_to("b/c.sh")
    (folder / ".gitattributes").write_text("a.txt export-subst text\nb.d export-ignore\n")
    commit(folder, "first")
    return folder


def lock(folder: Path, ref: str = "main") -> GitTree:
    return hash_git_ref_tree(
        "project", f"file://{folder}", ref, [DownloadLocation(url=f"file://{folder}", mirror="direct")]
    )


def artifact(facts: GitTree, name: str = "project") -> Artifact:
    return Artifact(
        kind="git",
        name=name,
        file=f"{name}-{facts.commit[:12]}.tar",
        sha256=facts.sha256,
        size=facts.size,
        group="git",
        origin=f"https://example.org/{name}.git {facts.commit}",
    )


def fetched(store: ObjectStore, facts: GitTree, **places: Path) -> bytes:
    bases = {name: f"file://{folder}" for name, folder in places.items()}
    fetch_missing_artifacts([artifact(facts)], FakeLocator(**bases), store, target="mine")
    return store.path(facts.sha256).read_bytes()


def test_the_archive(project: Path, tmp_path: Path) -> None:
    facts = lock(project)
    assert facts.commit == git(project, "rev-parse", "HEAD")
    assert facts.tree == git(project, "rev-parse", "HEAD^{tree}")
    body = fetched(ObjectStore(tmp_path / "s"), facts, direct=project)
    assert (hashlib.sha256(body).hexdigest(), len(body)) == (facts.sha256, facts.size)
    with tarfile.open(tmp_path / "s/objects/sha256" / facts.sha256[:2] / facts.sha256) as tar:
        rows = [(m.name, oct(m.mode), m.type, m.size, m.linkname, m.mtime, m.uid, m.gname) for m in tar]
        assert tar.extractfile("a.txt").read() == b"$Format:%H$\n"  # type: ignore[union-attr]
    names = [row[0] for row in rows]
    assert names == [".gitattributes", "a.txt", "b.d", "b", "b/c.sh", "link", "x" * 120, f"{'x' * 120}/ü"]
    assert {row[5:] for row in rows} == {(315532800, 0, "")}
    by_name = {row[0]: row[1:5] for row in rows}
    assert by_name["b/c.sh"] == ("0o755", tarfile.REGTYPE, 10, "")
    assert by_name["b"] == ("0o755", tarfile.DIRTYPE, 0, "")
    assert by_name["link"] == ("0o777", tarfile.SYMTYPE, 0, "b/c.sh")
    assert facts.sha256 == EXPECTED


@pytest.mark.parametrize("ref", ["main", "v1", "annotated", "COMMIT", "SHORT", "refs/heads/main"])
def test_every_way_to_name_a_commit(project: Path, ref: str) -> None:
    git(project, "tag", "v1")
    git(project, "tag", "--annotate", "annotated", "--message", "x")
    head = git(project, "rev-parse", "HEAD")
    assert lock(project, {"COMMIT": head, "SHORT": head[:9]}.get(ref, ref)).commit == head


def test_two_clones_give_the_same_bytes(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = lock(project)
    git(tmp_path, "clone", "--quiet", "--bare", str(project), "copy.git")
    Path(os.environ["HOME"], ".gitconfig").write_text("[core]\n\tautocrlf = true\n\teol = crlf\n")
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    before = os.umask(0o077)
    try:
        assert lock(tmp_path / "copy.git").sha256 == facts.sha256
    finally:
        os.umask(before)


def test_a_branch_that_moved(project: Path, tmp_path: Path) -> None:
    facts = lock(project)
    (project / "new").write_text("")
    commit(project, "second")
    assert lock(project).commit != facts.commit
    assert hashlib.sha256(fetched(ObjectStore(tmp_path / "s"), facts, direct=project)).hexdigest() == facts.sha256


def test_a_mirror_that_is_behind_is_passed_over(project: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", "--bare", str(project), "behind.git")
    (project / "new").write_text("")
    commit(project, "second")
    facts = lock(project)
    store = ObjectStore(tmp_path / "s")
    with pytest.raises(WorkFailed) as caught:
        fetched(store, facts, behind=tmp_path / "behind.git")
    assert caught.value.what.startswith(f"1 file cannot be fetched\n  project-{facts.commit[:12]}.tar\n    behind: ")
    assert list(store.list_partials()) == []
    fetched(store, facts, behind=tmp_path / "behind.git", missing=tmp_path / "none", direct=project)
    assert store.verify_and_mark_if_intact(facts.sha256, facts.size)


def test_no_such_ref(project: Path) -> None:
    with pytest.raises(WorkFailed, match=r"project: no place has nowhere\n  direct: "):
        lock(project, "nowhere")


def test_a_name_that_is_not_utf_8_is_refused(project: Path) -> None:
    (project / os.fsdecode(b"\xff")).write_text("")
    commit(project, "strange")
    with pytest.raises(WorkFailed, match="whose name is not UTF-8"):
        lock(project)


def test_submodules_are_refused(project: Path, tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    outer.mkdir()
    git(outer, "init", "--quiet", "--initial-branch=main")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", f"file://{project}", "third/party")
    commit(outer, "with a submodule")
    with pytest.raises(WorkFailed) as caught:
        lock(outer)
    assert str(caught.value) == (
        "the repository has the submodule third/party, which an archive of its tree cannot hold\n"
        "  next:  name a fork in url that has the submodule's files in its own tree"
    )


def test_a_password_in_an_address_is_masked(tmp_path: Path) -> None:
    with pytest.raises(WorkFailed) as caught:
        hash_git_ref_tree(
            "x",
            "http://me:secret@127.0.0.1:9/x",
            "main",
            [DownloadLocation(url="http://me:secret@127.0.0.1:9/x", mirror="a")],
        )
    assert "secret" not in str(caught.value)
    assert "127.0.0.1" in str(caught.value)
