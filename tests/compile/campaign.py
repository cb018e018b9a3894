"""Compile flash-attn from its lock, and write down what it took: `campaign.py [--archs 80,90] [--python 3.12]`.

The twelve files for bf16 with head sizes 64 and 128, for each GPU, twice; then all 72 for one, with a kill -9 on the
way. It goes on where it was stopped: what is done is kept in a folder of its own, and so is every object file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).resolve().parents[2] / "docs/internal/compile.md"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "rlbox"
LANE = CACHE / "lanes/compile"
TWELVE = 'units = ["flash_*_hdim64_bf16_*", "flash_*_hdim128_bf16_*"]'
KILL_AFTER = 6
GPUS = {"80": "NVIDIA A100-SXM4-80GB", "90": "NVIDIA H200", "120": "NVIDIA GeForce RTX 5090"}
SPEC = """
title = "flash-attn {arch}"
[hardware]
gpu = "{gpu}"
gpus = 1
arch = "sm_{arch}"
[base]
{base}
[python]
version = "{python}"
platform = "x86_64-manylinux_2_36"
[[stack]]
name = "torch"
packages = ["torch==2.11.0"]
[[stack]]
name = "kernels"
packages = ["einops==0.8.1"]
[[stack.compile]]
name = "flash-attn"
version = "2.8.3.post2"
cuda = "13.0"
needs = ["torch", "setuptools", "wheel", "packaging", "psutil", "ninja"]
env = {{ FLASH_ATTENTION_FORCE_BUILD = "TRUE" }}
{units}
memory_gib = 6.5
[disk]
host = "~/disk"
"""
DEBIAN = 'bootstrap = "debian:bookworm"\npackages = ["ca-certificates", "python3", "python3-venv"]'
MACHINE = f"""image = "registry.example/any@sha256:{"0" * 64}"
holds_apt = ["g++", "ninja-build", "python3-dev"]
"""
# The image is never pulled: what is compiled is for this machine's Python.
HEAD = """# flash-attn from its lock

Written by `make nightly ARGS=compile-campaign`: flash-attn 2.8.3.post2 beside torch 2.11.0, CUDA 13.0. *wall* is from
the command to the wheel, all inputs fetched or not; *a file* the mean of what one compiler took for a CUDA file.

| what | GPU | files | at a time | wall | a file | sha256 | |
|---|---|---|---|---|---|---|---|
"""


def rlbox(*words: str) -> subprocess.Popen[str]:
    """Start a command line in the lane's project; what it says goes on."""
    argv = [sys.executable, "-m", "rlbox", *words, "--project", str(LANE / "project")]
    return subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(CHECKOUT)}, stdout=subprocess.PIPE, text=True)


def ended(*words: str) -> dict[str, object]:
    """Run a command line to its end and return its JSON."""
    process = rlbox(*words, "--json")
    out, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"rlbox {' '.join(words)}: exit code {process.returncode}")
    return json.loads(out)


def wheel(told: dict[str, object]) -> dict[str, object]:
    """Return what a command said of the one wheel."""
    (row,) = told["wheels"]  # type: ignore[misc]
    return row


def objects() -> dict[str, set[str]]:
    """Return the objects that are kept, by folder."""
    folders = (CACHE / "compile/objects").glob("*")
    return {folder.name: {path.name for path in folder.iterdir() if not path.suffix} for folder in folders}


def write_target(name: str, arch: str, units: str, python: str) -> None:
    """Write and lock a target."""
    base = DEBIAN if python == "3.11" else MACHINE
    path = LANE / f"project/images/{name}/target.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SPEC.format(arch=arch, gpu=GPUS[arch], base=base, python=python, units=units))
    ended("lock", name)


class Notes:
    """What is done, in a file: label to row of the table."""

    def __init__(self) -> None:
        self.path = LANE / "done.json"
        self.rows: dict[str, dict[str, object]] = json.loads(self.path.read_text()) if self.path.exists() else {}

    def add(self, label: str, **row: object) -> None:
        """Write one down, and the table."""
        self.rows[label] = row
        draft = self.path.with_suffix(".draft")
        draft.write_text(json.dumps(self.rows, indent=1))
        draft.rename(self.path)
        TABLE.write_text(HEAD + "".join(line(row) for row in self.rows.values()) + machine())


def line(row: dict[str, object]) -> str:
    """Return a row of the table."""
    keys = ("what", "gpu", "files", "jobs", "wall", "each", "sha256", "note")
    return "| " + " | ".join(str(row.get(key, "")) for key in keys) + " |\n"


def machine() -> str:
    """Return the machine that it was measured on."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    cores = len(os.sched_getaffinity(0))
    when = time.strftime("%Y-%m-%d")
    return f"\nMeasured on {cores} cores, {memory:.0f} GiB, {platform.system()} {platform.machine()}, {when}.\n"


def spent(seconds: float) -> str:
    """Return a span as text."""
    return f"{seconds / 60:.1f} min"


def unit_times(name: str) -> list[int]:
    """Return the seconds of each file of a wheel that was compiled just now."""
    lock = json.loads((LANE / f"project/images/{name}/lock.json").read_text())
    store = Path(os.environ.get("RLBOX_STORE", CACHE / "store"))
    note = json.loads((store / f"compiled/{lock['compiled'][0]['recipe']}.json").read_text())
    return [seconds for file, seconds in note["units"].items() if seconds and file.endswith(".cu")]


def twelve(notes: Notes, arch: str, python: str) -> None:
    """Compile the twelve files, then again from nothing."""
    name = f"flash-{arch}"
    write_target(name, arch, TWELVE, python)
    for label, words in ((f"{python} {name} first", ()), (f"{python} {name} again", ("--verify",))):
        if label in notes.rows:
            continue
        began = time.monotonic()
        told = wheel(ended("compile", name, *words))
        times = unit_times(name)
        each = f"{sum(times) / len(times):.0f} s" if times else "kept"
        note = "the same" if words else ""
        notes.add(
            label,
            what=f"bf16, 64 and 128, Python {python}{', from nothing again' if words else ''}",
            gpu=f"sm_{arch}",
            files=12,
            jobs=told["jobs"],
            wall=spent(time.monotonic() - began),
            each=each,
            sha256=f"`{str(told['sha256'])[:16]}`",
            note=note,
        )


def whole(notes: Notes, arch: str, python: str) -> None:
    """Compile all files, killed after some and resumed."""
    name, label = f"flash-{arch}-all", f"{python} flash-{arch} all"
    if label in notes.rows:
        return
    write_target(name, arch, "", python)
    before = {one for names in objects().values() for one in names}
    began = time.monotonic()
    process = rlbox("compile", name)
    while process.poll() is None and len(new := kept_since(before)) < KILL_AFTER:
        time.sleep(1)
    if process.poll() is not None:
        raise SystemExit("it ended before it was killed")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    told = wheel(ended("compile", name))
    lost = len(new - {one for names in objects().values() for one in names})
    times = unit_times(name)
    notes.add(
        label,
        what=f"all, Python {python}",
        gpu=f"sm_{arch}",
        files=72,
        jobs=told["jobs"],
        wall=spent(time.monotonic() - began),
        each=f"{sum(times) / len(times):.0f} s",
        sha256=f"`{str(told['sha256'])[:16]}`",
        note=f"killed after {len(new)} more, {lost} of them lost; {len(before)} objects were there from before",
    )


def kept_since(before: set[str]) -> set[str]:
    """Return the objects that were not there."""
    return {one for names in objects().values() for one in names} - before


def main() -> None:
    """Run what is left of the campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--archs", default="80,90,120")
    parser.add_argument("--python", default="3.11", help="another than 3.11 is this machine's, with its g++")
    parser.add_argument("--part", choices=("twelve", "all", "both"), default="both")
    asked = parser.parse_args()
    (LANE / "project/images").mkdir(parents=True, exist_ok=True)
    notes = Notes()
    for arch in asked.archs.split(",") if asked.part != "all" else ():
        twelve(notes, arch, asked.python)
    if asked.part != "twelve":
        whole(notes, asked.archs.split(",")[0], asked.python)


if __name__ == "__main__":
    main()
