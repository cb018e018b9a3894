"""What is recorded of a user's tree: version, commit, changes; a digest where there is no git."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rlbox.foreign import parse_untrusted_toml
from rlbox.record.source_tree import (
    SOURCE_RECORD_FILE,
    describe_source_record,
    load_source_toml_or_empty,
    probe_source_tree,
    read_tree_version_or_empty,
)
from rlbox.secrets.masks import SecretMasker

pytestmark = pytest.mark.allow("processes")

MASKS = SecretMasker({})


def git(folder: Path, *words: str) -> str:
    """Run git in a folder as a user who has no settings."""
    own = ("-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "init.defaultBranch=main")
    return subprocess.run(
        ("git", "-C", str(folder), *own, *words), check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A committed tree with the layout of verl."""
    folder = tmp_path / "verl"
    (folder / "verl/version").mkdir(parents=True)
    (folder / "verl/version/version").write_text("0.9.1\n")
    (folder / "verl/__init__.py").write_text("RATE = 1\n")
    (folder / ".gitignore").write_text("outputs\n")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "begin")
    return folder


def test_probe_source_clean_tree_has_commit_and_no_diff(tree: Path) -> None:
    found = probe_source_tree(tree, "verl")
    assert (found.version, found.branch, found.files_changed, found.diff) == ("0.9.1", "main", 0, "")
    assert found.commit == git(tree, "rev-parse", "HEAD")
    assert list(found.render_record_texts_by_filename(MASKS)) == [SOURCE_RECORD_FILE]
    assert describe_source_record(found.to_json()).count("no changes") == 1


def test_probe_source_changed_tree_has_a_diff_that_applies(tree: Path, tmp_path: Path) -> None:
    before = probe_source_tree(tree, "verl")
    (tree / "verl/__init__.py").write_text("RATE = 2\n")
    (tree / "verl/new.py").write_text("NEW = 1")  # no line end
    (tree / "verl/空 x.py").write_text("")
    (tree / "verl/staged.py").write_text("a\nb\n")
    git(tree, "add", "verl/staged.py")
    (tree / "outputs").mkdir()
    (tree / "outputs/log").write_text("ignored")
    index = (tree / ".git/index").read_bytes()
    found = probe_source_tree(tree, "verl")
    assert (tree / ".git/index").read_bytes() == index
    assert found.files_changed == 4
    assert found.digest != before.digest
    assert "ignored" not in found.diff
    files = found.render_record_texts_by_filename(MASKS)
    record = parse_untrusted_toml(files[SOURCE_RECORD_FILE])
    assert record["diff"] == f"source-{found.digest[:12]}.diff"
    git(tmp_path, "clone", "-q", str(tree), "again")
    (tmp_path / "x.diff").write_text(files[record["diff"]])
    git(tmp_path / "again", "apply", str(tmp_path / "x.diff"))
    for name in ("__init__.py", "new.py", "staged.py", "空 x.py"):
        assert (tmp_path / "again/verl" / name).read_bytes() == (tree / "verl" / name).read_bytes()


def test_probe_source_large_or_binary_new_file_is_named_with_its_size(tree: Path) -> None:
    (tree / "verl/weights.bin").write_bytes(b"\xff\x00" * 8)
    (tree / "rows.jsonl").write_text("x" * ((1 << 20) + 1))
    found = probe_source_tree(tree, "verl")
    assert "b/verl/weights.bin differ (16 bytes)" in found.diff
    assert "b/rows.jsonl differ (1048577 bytes)" in found.diff
    assert len(found.diff) < 1000


def test_files_masks_secrets_and_cuts_a_long_diff(tree: Path) -> None:
    token = "hunter2-quite-long-1234"
    (tree / "verl/__init__.py").write_text(f"KEY = '{token}'\n" + "# line\n" * 200_000)
    found = probe_source_tree(tree, "verl")
    text = found.render_record_texts_by_filename(SecretMasker({"MY_TOKEN": token}))[found.to_json()["diff"]]
    assert token not in text
    assert "+KEY = '***'" in text
    assert text.endswith("characters in all]\n")
    assert len(text) < (1 << 20) + 100


def test_probe_source_without_git_has_a_digest_of_its_files(tree: Path) -> None:
    for path in sorted((tree / ".git").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (tree / ".git").rmdir()
    found = probe_source_tree(tree, "verl")
    assert (found.commit, found.diff) == ("", "")
    (tree / "verl/__pycache__").mkdir()
    (tree / "verl/__pycache__/x.pyc").write_text("compiled")
    assert probe_source_tree(tree, "verl").digest == found.digest
    (tree / "verl/__init__.py").write_text("RATE = 2\n")
    assert probe_source_tree(tree, "verl").digest != found.digest
    assert "no git commit" in describe_source_record(found.to_json())


def test_probe_source_ignored_by_the_repository_around_it_has_no_commit(tree: Path) -> None:
    inner = tree / "outputs/fork"
    (inner / "verl").mkdir(parents=True)
    (inner / "verl/__init__.py").write_text("")
    assert probe_source_tree(inner, "verl").commit == ""


@pytest.mark.parametrize(
    ("name", "text", "version"),
    [
        ("openrlhf/version/version", "0.9.1", "0.9.1"),
        ("version.txt", "0.10.4\n", "0.10.4"),
        ("pyproject.toml", '[project]\nname = "x"\nversion = "1.2.3"\n', "1.2.3"),
        ("setup.py", 'setup(\n    name="x",\n    version="0.3.1",\n)\n', "0.3.1"),
        ("setup.py", "version=read('version')", ""),
        ("version.txt", "who knows", ""),
        ("README.md", "1.0", ""),
    ],
)
def test_tree_version_reads_the_usual_places(tmp_path: Path, name: str, text: str, version: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
    assert read_tree_version_or_empty(tmp_path, "openrlhf") == version


def test_recorded_source_of_a_run_without_one_is_empty(tmp_path: Path) -> None:
    assert load_source_toml_or_empty(tmp_path) == {}
