"""The build context: its digest changes with what decides the image and with nothing else; its folder is exact."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from fakes import image_plan

from rlbox.config.project import PACKAGE
from rlbox.errors import MachineError
from rlbox.image.context import (
    HASHED_PACKAGES,
    compute_build_digest,
    find_image_outdated_reason,
    list_hashed_context_entries,
    list_locked_context_entries,
    list_unhashed_rlbox_files,
    sync_build_context,
)
from rlbox.image.plan import ImagePlan

LIB, OTHER = "files/opt/rlbox/lib/rlbox/", "other/opt/rlbox/lib/rlbox/"
SEAL = 315_532_800  # the time stamp of every object of the store


def build_digest(entries: Mapping[str, str | Path], plan: ImagePlan) -> str:
    return compute_build_digest(entries, plan.epoch)


@pytest.fixture
def umask() -> Iterator[None]:
    """Put the process's umask back, whatever the test sets."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def source(path: Path, text: str, mode: int = 0o644, mtime: int = 1_700_000_000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    os.utime(path, (mtime, mtime))
    return path


def entries(folder: Path) -> dict[str, str | Path]:
    return {
        "Dockerfile": "FROM scratch\n",
        "scripts/install.sh": "#!/bin/sh\n",
        "lib/a.py": source(folder / "a.py", "a = 1\n"),
        "lib/b/c.py": source(folder / "b/c.py", "c = 1\n"),
        "lib/tool": source(folder / "tool", "#!/bin/sh\n", mode=0o755),
    }


def tree(folder: Path) -> dict[str, tuple[str, str]]:
    """Return path to (mode, text) of every file and folder."""
    return {
        path.relative_to(folder).as_posix(): (f"{path.stat().st_mode:o}", path.read_text() if path.is_file() else "")
        for path in sorted(folder.rglob("*"))
    }


def test_entries_of_a_context(tmp_path: Path) -> None:
    found = list_hashed_context_entries(image_plan())
    own = {name for name in found if name.startswith(LIB)}
    assert {name: found[name] for name in set(found) - own} == {
        "Dockerfile": "FROM scratch\n",
        "scripts/install.sh": "#!/bin/sh\n",
    }
    assert {f"{LIB}errors.py", f"{LIB}supervise/__main__.py", f"{LIB}hang/phases.toml"} <= own
    other = set(list_unhashed_rlbox_files())
    assert {f"{OTHER}__main__.py", f"{OTHER}cli/root.py", f"{OTHER}target/defaults.toml"} <= other
    assert {f"{OTHER}_shipped/{name}" for name in ("images/local/lock.json", "jobs/smoke.toml")} <= other
    assert [name for name in (*own, *other) if "__pycache__" in name or name.endswith(".pyc")] == []
    assert [name for name in own if "_shipped" in name] == []
    assert not {name.removeprefix(LIB) for name in own} & {name.removeprefix(OTHER) for name in other}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of rlbox that may be written to."""
    copy = tmp_path_factory.mktemp("copy") / "rlbox"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "_shipped"))
    return copy


ROOMS = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file())
FILES = ("__init__.py", "app.py", "errors.py", "values.py", "version.py", "__main__.py")


@pytest.mark.parametrize("part", [*ROOMS, *FILES])
def test_an_idle_line_of_code_changes_an_image_only_where_a_container_runs_it(
    part: str, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlbox.image.context.PACKAGE", package)
    plan = image_plan()
    before = build_digest(list_hashed_context_entries(plan), plan)
    path = package / part / "__init__.py" if part in ROOMS else package / part
    text = path.read_text()
    path.write_text(f"{text}\n_IDLE = 0\n")
    after = build_digest(list_hashed_context_entries(plan), plan)
    path.write_text(text)
    runs_inside = part in HASHED_PACKAGES or part in ("__init__.py", "app.py", "errors.py", "values.py")
    assert (after != before) == runs_inside


def test_a_new_version_number_keeps_the_image(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlbox.image.context.PACKAGE", package)
    plan = image_plan()
    before = build_digest(list_hashed_context_entries(plan), plan)
    (package / "version.py").write_text('__version__ = "99"\n')
    assert build_digest(list_hashed_context_entries(plan), plan) == before


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ({"rlbox.spec": "s", "rlbox.lock": "l"}, "rlbox or its fixes have changed"),
        ({"rlbox.spec": "s", "rlbox.lock": "old"}, "its lock has changed"),
        ({"rlbox.spec": "old", "rlbox.lock": "old"}, "its spec has changed"),
        ({}, "its spec has changed"),
    ],
)
def test_why_an_image_is_outdated(labels: dict[str, str], why: str) -> None:
    plan = image_plan(spec_checksum="s", lock_checksum="l")
    assert find_image_outdated_reason(plan, {"Config": {"Labels": {**labels, "rlbox.build": "other"}}}) == why
    current = {**labels, "rlbox.build": build_digest(list_hashed_context_entries(plan), plan)}
    assert find_image_outdated_reason(plan, {"Config": {"Labels": current}}) is None


def test_the_ca_bundle_of_the_site_decides_the_image_when_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = source(tmp_path / "ca.crt", "one")
    monkeypatch.setenv("RLBOX_CA_BUNDLE", str(ca))
    assert "files/opt/rlbox/share/ca.crt" not in list_hashed_context_entries(image_plan())
    kept = image_plan(bake_ca=True)
    assert list_hashed_context_entries(kept)["files/opt/rlbox/share/ca.crt"] == ca
    first = build_digest(list_hashed_context_entries(kept), kept)
    source(ca, "two", mtime=1_700_000_001)
    assert build_digest(list_hashed_context_entries(kept), kept) != first


def test_a_ca_bundle_that_nobody_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlbox.image.context.find_env_or_pip_ca_bundle_or_empty", lambda: "")
    with pytest.raises(MachineError) as caught:
        list_hashed_context_entries(image_plan(bake_ca=True))
    assert str(caught.value) == (
        "the target keeps the site's CA bundle in its image, and this machine names none\n"
        "  where: build.bake_ca\n"
        "  next:  name it with RLBOX_CA_BUNDLE"
    )


def test_what_a_context_carries(tmp_path: Path) -> None:
    wheel, tree, os_ = (source(tmp_path / name, "x") for name in ("t.whl", "verl.tar", "rootfs.tar"))
    text = "What this machine holds already stands here, a folder a layer; a build fetches the rest.\n"
    plan = image_plan(layers=("torch.torch", "torch"))
    parts = {"git/verl.tar": tree}
    assert list_locked_context_entries(
        plan, os_, {"torch.large/torch.torch/t.whl": wheel}, parts, mark_wheels_complete=False
    ) == {
        "wheels/README": text,
        "wheels/uv/README": text,
        "wheels/runtime/README": text,
        "wheels/torch.large/torch.torch/README": text,
        "wheels/torch/torch/README": text,
        "wheels/torch.large/torch.torch/t.whl": wheel,
        "git/verl.tar": tree,
        "rootfs.tar": os_,
    }
    assert set(list_locked_context_entries(image_plan(), None, {}, {}, mark_wheels_complete=True)) == {
        "wheels/README",
        "wheels/uv/complete",
        "wheels/runtime/complete",
        "wheels/tools/tools/complete",
    }


def test_what_is_carried_is_no_part_of_the_digest(tmp_path: Path) -> None:
    """What a machine holds, and whether its build is hermetic, is the machine's; the lock has the checksums."""
    plan = image_plan()
    decisive = list_hashed_context_entries(plan)
    carried = list_locked_context_entries(
        plan, tmp_path / "rootfs.tar", {"tools/t.whl": tmp_path / "t.whl"}, {}, mark_wheels_complete=True
    )
    assert decisive.keys().isdisjoint(carried)
    assert build_digest(decisive, plan) == build_digest(
        list_hashed_context_entries(image_plan(rootfs_checksum="", network="none")), plan
    )


def test_an_image_knows_no_mirrors() -> None:
    found = {name for name in list_unhashed_rlbox_files() if name.startswith(f"{OTHER}artifacts/profiles/")}
    assert found == {f"{OTHER}artifacts/profiles/direct.toml"}


def test_what_changes_the_digest(tmp_path: Path) -> None:
    plan = image_plan()
    first = build_digest(entries(tmp_path / "0"), plan)
    changed = []
    for number, change in enumerate(
        [
            lambda e, f: e.update({"Dockerfile": "FROM scratch\n\n"}),
            lambda e, f: source(f / "a.py", "a = 2\n"),
            lambda e, f: source(f / "a.py", "a = 1\n", mode=0o755),
            lambda e, f: source(f / "tool", "#!/bin/sh\n", mode=0o644),
            lambda e, f: e.update({"lib/d.py": e.pop("lib/a.py")}),
            lambda e, f: e.update({"lib/e.py": ""}),
            lambda e, f: e.pop("scripts/install.sh"),
            # The same characters, cut between path and text elsewhere.
            lambda e, f: e.update({"scripts/install.s": "h" + e.pop("scripts/install.sh")}),
        ],
        start=1,
    ):
        folder = tmp_path / str(number)
        found = entries(folder)
        change(found, folder)
        changed.append(build_digest(found, plan))
    changed.append(build_digest(entries(tmp_path / "0"), image_plan(epoch=1)))
    assert first not in changed
    assert len(set(changed)) == len(changed)


def test_what_does_not_change_the_digest(tmp_path: Path, umask: None) -> None:
    first = build_digest(entries(tmp_path / "a"), image_plan())
    elsewhere = entries(tmp_path / "some/other place")
    assert build_digest(elsewhere, image_plan()) == first
    assert build_digest(dict(reversed(list(elsewhere.items()))), image_plan()) == first
    for name, mode in (("a.py", 0o600), ("tool", 0o700), ("b/c.py", 0o444)):
        path = tmp_path / "some/other place" / name
        path.chmod(mode)
        os.utime(path, (1, 1))
    os.umask(0o077)
    assert build_digest(elsewhere, image_plan()) == first
    os.umask(0o000)
    assert build_digest(elsewhere, image_plan(tag="y", container=image_plan().container)) == first


def test_the_folder_holds_exactly_the_entries(tmp_path: Path, umask: None) -> None:
    os.umask(0o077)
    folder = tmp_path / "context"
    sync_build_context(entries(tmp_path / "src"), folder)
    os.umask(0o000)
    sync_build_context(entries(tmp_path / "src"), tmp_path / "second")
    wanted = {
        "Dockerfile": ("100644", "FROM scratch\n"),
        "lib": ("40755", ""),
        "lib/a.py": ("100644", "a = 1\n"),
        "lib/b": ("40755", ""),
        "lib/b/c.py": ("100644", "c = 1\n"),
        "lib/tool": ("100755", "#!/bin/sh\n"),
        "scripts": ("40755", ""),
        "scripts/install.sh": ("100644", "#!/bin/sh\n"),
    }
    assert tree(folder) == wanted
    assert tree(tmp_path / "second") == wanted


def test_strangers_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "context"
    found = entries(tmp_path / "src")
    sync_build_context(found, folder)
    wanted = tree(folder)
    outside = source(tmp_path / "outside/keep.txt", "keep")
    source(folder / "old.txt", "x")
    source(folder / "old/deep/er.txt", "x")
    (folder / "empty").mkdir()
    (folder / "link").symlink_to(outside)
    (folder / "folder-link").symlink_to(outside.parent)
    (folder / "dead-link").symlink_to(folder / "nothing")
    sync_build_context(found, folder)
    assert tree(folder) == wanted
    assert outside.read_text() == "keep"


def test_a_stranger_in_the_place_of_an_entry(tmp_path: Path) -> None:
    folder = tmp_path / "context"
    found = entries(tmp_path / "src")
    same = source(tmp_path / "same", "FROM scratch\n")
    source(folder / "lib/b", "a file where a folder belongs")
    source(folder / "scripts/install.sh/x", "a folder where a file belongs")
    (folder / "Dockerfile").symlink_to(same)
    sync_build_context(found, folder)
    sync_build_context(found, tmp_path / "clean")
    assert tree(folder) == tree(tmp_path / "clean")
    assert not (folder / "Dockerfile").is_symlink()


def test_changes_are_brought(tmp_path: Path) -> None:
    folder = tmp_path / "context"
    found = entries(tmp_path / "src")
    sync_build_context(found, folder)
    source(tmp_path / "src/a.py", "a = 2\n", mtime=1_700_000_001)
    (tmp_path / "src/b/c.py").chmod(0o755)
    found["Dockerfile"] = "FROM other\n"
    (folder / "scripts/install.sh").chmod(0o600)
    sync_build_context(found, folder)
    assert tree(folder)["lib/a.py"] == ("100644", "a = 2\n")
    assert tree(folder)["lib/b/c.py"] == ("100755", "c = 1\n")
    assert tree(folder)["Dockerfile"] == ("100644", "FROM other\n")
    assert tree(folder)["scripts/install.sh"] == ("100644", "#!/bin/sh\n")


def sealed(path: Path, text: str) -> Path:
    """Return a file as the store keeps it."""
    return source(path, text, mode=0o444, mtime=SEAL)


LINKED = ("rootfs.tar", "wheels/torch/t.whl", "git/verl.tar", "http/tool")


@pytest.mark.parametrize("name", LINKED)
def test_what_the_lock_names_is_linked(tmp_path: Path, name: str) -> None:
    """An object of the store keeps its mode, and is never written to."""
    folder, kept = tmp_path / "context", sealed(tmp_path / "object", "x")
    for _ in range(2):
        sync_build_context({name: kept, "files/object": kept}, folder)
        linked, copied = (folder / name).stat(), (folder / "files/object").stat()
        assert (linked.st_ino, f"{linked.st_mode:o}", linked.st_mtime) == (kept.stat().st_ino, "100444", SEAL)
        assert (copied.st_ino != linked.st_ino, f"{copied.st_mode:o}", copied.st_mtime) == (True, "100644", SEAL)
    (tmp_path / "context/files/object").unlink()
    sync_build_context({}, folder)
    assert (kept.read_text(), f"{kept.stat().st_mode:o}", kept.stat().st_mtime) == ("x", "100444", SEAL)
