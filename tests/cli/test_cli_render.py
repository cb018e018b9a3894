"""`rlbox render`."""

from __future__ import annotations

import pytest
from fakes import CHECKOUT, TARGET, UV, UV_WHEEL, EngineSocket, Folder, Rlbox, Said, hold

from rlbox.image.bootstrap import cached_rootfs_archive_path
from rlbox.image.plan import load_image_plan

BASE, LOCAL, MINE = "Dockerfile.base", "images/local/Dockerfile", "images/mine/Dockerfile"
COMPOSE = "images/mine/compose.yaml"
# A folder of a target holds its spec, its lock, and what is rendered from them.
RENDERED = [path for path in CHECKOUT.glob("images/*/*") if path.is_file() and path.suffix not in (".toml", ".json")]
SHIPPED = [BASE, *sorted(path.relative_to(CHECKOUT).as_posix() for path in RENDERED)]


def all_are(state: str) -> str:
    return "".join(f"{name}  {state}\n" for name in SHIPPED)


def test_into_an_empty_folder(rlbox: Rlbox, folder: Folder) -> None:
    assert rlbox("render") == Said(code=0, out=all_are("written"), err="")
    assert folder.files() == SHIPPED
    for name in SHIPPED:
        assert (folder.path / name).read_bytes() == (CHECKOUT / name).read_bytes()
    assert rlbox("render") == Said(code=0, out=all_are("unchanged"), err="")


def test_one_target(rlbox: Rlbox, folder: Folder) -> None:
    folder.target("mine")
    assert rlbox("render", "mine") == Said(
        code=0, out=f"{BASE}  written\n{MINE}  written\n{COMPOSE}  written\n", err=""
    )
    assert LOCAL not in folder.files()


def test_check(rlbox: Rlbox, folder: Folder) -> None:
    rlbox("render")
    assert rlbox("render", "--check") == Said(code=0, out=all_are("unchanged"), err="")
    path = folder.path / BASE
    text = path.read_text()
    path.write_text(text.replace("rlbox.os", "os"))
    rlbox("render", "--check").check_error(1, "rendered files are stale", "-FROM os AS rlbox.tools", "+FROM rlbox.os")
    assert "FROM os AS" in path.read_text()


def test_dry_run_of_a_hermetic_context_is_refused_as_the_real_one_is(rlbox: Rlbox, folder: Folder) -> None:
    folder.target("mine")
    folder.lock("mine")
    before = folder.files()
    words = ("render", "mine", "--context", "c", "--hermetic")
    dry = rlbox(*words, "--dry-run", "--json")
    assert folder.files() == before
    real = rlbox(*words, "--json")
    assert dry.code == real.code != 0
    assert real.data["error"]["what"] in str(dry.data["verdict"])


def test_a_folder_that_cannot_be_written(rlbox: Rlbox, folder: Folder) -> None:
    folder.write("images/local", "a file where a folder belongs")
    rlbox("render", "local").check_error(5, "images/local/Dockerfile cannot be written: File exists")


@pytest.mark.allow("sockets")
def test_context_for_plain_docker_build(rlbox: Rlbox, folder: Folder, engine: EngineSocket) -> None:
    folder.target("mine")
    folder.lock("mine")
    hold(UV_WHEEL)
    plan = load_image_plan(folder.project, "mine")
    rootfs = cached_rootfs_archive_path(plan.rootfs_checksum)
    rootfs.parent.mkdir(parents=True)
    rootfs.write_text("an archive")
    assert rlbox("render", "mine", "--context", "c").code == 0
    context = folder.path / "c"
    there = {path.relative_to(context).as_posix() for path in context.rglob("*") if path.is_file()}
    lib = "files/opt/rlbox/lib/rlbox"
    layers = {f"wheels/{layer}/README" for layer in ("uv", "runtime", "tools/tools")}
    carried = {"rootfs.tar", "wheels/README", f"wheels/uv/{UV.file}"}
    assert {*plan.context_files, *layers, *carried, f"{lib}/errors.py", f"{lib}/hang/phases.toml"} <= there
    assert (context / "rootfs.tar").read_text() == "an archive"
    assert (context / "Dockerfile").read_text() == plan.context_files["Dockerfile"]
    (context / "stranger").write_text("x")
    assert rlbox("render", "mine", "--context", "c").code == 0
    assert not (context / "stranger").exists()


def test_context_does_not_empty_a_folder(rlbox: Rlbox, folder: Folder) -> None:
    folder.target("mine", TARGET)
    keep = folder.write("keep.txt", "x")
    rlbox("render", "local", "--context", ".").check_error(
        2, "rlbox did not write this build context, and writing one would remove its files"
    )
    assert keep.read_text() == "x"


def test_a_wrong_spec_in_the_middle_writes_nothing(rlbox: Rlbox, folder: Folder) -> None:
    folder.target("mine", "title = ")
    said = rlbox("render")
    assert said.code == 2
    assert said.err.startswith(
        "rlbox: error: images/mine/target.toml: broken TOML: Invalid value (at end of document)\n"
    )
    assert folder.files() == ["images/mine/target.toml"]
