"""What `rlbox doctor` advises of a container is done, and then it finds it no more: the rows of `next_container.toml`.

The containers are of an image of a few files, with the programs of this machine and this rlbox mounted: each takes a
second.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from enginebox import CHECKOUT, Result, docker
from following import Follow, findings
from wheelbox import make_wheel

from rlbox.config.toml_files import load_toml

TABLE = load_toml(Path(__file__).with_name("next_container.toml"))
ROWS: list[dict[str, Any]] = TABLE["rows"]
LINES: list[dict[str, Any]] = TABLE["lines"]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
SITE = f"/opt/venv/lib/python{PYTHON}/site-packages"
_OPTION = re.compile(r"--[a-z-]+[= ]\S*\d[a-z]?\b|--init\b")
HELLO = hashlib.sha256(b"hello").hexdigest()
Start = Callable[..., "Container"]


class Container:
    """A container in which somebody types."""

    def __init__(self, name: str, environ: list[str]) -> None:
        self.name, self._environ = name, environ

    def shell(self, text: str) -> None:
        """Type a text as root; the variables it exports are there from then on."""
        done = self._typed("0", "sh", "-c", f"{{ {text}\n}} >&2 && env -0")
        assert done.code == 0, (text, done.err)
        self._environ = [f"--env={line}" for line in done.out.split("\0") if line]

    def rlbox(self, line: str, user: str = "0") -> Result:
        """Type a line that begins with `rlbox`."""
        return self._typed(user, "sh", "-c", f'rlbox() {{ {sys.executable} -m rlbox "$@"; }}; {line}')

    def _typed(self, user: str, *words: str) -> Result:
        argv = ["docker", "exec", f"--user={user}", *self._environ, self.name, *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
        assert done.returncode != 137, docker("inspect", "--format={{json .State}}", self.name)  # somebody killed it
        return Result(code=done.returncode, out=done.stdout, err=done.stderr)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image with a stack of one package, whose wheel lies in /wheels."""
    root = tmp_path_factory.mktemp("root")
    venv.EnvBuilder(symlinks=True).create(root / "opt/venv")
    for name in ("etc", "opt/rlbox/share", "tmp", "wheels", "store/names", f"store/objects/sha256/{HELLO[:2]}"):
        (root / name).mkdir(parents=True)
    (root / f"store/objects/sha256/{HELLO[:2]}/{HELLO}").write_text("hello")
    (root / "tmp").chmod(0o1777)
    (root / "etc/passwd").write_text("root:x:0:0::/tmp:/bin/sh\nsomebody:x:1000:1000::/tmp:/bin/sh\n")
    locked = {"python": PYTHON, "groups": [{"packages": [{"name": "alpha", "version": "1.0"}]}]}
    (root / "opt/rlbox/share/lock.json").write_text(json.dumps(locked))
    (root / "opt/rlbox/share/fixes.json").write_text(json.dumps({"target": "mine", "facts": {}}))
    file, wheel = make_wheel("alpha", "1.0")
    (root / "wheels" / file).write_bytes(wheel)
    uv = [str(Path(sys.prefix, "bin/uv")), "pip", "install", "--offline", "--no-index", "--link-mode=copy"]
    subprocess.run([*uv, f"--python={root}/opt/venv/bin/python", root / "wheels" / file], check=True, timeout=60)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(root, arcname=".")
    tag = f"rlbox-tests/next-doctor-{os.getpid()}"
    subprocess.run(["docker", "import", "-", tag], input=packed.getvalue(), check=True, capture_output=True, timeout=60)
    yield tag
    docker("image", "rm", "--force", tag)


@pytest.fixture
def start(image: str, tmp_path: Path) -> Iterator[Start]:
    """Start a container with options of `docker run`; all are removed at the end."""
    started: list[str] = []
    own = (sys.prefix, sys.base_prefix, str(CHECKOUT), "/usr", *map(str, Path("/").glob("lib*")), "/bin")
    mounts = [f"--volume={os.path.realpath(path)}:{path}:ro" for path in dict.fromkeys(own)]
    environ = {
        "PATH": "/opt/venv/bin:/usr/sbin:/usr/bin:/bin:" + str(Path(sys.prefix, "bin")),
        "PYTHONPATH": str(CHECKOUT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "UV_OFFLINE": "1",
        "UV_NO_INDEX": "1",
        "UV_FIND_LINKS": "/wheels",
        "VIRTUAL_ENV": "/opt/venv",
    }

    def begin(*options: str, **more: str) -> Container:
        given = [f"--env={name}={value}" for name, value in {**environ, **more}.items()]
        words = [option.replace("FOLDER", str(tmp_path)).replace("TESTS", f"{CHECKOUT}/tests") for option in options]
        started.append(docker("run", "--detach", "--workdir=/tmp", *mounts, *words, image, "sleep", "600").strip())
        return Container(started[-1], given)

    yield begin
    if started:
        docker("rm", "--force", *started)


DRIVER = """
#include <fcntl.h>
static int there(const char *path) { return open(path, O_RDWR) >= 0; }
int cuDriverGetVersion(int *version) { *version = 99000; return 0; }
int cuInit(unsigned flags) { return !there("/dev/nvidia0") ? 999 : !there("/dev/nvidia-uvm") ? 46 : 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuGetErrorName(int code, const char **name) { *name = code ? "CUDA_ERROR" : "CUDA_SUCCESS"; return 0; }
"""
NVML = """
def nvmlInit():
    open("/dev/nvidiactl").close()
def nvmlDeviceGetCount():
    return 0
"""


def driver(folder: Path) -> dict[str, str]:
    """Make what stands for a GPU's driver; return the options with which a container has it, and its devices."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("this machine has no C++ compiler")
    library = folder / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=DRIVER, text=True, check=True)
    (folder / "pynvml.py").write_text(NVML)
    devices = {f"--device=/dev/null:/dev/{name}": "" for name in ("nvidia0", "nvidia-uvm", "nvidiactl")}
    return {"--env": f"LD_LIBRARY_PATH={folder}", "--volume": f"{folder}:{folder}:ro", **devices}


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['finding']}{row.get('way', '')}" for row in ROWS])
def test_what_is_found_is_mended(row: dict[str, Any], follow: Follow, start: Start, tmp_path: Path) -> None:
    usual = {"--tmpfs": "/data:size=16m", "--shm-size": "64m", "--network": "none"}
    needs = {"run": {"shm_gib": 0.05}, "disk": {"need_gib": 0.001}, **row.get("needs", {})}
    options = {**usual, **row.get("options", {}), **(driver(tmp_path) if "driver" in row else {})}
    line, user = row.get("typed", "rlbox doctor"), row.get("user", "0")
    more = {"RLBOX_LIMITS": json.dumps(needs)} | ({"PYTHONPATH": f"{CHECKOUT}:{tmp_path}"} if "driver" in row else {})
    box = start(*as_words(options), **more)
    box.shell(row.get("made", "true"))
    said = box.rlbox(line, user)
    step = follow.found((line,), said, row["finding"])
    if "then" in row:
        advised = dict(re.split("[= ]", found, maxsplit=1) for found in map(with_value, _OPTION.findall(step.text)))
        box = start(*as_words({**options, **advised, **row["then"]}), **more)
    else:
        box.shell(row.get("done") or step.shell())
    again = box.rlbox(line, user)
    assert row["finding"] not in findings(again), again.out
    assert again.code <= said.code


@pytest.mark.parametrize("row", LINES, ids=[row["typed"] for row in LINES])
def test_a_line_is_typed_again(row: dict[str, Any], follow: Follow, start: Start) -> None:
    options = {"--tmpfs": "/data:size=16m", "--network": "none", **row.get("options", {})}
    box = start(*as_words(options))
    user, line = row.get("user", "0"), row["typed"]
    box.shell(row.get("made", "true").replace("PYTHON ", f"{sys.executable} ").replace("TESTS", f"{CHECKOUT}/tests"))
    step = follow.step((line,), box.rlbox(line, user))
    if "then" in row:
        box = start(*as_words({**options, **row["then"]}))
    box.shell(row.get("done", "true"))
    if "fill" in row:
        line = " ".join([line, *step.options(row["fill"])])
    line = line.replace(*row.get("instead", ("", "")))
    follow.rlbox = lambda *words: box.rlbox(words[0], row.get("as", user))
    follow.changed(step, [line], row.get("code", 0))


def test_a_full_disk_of_the_cache_stops_nothing(start: Start) -> None:
    box = start("--tmpfs=/data:size=1m", XDG_CACHE_HOME="/data")
    box.shell("head -c 2000000 /dev/zero > /data/old || true")
    assert box.rlbox("rlbox show local").code == 0


def test_a_container_of_an_image_of_rlbox_is_examined(follow: Follow, start: Start) -> None:
    box = start("--tmpfs=/data:size=16m", "--network=none")
    follow.rlbox = lambda *words: box.rlbox(f"RLBOX_DATA=/data rlbox {' '.join(words)}")
    step = follow("apply", "local", "--offline", "--yes")
    (command,) = step.commands({})
    said = follow.rlbox(*command)
    assert "examined" in said.out or findings(said), said


def with_value(option: str) -> str:
    return option if "=" in option or " " in option else f"{option}="


def as_words(options: dict[str, str]) -> list[str]:
    """Return options as words; one whose value is `no` is left out."""
    return [f"{name}={value}" if value else name for name, value in options.items() if value != "no"]
