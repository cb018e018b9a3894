"""What `rlbox compile` advises is done, and then it compiles: namespaces, this machine's C++ compiler, a source."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from compilebox import UNITS, Box, make_box, needs_spaces
from following import Follow, Step
from test_compile_verb import fat_binary

from rlbox.artifacts.object_store import Store

pytestmark = pytest.mark.usefixtures("spaces")
LINKED = '    made.append("three.cpp")'
DOWNLOADS = """
    if not os.environ.get("SMALL_OFFLINE"):
        import urllib.request
        urllib.request.urlopen("http://example.org/v1.whl")
"""
GREEDY = """
    if int(os.environ["MAX_JOBS"]) > 1:
        raise SystemExit("c++: fatal error: Killed signal terminated program cc1plus")
"""
KERNELS = f"""
    arch = os.environ.get("SMALL_FOR", "80")
    open("small.so", "wb").write({{"80": {fat_binary(90, 80)!r}, "90": {fat_binary(90, 90)!r}}}[arch])
    global sorted
    files = sorted
    sorted = lambda names, key=None: files(("_small.so", "small.py", "small.so"))
"""
STOPS = """
    if not os.path.exists("/mnt/rlbox/objects/go"):
        raise SystemExit(7)
"""


class Situation(NamedTuple):
    """A build's own words, what stands in its table of the spec, and what stands there when the advice is done."""

    body: str
    spec: str
    done: str
    arch: str = ""


SITUATIONS: Mapping[str, Situation] = {
    "downloads": Situation(UNITS + DOWNLOADS, "", 'env = { SMALL_OFFLINE = "1" }'),
    "memory": Situation(UNITS + GREEDY, "memory_gib = 0.001", "memory_gib = 100000"),
    "another GPU": Situation(UNITS + KERNELS, 'cuda = "13.0"', 'cuda = "13.0"\nenv = { SMALL_FOR = "90" }', "sm_90"),
    "no GPU code": Situation(UNITS, 'cuda = "13.0"', "", "sm_90"),
    "linked behind its back": Situation(LINKED + '\n    os.environ["PATH"] = "/usr/bin:/bin"', 'units = ["one*"]', ""),
    "another folder": Situation(UNITS, 'folder = "nowhere"', ""),
}


@pytest.fixture(scope="module")
def spaces() -> None:
    needs_spaces()


def typed(follow: Follow, box: Box, *words: str) -> Step:
    """Type a line in the project of `box`, where all that follows is typed too."""
    follow.rlbox = box.rlbox
    return follow(*words)


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_spec_is_mended(follow: Follow, tmp_path: Path, name: str) -> None:
    body, spec, done, arch = SITUATIONS[name]
    step = typed(follow, make_box(tmp_path, body, spec, arch), "compile", "mine")
    make_box(tmp_path, body, done, arch)
    follow.again(step)


def test_the_image_is_built_with_what_was_compiled(follow: Follow, tmp_path: Path) -> None:
    box = make_box(tmp_path)
    assert "small not compiled yet" in box.rlbox("build", "mine", "--dry-run").out
    step = typed(follow, box, "compile", "mine")
    said = follow.rlbox(*step.commands({})[0], "--dry-run")
    assert said.out
    assert "not compiled yet" not in said.out


def test_the_same_command_goes_on(follow: Follow, tmp_path: Path) -> None:
    box = make_box(tmp_path, UNITS + STOPS)
    step = typed(follow, box, "compile", "mine")
    (box.object_folder() / "go").touch()
    assert "= one.cpp" in " ".join(follow.again(step).err.split())


def test_other_bytes_are_put_into_the_lock(follow: Follow, tmp_path: Path) -> None:
    box = make_box(tmp_path, UNITS + '    open("small.py", "w").write(str(time.time_ns()))\n')
    assert box.rlbox("compile", "mine").code == 0
    Store(Path(box.env["RLBOX_STORE"])).remove(box.wheel()["sha256"])
    follow.types(typed(follow, box, "compile", "mine"))


def test_a_lock_that_was_made_anew_meanwhile(follow: Follow, tmp_path: Path) -> None:
    waits = '    while not os.path.exists("/mnt/rlbox/objects/go"):\n        time.sleep(0.05)\n'
    box = make_box(tmp_path, waits + UNITS)
    lock = box.folder.path / "images/mine/lock.json"
    ours = lock.read_text()
    process = box.begin("compile", "mine")
    until = time.monotonic() + 60
    while not list(box.cache.glob("work/*/build.log")):
        assert time.monotonic() < until
        time.sleep(0.05)
    lock.write_text(ours.replace('"recipe": "', '"recipe": "0'))
    (box.object_folder() / "go").touch()
    out, err = process.communicate(timeout=120)
    lock.write_text(ours)
    follow.rlbox = box.rlbox
    said = type(box.rlbox("--version"))(code=process.returncode, out=out, err=err)
    follow.types(follow.step(("compile", "mine"), said))


def test_what_no_source_has_is_compiled(follow: Follow, tmp_path: Path) -> None:
    """After a dry run, with a lock that names no wheel yet, and with a store that lost it."""
    box = make_box(tmp_path)
    follow.types(typed(follow, box, "compile", "mine", "--dry-run"))
    Store(Path(box.env["RLBOX_STORE"])).remove(box.wheel()["sha256"])
    step = follow("build", "mine")
    follow.types(step)
    follow.changed(step, [*step.typed, "--dry-run"], 0)


def test_a_lock_without_its_wheel(follow: Follow, tmp_path: Path) -> None:
    step = typed(follow, make_box(tmp_path), "build", "mine")
    follow.types(step)
    follow.changed(step, [*step.typed, "--dry-run"], 0)
