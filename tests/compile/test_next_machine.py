"""What `rlbox compile` advises of the machine and of what a build needs is done: machines that lack one thing each."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from compilebox import PYTHON, SPEC, UNITS, Box, make_box, needs_spaces
from fakes import UV_WHEEL, Said
from following import Follow
from test_next_compile import SITUATIONS
from wheelbox import make_wheel

from rlbox.artifacts.object_store import Store
from rlbox.engine.oci import CONFIG, LAYER, describe, image_manifest, sha256_of

pytestmark = pytest.mark.usefixtures("spaces")
NO_SPACES = """
cd /proc/sys/user && for kind in user mnt pid net; do echo 0 > max_${kind}_namespaces; done && exec "$@"
"""
WITHOUT = """
mount -t tmpfs tmpfs /srv && mkdir /srv/up /srv/work && for name in $LACKS; do mknod /srv/up/$name c 0 0; done &&
mount -t overlay overlay -o lowerdir=/usr/bin,upperdir=/srv/up,workdir=/srv/work /usr/bin && exec "$@"
"""
NVCC = "#!/bin/sh\necho release 13.0\n"


@pytest.fixture(scope="module")
def spaces() -> None:
    needs_spaces()


def on(box: Box, machine: Sequence[str]) -> Callable[..., Said]:
    """Return the command line on another machine: what its words make of this one."""

    def rlbox(*words: str) -> Said:
        argv = [*machine, sys.executable, "-m", "rlbox", *words, "--project", str(box.folder.path)]
        done = subprocess.run(argv, env=box.env, cwd=box.folder.path, capture_output=True, text=True, timeout=300)
        return Said(code=done.returncode, out=done.stdout, err=done.stderr)

    return rlbox


def test_what_has_no_namespaces_gets_the_wheel(follow: Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a lock names goes with it: the base image is one of no bytes, which the store has."""
    image = [describe(b"{}", CONFIG), describe(b"layer", f"{LAYER}+gzip")]
    base = image_manifest(image[0], image[1:])
    digest = sha256_of(base).removeprefix("sha256:")
    monkeypatch.setattr("compilebox.SPEC", SPEC.replace("0123456789abcdef" * 4, digest))
    box = make_box(tmp_path)
    lock = {**box.lock(), "groups": [{"name": "tools", "packages": []}]}
    (box.folder.path / "images/mine/lock.json").write_text(json.dumps(lock))
    follow.rlbox = walled = on(box, ["unshare", "--user", "--map-root-user", "sh", "-c", NO_SPACES, "sh"])
    step = follow("compile", "mine")
    follow.rlbox = box.rlbox
    follow.again(step)  # on one that does
    store = Store(Path(box.env["RLBOX_STORE"]))
    for body in (UV_WHEEL, base, b"{}", b"layer"):
        name = sha256_of(body).removeprefix("sha256:")
        (tmp_path / name).write_bytes(body)
        store.adopt(tmp_path / name, name)
    (tmp_path / "out").mkdir()
    (export,) = step.commands({"TARGET": "mine"})
    follow.changed(step, [*export, str(tmp_path / "out")], 0)
    box.env["RLBOX_STORE"] = str(tmp_path / "other")
    follow.rlbox = walled
    follow.changed(step, ["fetch", "mine", "--import", str(tmp_path / "out")], 0)
    assert Store(tmp_path / "other").path(box.wheel()["sha256"]).is_file()


def test_a_compiler_is_installed(follow: Follow, tmp_path: Path) -> None:
    box = make_box(tmp_path)
    follow.rlbox = on(box, ["unshare", "--mount", "sh", "-c", WITHOUT, "sh"])
    box.env["LACKS"] = "g++ c++"
    step = follow("compile", "mine")
    (package,) = re.findall(r"apt-get install (\S+)", step.text)
    files = subprocess.run(["dpkg", "-L", package], capture_output=True, text=True, check=True).stdout
    assert "/usr/bin/g++" in files.splitlines()
    box.env["LACKS"] = ""
    follow.again(step)


@pytest.fixture
def programs() -> Iterator[Path]:
    """A folder with the programs of this machine, but no Python, where a build sees it."""
    with tempfile.TemporaryDirectory(prefix="rlbox-next-", dir="/var/tmp") as made:
        for place in ("/usr/sbin", "/usr/bin"):
            for path in Path(place).iterdir():
                if not path.name.startswith(("python", "pypy")) and not Path(made, path.name).is_symlink():
                    Path(made, path.name).symlink_to(path)
        yield Path(made)


@pytest.fixture
def bare(follow: Follow, tmp_path: Path, programs: Path) -> Box:
    """A project on a machine without Python, which uv may not bring."""
    box = make_box(tmp_path)
    box.env.update({"PATH": str(programs), "UV_PYTHON_INSTALL_DIR": str(tmp_path / "none")})
    box.env.pop("VIRTUAL_ENV", None)
    follow.rlbox = on(box, [])
    return box


def own_python() -> Path:
    """This machine's Python, of no virtual environment."""
    return Path(os.path.realpath(Path(sys.base_prefix, "bin", f"python{PYTHON}")))


def test_python_is_installed(follow: Follow, bare: Box, programs: Path) -> None:
    step = follow("compile", "mine")
    (version,) = re.findall(r"install Python (\S+)", step.text)
    (programs / f"python{version}").symlink_to(own_python())
    follow.again(step)


@pytest.fixture
def hidden() -> Iterator[Path]:
    """A folder of which a build has one of its own."""
    with tempfile.TemporaryDirectory(prefix="rlbox-next-", dir="/tmp") as made:
        yield Path(made)


def test_python_is_installed_where_a_build_sees_it(follow: Follow, bare: Box, programs: Path, hidden: Path) -> None:
    (hidden / "bin").mkdir()
    (hidden / "lib").mkdir()
    shutil.copy(own_python(), hidden / f"bin/python{PYTHON}")
    (hidden / f"lib/python{PYTHON}").symlink_to(Path(sys.base_prefix, f"lib/python{PYTHON}"))
    link = programs / f"python{PYTHON}"
    link.symlink_to(hidden / f"bin/python{PYTHON}")
    step = follow("compile", "mine")
    link.unlink()
    link.symlink_to(own_python())
    follow.again(step)


def test_what_a_build_imports_is_added_to_its_needs(follow: Follow, tmp_path: Path) -> None:
    body = f"{UNITS}    import gathered\n"
    box = make_box(tmp_path, body)
    follow.rlbox = box.rlbox
    step = follow("compile", "mine")
    (name,) = re.findall(r"what brings (\w+) to its (?:needs)", step.text)
    make_box(tmp_path, body, needs=f'"{name}"', tools=(make_wheel(name, "1.0"),))
    follow.again(step)


def test_a_cuda_compiler_is_set(follow: Follow, tmp_path: Path) -> None:
    body = SITUATIONS["another GPU"].body + '    subprocess.run(["nvcc", "--version"], check=True)\n'
    box = make_box(tmp_path, body, 'env = { SMALL_FOR = "90" }', "sm_90")
    follow.rlbox = box.rlbox
    step = follow("compile", "mine")
    (line,) = re.findall(r'set (cuda = "\d+\.\d+")', step.text)
    wheel = make_wheel("nvidia_cuda_nvcc", "1.0", **{"nvidia/cu13/bin/nvcc": NVCC})
    make_box(tmp_path, body, f'{line}\nenv = {{ SMALL_FOR = "90" }}', "sm_90", tools=(wheel,))
    follow.again(step)


INCLUDES = 'open("one.cpp", "w").write("#include <cudnn.h>\\nint one() { return CUDNN; }")\n' + UNITS


def with_header(path: Path, folder: str, more: str = "") -> Box:
    """A source that includes cudnn.h, which a wheel that its build imports has in `folder`."""
    wheel = make_wheel("nvidia_cudnn", "1.0", **{f"{folder}/cudnn.h": "#define CUDNN 9\n"})
    return make_box(path, INCLUDES, more, needs='"nvidia-cudnn"', tools=(wheel,))


def test_the_headers_of_cuda_wheels_are_found(follow: Follow, tmp_path: Path) -> None:
    """Without a CPATH in the spec."""
    box = make_box(tmp_path, INCLUDES)
    follow.rlbox = box.rlbox
    step = follow("compile", "mine")
    assert "cudnn.h to needs" in step.text
    with_header(tmp_path, "nvidia/cudnn/include")
    follow.again(step)


def test_a_header_of_another_folder_is_named(follow: Follow, tmp_path: Path) -> None:
    box = with_header(tmp_path, "third/include")
    follow.rlbox = box.rlbox
    step = follow("compile", "mine")
    (line,) = re.findall(r'set (CPATH = "[^"]+")', step.text)
    with_header(tmp_path, "third/include", f"env = {{ {line} }}")
    follow.again(step)
