"""`rlbox compile` for real: namespaces, this machine's C++ compiler, a source that builds itself."""

from __future__ import annotations

import json
import signal
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from compilebox import UNITS, Box, make_box, needs_spaces
from fakes import load_cases

from rlbox.artifacts.object_store import ObjectStore

CASES = load_cases("compile", "test_compile_verb")
pytestmark = pytest.mark.usefixtures("spaces")


@pytest.fixture(scope="module")
def spaces() -> None:
    needs_spaces()


def wait_for(what: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.05)


def object_names(box: Box) -> set[str]:
    return {path.name for path in box.object_folder().iterdir()}


def test_it_is_compiled_once_and_locked(tmp_path: Path) -> None:
    box = make_box(tmp_path)
    assert "to compile" in box.rlbox("compile", "mine", "--dry-run").out
    refused = box.rlbox("fetch", "mine")
    assert (refused.code, refused.err) == (
        2,
        "rlbox: error: the lock of target mine is incomplete: small not compiled yet\n"
        "  where: images/mine/lock.json\n"
        "  next:  rlbox compile mine\n",
    )
    done = box.rlbox("compile", "mine", "--json")
    assert done.code == 0, done.err
    (row,) = json.loads(done.out)["wheels"]
    assert (row["state"], row["file"]) == ("compiled", "small-1.0-py3-none-any.whl")
    assert "✓ one.cpp" in done.err
    assert box.wheel()["sha256"] == row["sha256"]
    assert box.wheel()["source"] == f"compiled/{row['recipe']}"
    assert ObjectStore(Path(box.env["RLBOX_STORE"])).verify_and_mark_if_intact(row["sha256"], row["size"])
    again = box.rlbox("compile", "mine")
    assert "in the store" in again.out
    assert "compiling" not in again.err
    assert box.rlbox("lock", "mine", "--check", "--offline").code == 0


def test_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    """The source packs its wheel in an order of its own each time: what rlbox keeps does not depend on it."""
    box = make_box(tmp_path)
    done = box.rlbox("compile", "mine", "--verify")
    assert done.code == 0, done.err
    assert "the same twice" in done.out
    assert not list((box.cache / "work").glob("*/again"))


def test_what_differs_is_named(tmp_path: Path) -> None:
    body = UNITS + '    open("small.py", "w").write(str(time.time_ns()))\n'
    box = make_box(tmp_path, body)
    done = box.rlbox("compile", "mine", "--verify")
    assert done.code == 1
    assert "small compiled twice from one lock differs\n  small.py\n" in done.err
    assert box.lock()["groups"][0]["packages"][0]["name"] == "six"


def test_the_lock_keeps_its_wheel(tmp_path: Path) -> None:
    """Another machine, or another day: bytes that differ do not get into the lock unasked."""
    box = make_box(tmp_path, UNITS + '    open("small.py", "w").write(str(time.time_ns()))\n')
    assert box.rlbox("compile", "mine").code == 0
    first = box.wheel()["sha256"]
    ObjectStore(Path(box.env["RLBOX_STORE"])).remove(first)
    done = box.rlbox("compile", "mine")
    assert done.code == 1
    assert "small was compiled to other bytes than the lock has" in done.err
    assert "next:  rlbox compile mine small --replace" in done.err
    assert box.wheel()["sha256"] == first
    assert box.rlbox("compile", "mine", "--replace").code == 0
    assert box.wheel()["sha256"] != first


def test_a_killed_build_goes_on(tmp_path: Path) -> None:
    """kill -9 of rlbox ends the build with it; what two compilers had made is taken, torn copies are not."""
    waits = """
    unit("one.cpp")
    unit("two.cpp")
    while not os.path.exists("/mnt/rlbox/objects/go"):
        time.sleep(0.05)
    unit("three.cpp")
"""
    box = make_box(tmp_path, waits)
    process = box.begin("compile", "mine")
    told = box.cache / "work"
    wait_for(lambda: sum(path.read_text().count("made") for path in told.glob("*/box/units.log")) == 2)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) > 2
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert psutil.wait_procs(family, timeout=20)[1] == []

    objects = box.object_folder()
    assert len(object_names(box)) == 2
    (objects / f"{'a' * 64}.77").write_text("half")
    (objects / "go").touch()
    done = box.rlbox("compile", "mine")
    assert done.code == 0, done.err
    assert [line.split()[:2] for line in done.err.splitlines() if ".cpp" in line] == [
        ["=", "one.cpp"],
        ["=", "two.cpp"],
        ["✓", "three.cpp"],
    ]
    assert f"{'a' * 64}.77" not in object_names(box)


def test_two_at_once_compile_once(tmp_path: Path) -> None:
    box = make_box(tmp_path)
    processes = [box.begin("compile", "mine") for _ in range(2)]
    ends = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ends
    assert sorted("compiling small" in err for _, err in ends) == [False, True]


def test_it_sees_no_network_and_nothing_of_the_caller(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        body = f"""
    import socket
    for name in ("FOREIGN", "http_proxy", "PYTHONSTARTUP"):
        assert name not in os.environ, name
    assert os.getcwd() == "/mnt/rlbox/source", os.getcwd()
    assert os.listdir("/tmp") == [], os.listdir("/tmp")
    assert sys.prefix == sys.base_prefix, sys.prefix
    try:
        socket.create_connection(("127.0.0.1", {server.getsockname()[1]}), 5)
    except OSError:
        pass
    else:
        raise SystemExit("the machine's own loopback is there")
    for name in ("one.cpp", "two.cpp", "three.cpp"):
        unit(name)
"""
        box = make_box(tmp_path, body)
        box.env.update(FOREIGN="1", http_proxy="http://127.0.0.1:1")
        done = box.rlbox("compile", "mine")
    assert done.code == 0, done.err


@pytest.mark.parametrize(("body", "what", "next_step"), CASES["a_build_that_fails_says_why"])
def test_a_build_that_fails_says_why(tmp_path: Path, body: str, what: str, next_step: str) -> None:
    done = make_box(tmp_path, body).rlbox("compile", "mine")
    assert done.code == 1
    assert done.err.split("rlbox: error: ")[1].startswith(what)
    assert f"next:  {next_step}" in done.err
    assert "build.log" in done.err


def fat_binary(*archs: int) -> bytes:
    """The headers of a fat binary, with nothing in it; the first entry is PTX."""
    kinds = zip((1, 2, 2), archs, strict=False)
    entries = [struct.pack("<HHIQ12xI", kind, 0x101, 64, 8, arch).ljust(72, b"\0") for kind, arch in kinds]
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_a_wheel_for_another_gpu_is_refused(tmp_path: Path) -> None:
    with_kernels = f"""
    for name in ("one.cpp", "two.cpp", "three.cpp"):
        unit(name)
    open("small.so", "wb").write({fat_binary(90, 80)!r})
    global sorted
    files = sorted
    sorted = lambda names, key=None: files(("_small.so", "small.py", "small.so"))
"""
    box = make_box(tmp_path / "a", with_kernels, more='cuda = "13.0"', arch="sm_90")
    done = box.rlbox("compile", "mine")
    assert done.code == 1
    assert (
        "rlbox: error: small was compiled for sm_80, and not for sm_90\n"
        "  where: small-1.0-py3-none-any.whl\n"
        "  next:  set the variable by which its build takes architectures, in env of small in [[stack.compile]]; "
    ) in done.err
    fits = make_box(tmp_path / "b", with_kernels, more='cuda = "13.0"', arch="sm_80")
    assert fits.rlbox("compile", "mine").code == 0


def test_an_export_takes_it_to_another_machine(tmp_path: Path) -> None:
    box = make_box(tmp_path)
    assert box.rlbox("compile", "mine").code == 0
    wheel = box.wheel()
    out = tmp_path / "out"
    other = Box(folder=box.folder, env={**box.env, "RLBOX_STORE": str(tmp_path / "other")})
    refused = other.rlbox("fetch", "mine", "--place", "here")
    assert refused.code == 1
    assert "the store has no wheel of small, which is compiled, and fetched from nowhere" in refused.err
    prefix = tmp_path / "prefix"
    (tmp_path / "data").mkdir()
    applied = other.rlbox("apply", "mine", "--prefix", str(prefix), "--data", str(tmp_path / "data"))
    assert applied.code == 1
    assert "next:  rlbox compile mine, or rlbox fetch mine --import" in applied.err
    assert not prefix.exists()
    lock = box.folder.path / "images/mine/lock.json"
    whole = lock.read_text()
    rows = json.loads(whole)
    rows["groups"][0]["packages"] = [wheel]  # six and uv come from no index here
    lock.write_text(json.dumps(rows))
    try:
        assert box.rlbox("fetch", "mine", "--place", "here", "--export", str(out)).code == 0
        assert other.rlbox("fetch", "mine", "--place", "here", "--import", str(out)).code == 0
    finally:
        lock.write_text(whole)
    assert "in the store" in other.rlbox("compile", "mine").out
    assert ObjectStore(tmp_path / "other").verify_and_mark_if_intact(wheel["sha256"])


def test_a_library_that_was_linked_behind_its_back(tmp_path: Path) -> None:
    """What is left out would be undefined in it, which nobody sees before it is imported."""
    box = make_box(tmp_path, '    made.append("three.cpp")', more='units = ["one*"]')
    linked = box.rlbox("compile", "mine")
    assert linked.code == 0, linked.err
    behind = '    made.append("three.cpp")\n    os.environ["PATH"] = "/usr/bin:/bin"'
    done = make_box(tmp_path / "behind", behind, more='units = ["one*"]').rlbox("compile", "mine")
    assert done.code == 1
    assert "the library of small was linked by a linker that rlbox does not intercept" in done.err
