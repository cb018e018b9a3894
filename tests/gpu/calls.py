"""`make gpu-proof-pack`: what a machine with GPUs and no network gets in calls of 64 MiB, and what is typed in each.

Stacks (`stacks.toml`), the tool's own wheels and the targets' files are made and packed, and laid into `.carry/1` …
`.carry/N`. Each call carries one of them beside the checkout, and is made again where it was cut. The first starts
`lanes.sh all`, which takes up what arrives and carries out everything that is to be shown, unattended.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import pack

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
TARGETS = {"h100-verl": "verl", "h100-slime": "slime", "h100-openrlhf": "openrlhf"}
ENGINE = Path("/opt/rlbox-engine")  # where `rlbox engine up` unpacks one
LIBRARIES = ("libseccomp.so.2", "libsystemd.so.0")  # of that engine; the machine may have them
PROGRAMS = ("/usr/sbin/sshd", "/usr/bin/ssh", "/usr/bin/ssh-keygen", "/sbin/ip")  # the machine has none of them
OF_ITS_OWN = ("ld-linux", "libc.so", "libm.so", "libresolv.so", "linux-vdso")  # what belongs to a machine's C library
LIMIT = 64 << 20
BLOCK = 512
CALL = "CARRIED=$PWD/.carry/{} bash tests/gpu/machine.sh {}"
THEN = """then `bash tests/gpu/lanes.sh look`, every half minute, since an idle machine is given back; and at last
`bash tests/gpu/lanes.sh keep`: what it leaves goes below tests/gpu/kept, whose page `python scripts/proof.py` makes"""


def make(work: Path, snapshots: Path) -> None:
    """Make stacks, wheels and the targets' files below `work`; what is there of the same text stays."""
    uv = str(Path(sys.executable).with_name("uv"))
    for stack in TARGETS.values():
        words = [str(HERE / "stack.py"), stack, str(work / stack), "--git-snapshots", str(snapshots)]
        subprocess.run([sys.executable, *words], check=True)
    wheels = work / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    subprocess.run([uv, "build", "--quiet", "--wheel", "--out-dir", str(wheels), str(CHECKOUT)], check=True)
    pins = ["--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_39", "--no-annotate", "--no-header"]
    words = [uv, "pip", "compile", "--quiet", *pins, "pyproject.toml", "-o", str(work / "tool.txt")]
    subprocess.run(words, check=True, cwd=CHECKOUT)
    platforms = [f"--platform=manylinux{tag}_x86_64" for tag in ("_2_28", "_2_27", "_2_17", "2014", "_2_5", "1")]
    words = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version=3.12", *platforms]
    subprocess.run(["python3", "-m", "pip", *words, "-d", str(wheels), "-r", str(work / "tool.txt")], check=True)
    for target in TARGETS:
        kit = work / f"kit-{target}"
        shutil.rmtree(kit, ignore_errors=True)
        words = ["fetch", target, "--place", "here", "--project", str(HERE / "project"), "--export", str(kit)]
        subprocess.run([sys.executable, "-m", "rlbox", *words], check=True, cwd=CHECKOUT)
    make_image_kit(work)


def make_image_kit(work: Path) -> None:
    """Make what images are built of: both targets want the same; their base is made there, an empty one stands in."""
    project, kit = work / "image/project", work / "image/kit"
    shutil.rmtree(work / "image", ignore_errors=True)
    shutil.copytree(HERE / "project", project)
    subprocess.run([sys.executable, str(HERE / "base.py"), str(project), *TARGETS, "--empty"], check=True)
    words = ["fetch", next(iter(TARGETS)), "--project", str(project), "--export", str(kit)]
    subprocess.run([sys.executable, "-m", "rlbox", *words], check=True, cwd=CHECKOUT)
    take_ssh(work / "image/ssh")


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


def take_engine(work: Path) -> None:
    """Lay the programs of this machine's own engine below `work`, and the libraries that they ask for."""
    folder = work / "engine"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "lib").mkdir(parents=True)
    shutil.copytree(ENGINE / "bin", folder / "bin", ignore=shutil.ignore_patterns("ctr", "docker-proxy"))
    (folder / "cli-plugins").mkdir()
    shutil.copy(ENGINE / "cli-plugins/docker-buildx", folder / "cli-plugins")
    for name in LIBRARIES:
        shutil.copy(Path("/usr/lib/x86_64-linux-gnu") / name, folder / "lib" / name)


def lay(work: Path, out: Path) -> list[tuple[int, list[str]]]:
    """Pack the stacks and spread everything over calls; return how many parts each has and what is typed in it."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, check=True, capture_output=True).stdout.split(
        b"\0"
    )
    # as an archive has them: a head for each, and whole blocks
    sizes = [(CHECKOUT / name.decode()).stat().st_size for name in listed if name]
    checkout = sum(-(-size // BLOCK) * BLOCK + BLOCK for size in sizes)
    part = (LIMIT - checkout) * 96 // 100 // 3
    shutil.rmtree(work / "parts", ignore_errors=True)
    pack.pack({stack: work / stack for stack in (*TARGETS.values(), "engine")}, work / "parts", part)
    shutil.rmtree(out, ignore_errors=True)
    first = out / "1"
    first.mkdir(parents=True)
    for name in ("wheels", *(f"kit-{target}" for target in TARGETS)):
        shutil.copytree(work / name, first / name)
    shutil.copyfile(work / "parts/parts.json", first / "parts.json")
    calls = [(0, ["take", "setup", "begin"])]
    parts = sorted((work / "parts").glob("part-*"))
    for begin in range(0, len(parts), 3):
        folder = out / str(len(calls) + 1)
        folder.mkdir()
        for path in parts[begin : begin + 3]:
            shutil.copyfile(path, folder / path.name)
        calls.append((len(parts[begin : begin + 3]), ["take"]))
    shutil.copytree(work / "image", out / str(len(calls) + 1))
    calls.append((0, ["kit"]))
    return calls


def main() -> None:
    """Make, pack, and say what is typed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--git-snapshots", type=Path, required=True, help="folder of bare repositories OWNER+NAME")
    parser.add_argument("--work", type=Path, default=CHECKOUT / ".venv/gpu-proof")
    parser.add_argument("--out", type=Path, default=CHECKOUT / ".carry")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    make(args.work, args.git_snapshots)
    take_engine(args.work)
    for number, (_, verbs) in enumerate(lay(args.work, args.out), 1):
        print(f"call {number}, with .carry/{number}: " + " && ".join(CALL.format(number, verb) for verb in verbs))
    print(THEN)


if __name__ == "__main__":
    main()
