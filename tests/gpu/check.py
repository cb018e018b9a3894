"""`make gpu-check TARGET=NAME`: a target on a machine with GPUs: doctor, components, planted faults, SFT and GRPO.

For a person with such a machine; nothing of it runs elsewhere. The stack needs torch and verl, and vLLM for GRPO. Each
step is one rlbox command; it is expected to pass, a planted fault to fail, and the same fault with the fix to pass.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
TEST = "/opt/rlbox/bin/rlbox components"
# What the seeds export: a folder of CUDA's stubs before the driver's own; 34 is CUDA_ERROR_STUB_LIBRARY.
MAKE_STUB = """mkdir -p /tmp/stubs && cd /tmp/stubs && echo '
int cuInit(unsigned flags) { return 34; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuGetErrorName(int code, const char **name) { *name = "CUDA_ERROR_STUB_LIBRARY"; return 0; }
' | gcc -shared -fPIC -x c - -Wl,-soname,libcuda.so.1 -o libcuda.so.1 &&
export LD_LIBRARY_PATH=/tmp/stubs:$LD_LIBRARY_PATH &&"""
NO_LIB64 = "export CUDA_HOME=/tmp/prefix &&"  # a prefix without lib64, as of conda
WITH_FIXES = f"exec sh /opt/rlbox/libexec/entrypoint.sh {TEST}"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command; `code` is the exit code that it must have."""

    title: str
    words: tuple[str, ...]
    code: int = 0


def plan_steps(target: str, gpus: int) -> Iterator[Step]:
    """Yield the steps for one GPU and, where there are more, for `gpus`."""

    def shell(title: str, script: str, code: int = 0) -> Step:
        return Step(title=title, words=("shell", target, "--gpus", "1", "--", "bash", "-c", script), code=code)

    counts = ("1",) if gpus == 1 else ("1", str(gpus))
    for count in counts:
        yield Step(title=f"doctor on {count}", words=("doctor", target, "--gpus", count))
        yield Step(title=f"components on {count}", words=("components", target, "--gpus", count))
    yield shell("stub libcuda first on the path", f"{MAKE_STUB} {TEST}", 1)
    yield shell("the same, with the fix", f"{MAKE_STUB} {WITH_FIXES}")
    yield shell("no lib64, and the fix taken away", f"{NO_LIB64} env -u LIBRARY_PATH {TEST}", 1)
    yield shell("no lib64, with the fix", f"{NO_LIB64} {TEST}")
    for count in counts:
        for job in ("sft", "grpo"):
            sizes = ("--gpus", count, "--set", f"gpus={count}")
            more = ("--set", f"batch={count}") if job == "grpo" else ()
            words = ("run", job, "--profile", "tiny", "--target", target, *sizes, *more)
            yield Step(title=f"{job} on {count}", words=words)


def main() -> int:
    """Carry out the steps and return 1 when one did not end as it must."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--gpus", type=int, default=len(list(Path("/dev").glob("nvidia[0-9]*"))))
    parser.add_argument("--list", action="store_true", help="print the commands")
    told = parser.parse_args()
    if not told.gpus:
        sys.exit("gpu-check: there is no GPU here")
    wrong = 0
    for step in plan_steps(told.target, told.gpus):
        argv = [sys.executable, "-m", "rlbox", *step.words]
        if told.list:
            sys.stdout.write(f"{step.title}: {argv[3:]}\n")
            continue
        began = time.monotonic()
        done = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True)
        good = done.returncode == step.code
        wrong += not good
        word = "ok" if good else f"exit code {done.returncode}, not {step.code}"
        sys.stdout.write(f"{step.title}: {word}, {time.monotonic() - began:.0f} s\n")
        sys.stdout.write("" if good else f"{done.stdout[-3000:]}{done.stderr[-3000:]}\n")
        sys.stdout.flush()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
