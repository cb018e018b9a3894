"""`rlbox apply --unpack`: a framework's image, unpacked from a registry without an engine, used and taken away."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from applybox import HOLDS, PYTHON, give, hold
from fakes import Folder, Rlbox, Said
from following import Follow
from layerbox import Entry, files_layer, image_of, layer, package, python_files
from registry_server import Fault, RegistryServer
from registry_server import running as running_registry

from rlbox.artifacts.objects import Store
from rlbox.engine import oci
from rlbox.system.files import cache_path

pytestmark = pytest.mark.allow("processes", "sockets")

ENV = (
    "PATH=/usr/local/cuda/bin:/opt/gone/bin:/usr/local/bin:/usr/bin:/bin",
    "LD_LIBRARY_PATH=/usr/local/cuda/lib64:/usr/lib/x86_64-linux-gnu:/usr/local/nvidia/lib",
    "CUDA_HOME=/usr/local/cuda",
    "CUDA_VERSION=12.9.1",
    "PYTHONPATH=/src/megatron",
    "DEBIAN_FRONTEND=noninteractive",
    "NVIDIA_VISIBLE_DEVICES=all",
    "HOME=/root",
)
NEEDS = """import ctypes
try:
    ctypes.CDLL('libframework.so.1')
except OSError as error:
    raise SystemExit(str(error))
"""
"""What an interpreter does that is linked with a library of the image: without it, it does not start."""

TORCH = "__version__ = '2.9.1+cu129'\n"


def framework(number: str, site: str) -> tuple[Entry, ...]:
    """The layer with the framework: packages, one of them installed as a link to its sources, programs, CUDA."""
    return (
        ("usr/bin/python3", f"-> /etc/alternatives/python{number}"),
        (f"etc/alternatives/python{number}", f"-> /usr/bin/python{number}"),
        (f"usr/lib/python{number}/sitecustomize.py", NEEDS),
        ("etc/ld.so.conf", "# as on Red Hat\ninclude ld.so.conf.d/*.conf\n"),
        ("etc/ld.so.conf.d/framework.conf", "# the framework's\n/usr/local/framework/lib\n"),
        *package(site, "torch", "2.9.0", "old = True\n"),
        *package(site, "flash-attn", "2.8.1", "never = 1\n"),
        (f"{site}/__editable__.flash_attn.pth", "/src/flash\n"),
        (f"{site}/torch/lib/libbundled.so.1", "of the package"),
        (f"usr/include/{os.uname().machine}-linux-gnu/python{number}/pyconfig.h", "of the image"),
        ("usr/local/framework/lib/libbundled.so.1", "of the system"),
        ("src/flash/flash_attn/__init__.py", "import torch\nwhere = __file__\n"),
        ("src/megatron/megatron.py", "where = __file__\n"),
        ("usr/local/cuda-12/bin/nvcc", "#!/bin/sh\necho nvcc of the image\n"),
        ("usr/local/cuda-12/lib64/libcublas.so.12", "x"),
        ("usr/local/cuda", "-> /usr/local/cuda-12"),
        ("usr/local/bin/torchrun", "#!/usr/bin/python3 -E\nimport torch\nprint(torch.__version__)\n"),
    )


@pytest.fixture(scope="module")
def layers() -> tuple[bytes, ...]:
    """Three layers: a Python, a framework on it, and one that takes away and replaces what those have."""
    files, site = python_files()
    library = next(path for path in files.values() if ".so" in path.name and "_struct" not in path.name)
    second = layer(
        *framework(PYTHON, site), modes={"usr/local/bin/torchrun": 0o755, "usr/local/cuda-12/bin/nvcc": 0o755}
    )
    third = (
        (f"{site}/.wh.torch-2.9.0.dist-info", ""),
        (f"{site}/.wh.flash_attn", ""),
        *package(site, "torch", "2.9.1+cu129", TORCH),
    )
    first = files_layer({**files, "usr/local/framework/lib/libframework.so.1": library})
    return first, second, layer(*third, packed="zstd")


@pytest.fixture
def registry(layers: tuple[bytes, ...]) -> Iterator[RegistryServer]:
    """A registry that has the image."""
    with running_registry() as made:
        yield made


@pytest.fixture
def prefix(folder: Folder, registry: RegistryServer, layers: tuple[bytes, ...], tmp_path: Path) -> Path:
    """Where the target is applied; it, its lock and the data disk are there."""
    (tmp_path / "disk").mkdir()
    digest = registry.add_manifest("v1", image_of(registry.add_blob, layers, ENV), oci.MANIFEST)
    lock = give(folder.path, Store(cache_path("store")), {"alpha": "1.0"}, patched=False)
    hold(folder.path, lock, f"{registry.host}/team/framework@{digest}")
    return tmp_path / "place"


Apply = Callable[..., Said]


@pytest.fixture
def apply(rlbox: Rlbox, prefix: Path) -> Apply:
    def apply(*more: object) -> Said:
        return rlbox("apply", "held", *words(prefix), *map(str, more))

    return apply


def words(prefix: Path) -> tuple[str, ...]:
    return ("--prefix", str(prefix), "--data", str(prefix.parent / "disk"))


def asked(prefix: Path, *words: str) -> str:
    """What a program prints in the environment of the place, whatever the shell exports."""
    argv = ["sh", f"{prefix}/opt/rlbox/libexec/entrypoint.sh", *words]
    plain = {"PATH": "/usr/bin:/bin", "HOME": str(prefix.parent), "PYTHONDONTWRITEBYTECODE": "1", "CUDA_HOME": "/cuda"}
    done = subprocess.run(argv, env=plain, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def snapshot(folder: Path) -> dict[Path, int]:
    return {path: path.lstat().st_mtime_ns for path in folder.rglob("*") if "__pycache__" not in str(path)}


def test_the_image_is_unpacked_proven_used_and_taken_away(apply: Apply, prefix: Path, registry: RegistryServer) -> None:
    refused = apply()
    assert (refused.code, f"rlbox apply held --prefix {prefix} --unpack" in refused.err) == (5, True)
    dry = apply("--unpack", "--dry-run", "--json")
    assert [step["kind"] for step in dry.data["steps"]][:2] == ["base", "environment"]
    assert (prefix.exists(), registry.seen) == (False, [])
    first = apply("--unpack", "--json")
    assert (first.code, first.data["state"]) == (0, "applied"), first.out
    root = prefix / "opt/rlbox/base/image"
    assert f"importing 2 packages of {root}/usr/bin/python3" in first.err
    script = "import alpha, torch, flash_attn, megatron; print(alpha.__version__, torch.__version__, flash_attn.where)"
    assert asked(prefix, "python", "-c", script) == f"1.0 2.9.1+cu129 {root}/src/flash/flash_attn/__init__.py"
    _check_environment(prefix, root)
    before = snapshot(prefix)
    second = apply("--json")
    assert (second.code, second.data["state"], second.data["steps"]) == (0, "unchanged", [])
    assert snapshot(prefix) == before
    assert apply("--check").code == 0
    assert apply("--remove").code == 0
    assert not (prefix / "opt").exists()


def _check_environment(prefix: Path, root: Path) -> None:
    """It is the image's, with its own folders; what is the machine's or the user's stays theirs."""
    said = dict(line.split("=", 1) for line in asked(prefix, "env").splitlines() if "=" in line)
    assert said["CUDA_HOME"] == f"{root}/usr/local/cuda"
    assert (said["CUDA_VERSION"], said["HOME"]) == ("12.9.1", str(prefix.parent))
    assert not {"DEBIAN_FRONTEND", "NVIDIA_VISIBLE_DEVICES"} & set(said)
    folders = said["PATH"].split(":")
    assert [folder for folder in folders if folder.startswith(str(root))] == [
        f"{root}/usr/local/cuda/bin",
        f"{root}/usr/local/bin",
    ]
    assert folders.index(f"{prefix}/opt/venv/bin") < folders.index(f"{root}/usr/local/cuda/bin")
    libraries = prefix / "opt/rlbox/base/lib"
    assert said["LD_LIBRARY_PATH"] == f"{root}/usr/local/cuda/lib64:{libraries}"
    header = Path(said["CPATH"], f"{os.uname().machine}-linux-gnu/python{PYTHON}/pyconfig.h")
    assert header.read_text() == "of the image"
    assert said["PYTHONPATH"] == f"{root}/src/megatron"
    assert asked(prefix, "nvcc") == "nvcc of the image"
    assert asked(prefix, "torchrun") == "2.9.1+cu129"
    shown = {path.name for path in libraries.iterdir()}
    assert "libframework.so.1" in shown
    assert not shown & {"libbundled.so.1", "libc.so.6"}


KILLS = {
    "in the first layer": ("rlbox.artifacts.layers", "_Tree.lay", 200),
    "before the second layer is noted": ("rlbox.provision.unpack", "write_note", 2),
    "in the last layer": ("rlbox.provision.unpack", "lay_layer", 3),
    "before the files lead there": ("rlbox.provision.unpack", "_settle", 1),
    "before it is there": ("rlbox.provision.unpack", "remove_tree", 3),
}
KILLED = """
import importlib, os, signal, sys
module, name, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
owner, left = importlib.import_module(module), number
*above, last = name.split(".")
for part in above:
    owner = getattr(owner, part)
real = getattr(owner, last)
def counted(*words, **more):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*words, **more)
setattr(owner, last, counted)
from rlbox.cli import main
sys.exit(main(sys.argv[4:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", KILLS)
def test_killed_anywhere_it_goes_on(
    apply: Apply, prefix: Path, folder: Folder, registry: RegistryServer, layers: tuple[bytes, ...], when: str
) -> None:
    argv = [sys.executable, "-c", KILLED, *map(str, KILLS[when]), "apply", "held", "--unpack", *words(prefix)]
    done = subprocess.run([*argv, "--project", str(folder.path)], env={**os.environ}, capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    base = prefix / "opt/rlbox/base"
    assert not base.exists()
    asked_before = len(registry.seen)
    assert "half unpacked" in apply("--dry-run").out
    said = apply("--json", "-v")
    assert (said.code, said.data["state"]) == (0, "applied"), said.out
    assert len(registry.seen) == asked_before
    laid = {"before the second layer is noted": 2, "in the last layer": 1, "in the first layer": 3}.get(when, 0)
    assert said.err.count("unpacking layer") == laid
    assert tree_of(base / "image") == whole(layers)
    assert [path.name for path in base.parent.glob("base*")] == ["base"]
    assert apply("--json").data["steps"] == []


def tree_of(root: Path) -> set[str]:
    found = {path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir() or path.is_symlink()}
    return {name for name in found if "__pycache__" not in name}


def whole(layers: tuple[bytes, ...]) -> set[str]:
    """The files that the image has at last."""
    with tarfile.open(fileobj=io.BytesIO(layers[0])) as tar:
        found = {member.name for member in tar if not member.isdir()}
    found |= {name for name, _ in framework(PYTHON, python_files()[1])}
    site = python_files()[1]
    gone = (f"{site}/torch-2.9.0.dist-info/", f"{site}/flash_attn/")
    found |= {name for name, _ in package(site, "torch", "2.9.1+cu129", "")}
    return {name for name in found if not name.startswith(gone)}


@pytest.mark.slow
def test_a_registry_that_breaks_or_lies_leaves_nothing_half(
    apply: Apply, prefix: Path, registry: RegistryServer, layers: tuple[bytes, ...]
) -> None:
    digest = oci.sha256_of(layers[1])
    registry.faults = [Fault("GET", digest, body=b"x" * len(layers[1]), times=99)]
    said = apply("--unpack")
    assert (said.code, "the registry gave other bytes than asked for" in said.err) == (6, True), said.err
    assert not prefix.exists()
    registry.faults = [Fault("GET", digest, status=0, times=99)]
    said = apply("--unpack")
    assert (said.code, "cannot be fetched" in said.err) == (6, True)
    assert not prefix.exists()
    registry.faults, registry.seen = [], []
    assert apply("--unpack").code == 0
    assert registry.count("GET", oci.sha256_of(layers[0])) == 0  # it was there already


def test_a_disk_without_room_is_told_before_a_layer_comes(
    apply: Apply, prefix: Path, registry: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlbox.provision.unpack.free_bytes", lambda path: 20_000_000)
    said = apply("--unpack")
    assert said.code == 5
    assert "the disk is too full for the base image: 20.0 MB free, about " in said.err
    assert (registry.count("GET", "/manifests/"), registry.count("GET", "/blobs/")) == (1, 0)
    assert not prefix.exists()


def test_a_layer_that_is_no_layer(apply: Apply, prefix: Path, registry: RegistryServer, folder: Folder) -> None:
    bad = layer(("../outside", "planted"))
    digest = registry.add_manifest("bad", image_of(registry.add_blob, [bad], ENV), oci.MANIFEST)
    lock = give(folder.path, Store(cache_path("store")), {"alpha": "1.0"}, patched=False)
    hold(folder.path, lock, f"{registry.host}/team/framework@{digest}")
    said = apply("--unpack")
    assert (said.code, "layer 1 holds what no image can: '../outside' leads out of it" in said.err) == (1, True)
    assert apply("--remove").code == 0
    assert not (prefix / "opt").exists()


@pytest.mark.slow
def test_an_image_with_other_versions_or_a_broken_package_is_refused(
    apply: Apply, prefix: Path, registry: RegistryServer, layers: tuple[bytes, ...], folder: Folder
) -> None:
    site = python_files()[1]
    store = Store(cache_path("store"))
    other = (*package(site, "torch", "2.9.2", TORCH), (f"{site}/.wh.torch-2.9.1+cu129.dist-info", ""))
    broken = (("src/flash/flash_attn/__init__.py", "import nowhere\n"),)
    mute = ((f"etc/alternatives/python{PYTHON}", "no program"),)
    for entries, says in (
        (mute, "the unpacked base image does not run on this machine: "),
        (other, "base image: torch is 2.9.2, and 2.9.1+cu129 is wanted"),
        (broken, "does not work: flash-attn: ModuleNotFoundError: No module named 'nowhere'"),
    ):
        made = image_of(registry.add_blob, [*layers, layer(*entries)], ENV)
        image = f"{registry.host}/team/framework@{registry.add_manifest('other', made, oci.MANIFEST)}"
        hold(folder.path, give(folder.path, store, {"alpha": "1.0"}, patched=False), image)
        said = apply("--unpack")
        assert (said.code, says in said.err) == (5, True), said.err
        assert not (prefix / "opt/venv").exists()
    assert apply("--remove").code == 0
    assert not (prefix / "opt").exists()


@pytest.mark.slow
def test_another_image_takes_the_place_of_the_first(
    apply: Apply, prefix: Path, registry: RegistryServer, layers: tuple[bytes, ...], folder: Folder
) -> None:
    assert apply("--unpack").code == 0
    digest = registry.add_manifest(
        "v2", image_of(registry.add_blob, [*layers, layer(("etc/new", "x"))], ENV), oci.MANIFEST
    )
    lock = give(folder.path, Store(cache_path("store")), {"alpha": "1.0"}, patched=False)
    hold(folder.path, lock, f"{registry.host}/team/framework@{digest}")
    said = apply("--json")
    assert [step["old"] for step in said.data["steps"] if step["kind"] == "base"] == ["another image"]
    assert (prefix / "opt/rlbox/base/image/etc/new").read_text() == "x"
    assert apply("--json").data["steps"] == []


@pytest.mark.slow
def test_the_machines_own_instead(apply: Apply, prefix: Path, tmp_path: Path) -> None:
    """Whoever names an interpreter takes what that has, and the unpacked image goes."""
    assert apply("--unpack").code == 0
    root = prefix / "opt/rlbox/base/image"
    own = tmp_path / "own"
    subprocess.run(["cp", "-r", root, own], check=True)
    (own / python_files()[1] / "torch/__init__.py").write_text("__version__ = '2.9.1+cu129'\n")
    (own / f"usr/lib/python{PYTHON}/sitecustomize.py").write_text("")
    for path in own.rglob("*.pth"):
        path.write_text(path.read_text().replace(str(root), str(own)))
    said = apply("--python", own / f"usr/bin/python{PYTHON}", "--json")
    assert (said.code, said.data["state"]) == (0, "applied"), said.out
    assert not root.exists()
    assert asked(prefix, "python", "-c", "import sys, torch; print(sys.base_prefix)") == f"{own}/usr"
    assert apply("--json").data["steps"] == []


def test_what_cannot_be_asked_together(apply: Apply, rlbox: Rlbox, prefix: Path) -> None:
    assert apply("--unpack", "--python", sys.executable).code == 2
    assert apply("--unpack", "--accept", "torch==1").code == 2
    said = rlbox("apply", "small", "--unpack", *words(prefix))
    assert (said.code, "takes no package of a base image" in said.err) == (2, True)
    assert rlbox("fetch", "held", "--unpack").code == 2
    assert not prefix.exists()


def test_a_kit_for_a_machine_without_network(
    apply: Apply, rlbox: Rlbox, prefix: Path, registry: RegistryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = apply("--unpack", "--offline")
    assert (said.code, "rlbox fetch held --place here --unpack; without a network" in said.err) == (1, True)
    kits = {more: str(tmp_path / f"kit{len(more)}") for more in ((), ("--unpack",))}
    for more, kit in kits.items():
        assert rlbox("fetch", "held", "--place", "here", *more, "--export", kit).code == 0
        assert registry.count("GET") == (5 if more else 0)
    monkeypatch.setenv("RLBOX_STORE", str(tmp_path / "bare"))
    registry.seen = []
    lacks = rlbox("fetch", "held", "--place", "here", "--unpack", "--import", kits[()])
    assert (lacks.code, "rlbox fetch held --place here --unpack --export" in lacks.err) == (1, True)
    said = rlbox("fetch", "held", "--place", "here", "--unpack", "--import", kits["--unpack",])
    assert (said.code, "next: rlbox apply held --offline --unpack" in said.err) == (0, True), said.err
    assert apply("--unpack", "--offline").code == 0
    assert registry.seen == []


@pytest.mark.slow
def test_a_run_in_place_finds_the_image(apply: Apply, folder: Folder, prefix: Path) -> None:
    assert apply("--unpack").code == 0
    look = (
        "import alpha, flash_attn, os; print(alpha.__version__, flash_attn.torch.__version__, os.getenv('LD_PRELOAD'))"
    )
    job = 'title = "t"\ntarget = "held"\n[[stages]]\nname = "only"\ntitle = "both"\n'
    job += f'command = ["{{python}}", "-c", "{look}"]\n'
    folder.job("look", job + '[stages.gate]\nrequire = [{ pattern = "^1.0 2.9.1[+]cu129 None$" }]\n')
    argv = [sys.executable, "-m", "rlbox", "run", "look", "--place", "here", "--project", str(folder.path)]
    argv += ["--data", str(prefix.parent / "disk")]
    hostile: Mapping[str, str] = {"LD_PRELOAD": "/nowhere.so", "LD_LIBRARY_PATH": "/nowhere"}
    done = subprocess.run(argv, env={**os.environ, **hostile}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def held(prefix: Path, *more: str) -> tuple[str, ...]:
    return ("apply", "held", *words(prefix), *more)


def lay(folder: Folder, image: str) -> None:
    """Write the target on an image of the registry, and its lock."""
    hold(folder.path, give(folder.path, Store(cache_path("store")), {"alpha": "1.0"}, patched=False), image)


def test_another_disk_has_room_for_the_image(follow: Follow, prefix: Path, tmp_path: Path) -> None:
    (small := tmp_path / "small").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=True)
    try:
        step = follow(*held(small / "place", "--data", str(small), "--unpack"))
        follow.again(step, *step.options({"DIR": str(prefix.parent / "disk")}), "--prefix", str(prefix))
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_a_machine_whose_system_is_as_new(follow: Follow, prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as old:
        old.setattr("rlbox.provision.base_probe._libc", lambda: "glibc 2.5")
        step = follow(*held(prefix, "--unpack", "--dry-run"))
    follow.again(step)  # on this one


def test_what_is_taken_of_the_image_is_corrected(
    follow: Follow,
    prefix: Path,
    registry: RegistryServer,
    layers: tuple[bytes, ...],
    folder: Folder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = python_files()[1]
    other = layer(*package(site, "torch", "2.9.2", TORCH), (f"{site}/.wh.torch-2.9.1+cu129.dist-info", ""))
    image = added(registry, [*layers, other])
    lay(folder, image)
    step = follow(*held(prefix, "--unpack"))
    monkeypatch.setitem(HOLDS, "torch", "2.9.2")
    lay(folder, image)
    follow.again(step)


def test_another_image_is_taken_and_applied(
    follow: Follow, prefix: Path, registry: RegistryServer, layers: tuple[bytes, ...], folder: Folder
) -> None:
    broken = layer(("src/flash/flash_attn/__init__.py", "import nowhere\n"))
    lay(folder, added(registry, [*layers, broken]))
    step = follow(*held(prefix, "--unpack"))
    lay(folder, added(registry, layers))
    follow.again(step)
    stages = '[[stages]]\nname = "only"\ntitle = "t"\ncommand = ["true"]\n'
    folder.job("look", f'title = "t"\ntarget = "held"\n{stages}')
    lay(folder, added(registry, [*layers, layer(("etc/new", "x"))]))
    step = follow("run", "look", "--place", "here", "--data", str(prefix.parent / "disk"))
    follow.types(step)
    follow.changed(step, [*step.typed, "--dry-run"], 0)


def added(registry: RegistryServer, layers: Sequence[bytes]) -> str:
    """Put an image of these layers into the registry, and return its name."""
    made = image_of(registry.add_blob, list(layers), ENV)
    return f"{registry.host}/team/framework@{registry.add_manifest('another', made, oci.MANIFEST)}"
