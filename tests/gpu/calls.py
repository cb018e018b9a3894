"""`make gpu-proof-pack`: what a machine with GPUs and no network gets in calls of 64 MiB, and what is typed in each.

Each target of `project/` is brought to its lock here, by `rlbox apply` from the store; that place is packed
(`stack.py`), the tool's own wheels and the interpreter's Debian packages beside it, all of them files of the lock.
`.carry/tool` goes with the first call, `.carry/pNN` with the next ones, as many of them in one call as have room beside
the checkout. A call is made again where it was cut. The first starts `lanes.sh all`, which takes up what arrives.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import frame
import pack
import stack
import tomllib

from rlbox.artifacts.object_store import ObjectStore, resolve_store_dir
from rlbox.config.project import Project
from rlbox.target.lock import Lock, load_lock

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
PLACES = Path.home() / ".cache/rlbox/places"
"""Where places lie here and there: their programs name the folder."""
ENGINE = Path("/opt/rlbox-engine")  # where `rlbox engine up` unpacks one
LIBRARIES = ("libseccomp.so.2", "libsystemd.so.0")  # of that engine; the machine may have them
PROGRAMS = ("/usr/sbin/sshd", "/usr/bin/ssh", "/usr/bin/ssh-keygen", "/sbin/ip")  # the machine has none of them
OF_ITS_OWN = ("ld-linux", "libc.so", "libm.so", "libresolv.so", "linux-vdso")  # what belongs to a machine's C library
PYTHON_DEBS = ("python3.11", "libpython3.11", "python3-distutils", "python3-lib2to3")
PART = 21_000_000  # two beside the whole checkout, three where only tests/gpu is checked out
LIMIT = 64 << 20
BLOCK = 512
FLASH = "h100-flash"  # the target whose image is another one's with a compiled wheel
TAKE = "bash tests/gpu/machine.sh take"


def check_needs(args: argparse.Namespace) -> None:
    """Refuse to begin where something is missing that is wanted later; all of it is named."""
    programs = () if args.without_nodes else PROGRAMS
    missing = [
        f"{program}: apt-get install openssh-server iproute2" for program in programs if not Path(program).exists()
    ]
    missing += [f"{name}: apt-get install binutils" for name in ("strip",) if not shutil.which(name)]
    missing += [] if (ENGINE / "bin/dockerd").exists() else [f"an engine in {ENGINE}: rlbox engine up"]
    missing += [] if Path("/usr/bin/python3.11").exists() else ["/usr/bin/python3.11, the interpreter of the targets"]
    for name, target in _targets(args.work / "project"):
        lock = _lock(args.work / "project", name)
        store = ObjectStore(resolve_store_dir(None), seals=False)
        trees = [tree.name for tree in lock.git if not store.verify_and_mark_if_intact(tree.sha256, tree.size)]
        missing += [f"{', '.join(trees)} in the store: rlbox fetch {target}"] if trees else []
    if missing:
        sys.exit("calls: error: this machine lacks\n  " + "\n  ".join(missing))


def _targets(project: Path) -> list[tuple[str, str]]:
    order = tomllib.loads((HERE / "stacks.toml").read_text("utf-8"))["order"]
    return [(name, stack.shipped(Project(folder=project), name)) for name in order]


def _lock(project: Path, name: str) -> Lock:
    lock = load_lock(Project(folder=project).own_or_shipped_lock_file(name))
    assert lock
    return lock


def _rlbox(*words: str, rc: tuple[int, ...] = (0,)) -> None:
    done = subprocess.run([sys.executable, "-m", "rlbox", *words], cwd=CHECKOUT, check=False)
    if done.returncode not in rc:
        sys.exit(f"calls: error: rlbox {' '.join(words)} ended with {done.returncode}")


def make_places(work: Path) -> None:
    """Bring every target to its lock here, as `apply` does it anywhere."""
    for name, _ in _targets(work / "project"):
        where = [
            "--prefix",
            str(PLACES / name),
            "--data",
            str(work / "data"),
            "--project",
            str(work / "project"),
            "--offline",
        ]
        (work / "data").mkdir(exist_ok=True)
        _rlbox("fetch", name, "--place", "here", "--project", str(work / "project"), "--sources", "direct", "--quiet")
        _rlbox("apply", name, *where, "--yes", "--no-packages", "--quiet", rc=(0, 1))  # 1: checks that want a GPU
        _rlbox("apply", name, *where, "--check", "--no-packages", "--quiet")


def machine_wheels(work: Path, told: dict[str, Any]) -> Path:
    """Return a folder with the wheels that the machine has for its Python 3.12."""
    folder = work / "machine"
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (28, 27, 17)]
    words = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version=3.12", *platforms]
    if not folder.exists():
        subprocess.run(["python3", "-m", "pip", *words, "-d", str(folder), *told["machine"]], check=True)
    return folder


def pack_all(work: Path) -> None:
    """Pack the places and the engine; say what differs from each lock."""
    told = tomllib.loads((HERE / "stacks.toml").read_text("utf-8"))
    places: dict[str, stack.Place] = {}
    folders: dict[str, Any] = {}
    for name, _ in _targets(work / "project"):
        machine = stack.Machine(machine_wheels(work, told), PLACES / name / stack.SITE, told)
        places[name] = stack.Place(name, PLACES / name, told, machine, dict(places))
        folders[name] = places[name].rows()
    folders["engine"] = folder_rows(take_engine(work))
    frame.build_frames(work / "project", work / "frames", [*places, FLASH])
    take_wheel(work / "project", work / "frames")
    folders["frames"] = folder_rows(work / "frames")
    sizes = pack.pack(folders, work / "parts", PART)
    needs = {}
    for name in places:
        machine = stack.Machine(machine_wheels(work, told), PLACES / name / stack.SITE, told)
        for row in json.loads((work / f"parts/streams/{name}.json").read_text("utf-8")):
            if row.get("base", "").startswith("machine/"):
                path = row["base"].removeprefix("machine/")
                needs[path] = machine.digests[path]
    (work / "parts/machine.json").write_text(json.dumps(needs), "utf-8")
    for name, (begin, end) in sizes.items():
        print(f"{name}: {(end - begin) / 1e6:.1f} MB")


def folder_rows(folder: Path) -> list[pack.Row]:
    """Return the files of a plain folder."""
    rows = []
    for path in sorted(folder.rglob("*")):
        at = str(path.relative_to(folder))
        if path.is_symlink():
            rows.append(pack.Row(path=at, to=str(path.readlink())))
        elif path.is_file():
            rows.append(pack.Row(path=at, mode=path.stat().st_mode & 0o777, data=path.read_bytes))
    return rows


def take_wheel(project: Path, folder: Path) -> None:
    """Copy the compiled flash-attn of the lock from the store."""
    rows = [package for group in _lock(project, FLASH).groups for package in group.packages]
    (wheel,) = (package for package in rows if package.name == "flash-attn")
    shutil.copyfile(ObjectStore(resolve_store_dir(None)).path(wheel.sha256), folder / wheel.file)


def take_engine(work: Path) -> Path:
    """Lay the programs of this machine's own engine below `work`, and the libraries that they ask for."""
    folder = work / "engine"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "lib").mkdir(parents=True)
    shutil.copytree(ENGINE / "bin", folder / "bin", ignore=shutil.ignore_patterns("ctr", "docker-proxy"))
    (folder / "cli-plugins").mkdir()
    shutil.copy(ENGINE / "cli-plugins/docker-buildx", folder / "cli-plugins")
    for name in LIBRARIES:
        shutil.copy(Path("/usr/lib/x86_64-linux-gnu") / name, folder / "lib" / name)
    return folder


def take_ssh(folder: Path) -> None:
    """Lay what reaches nodes into a folder, with the libraries that it asks for (`nodes.py`)."""
    for name in ("bin", "lib"):
        (folder / name).mkdir(parents=True)
    for program in PROGRAMS:
        shutil.copy(program, folder / "bin")
        listed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
        for line in listed.splitlines():
            name, _, path = line.strip().partition(" => ")
            if path and not name.startswith(OF_ITS_OWN):
                shutil.copy(path.split()[0], folder / "lib")


def lay_tool(work: Path, out: Path, *, nodes: bool) -> None:
    """Lay what the first call carries: the tool with the lock's own files, the interpreter, what the parts hold."""
    tool, store = out / "tool", ObjectStore(resolve_store_dir(None))
    shutil.rmtree(tool, ignore_errors=True)
    (tool / "wheels").mkdir(parents=True)
    (tool / "debs").mkdir()
    uv = str(Path(sys.executable).with_name("uv"))
    subprocess.run([uv, "build", "--quiet", "--wheel", "--out-dir", str(tool / "wheels"), str(CHECKOUT)], check=True)
    (tool / "wheels/.gitignore").unlink(missing_ok=True)
    lock = _lock(work / "project", _targets(work / "project")[0][0])
    for package in lock.runtime.packages:
        shutil.copyfile(store.path(package.sha256), tool / "wheels" / package.file)
    for deb in lock.debs:
        if deb.name.startswith(PYTHON_DEBS):
            shutil.copyfile(store.path(deb.sha256), tool / "debs" / f"{deb.name}.deb")
    for name in ("parts.json", "machine.json"):
        shutil.copyfile(work / "parts" / name, tool / name)
    if nodes:
        take_ssh(tool / "ssh")


def lay_parts(work: Path, out: Path) -> int:
    """Lay each part into a folder of its own; return how many there are."""
    parts = sorted((work / "parts").glob("part-*"))
    for path in out.glob("p[0-9]*"):
        shutil.rmtree(path)
    for number, path in enumerate(parts):
        (out / f"p{number:02}").mkdir(parents=True)
        shutil.copyfile(path, out / f"p{number:02}" / path.name)
    return len(parts)


def checkout_size() -> int:
    """Return how many bytes an archive of the checkout has: a head for each file, and whole blocks."""
    words = ["git", "ls-files", "-t", "-z"]
    listed = subprocess.run(words, cwd=CHECKOUT, check=True, capture_output=True).stdout.decode().split("\0")
    paths = [CHECKOUT / name[2:] for name in listed if name and not name.startswith("S")]  # S: not checked out
    return sum(-(-path.stat().st_size // BLOCK) * BLOCK + BLOCK for path in paths if path.is_file())


def plan_calls(count: int, room: int) -> list[list[str]]:
    """Return what each call carries, `room` bytes of it."""
    each = max(1, room // PART)
    names = [f".carry/p{number:02}" for number in range(count)]
    return [[".carry/tool"], *(names[begin : begin + each] for begin in range(0, count, each))]


def main() -> None:
    """Make, pack, and say what is typed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=CHECKOUT / ".venv/gpu-proof")
    parser.add_argument("--out", type=Path, default=CHECKOUT / ".carry")
    parser.add_argument("--tool-only", action="store_true", help="make what the first call carries anew, and no parts")
    parser.add_argument("--again", action="store_true", help="make places and parts anew, whatever is there")
    parser.add_argument("--without-nodes", action="store_true", help="without sshd and ssh, which `nodes.py` wants")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    project = args.work / "project"
    shutil.rmtree(project, ignore_errors=True)
    shutil.copytree(HERE / "project", project)
    stack.write_locks(project)
    check_needs(args)
    if not args.tool_only:
        if args.again:
            shutil.rmtree(args.work / "parts", ignore_errors=True)
            make_places(args.work)
        pack_all(args.work)
    lay_tool(args.work, args.out, nodes=not args.without_nodes)
    count = lay_parts(args.work, args.out)
    calls = plan_calls(count, (LIMIT - checkout_size()) * 96 // 100)
    print("call 1, with .carry/tool: bash tests/gpu/machine.sh first")
    for number, names in enumerate(calls[1:], 2):
        print(f"call {number}, with {' '.join(names)}: {TAKE}")
    print("then `bash tests/gpu/lanes.sh look`, every twenty seconds; at last `bash tests/gpu/lanes.sh keep`")


if __name__ == "__main__":
    main()
