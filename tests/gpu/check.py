"""`make gpu-check TARGET=NAME`: a target on a machine with GPUs: doctor, components, planted faults, SFT and GRPO.

For a person with such a machine; nothing of it runs elsewhere. The stack needs torch and verl, and vLLM for GRPO. Each
step is one rlbox command; it is expected to pass, a planted fault to fail in the parts that it is about and in no part
that it is not, and the same fault with the fix to pass.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
TEST = "/opt/rlbox/bin/rlbox components --json"
SPARED = frozenset({"Python", "torch"})  # no planted fault is about these
# What the seeds export: a folder of CUDA's stubs before the driver's own; 34 is CUDA_ERROR_STUB_LIBRARY.
MAKE_STUB = """mkdir -p /tmp/stubs && cd /tmp/stubs && echo '
int cuInit(unsigned flags) { return 34; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuGetErrorName(int code, const char **name) { *name = "CUDA_ERROR_STUB_LIBRARY"; return 0; }
' | gcc -shared -fPIC -x c - -Wl,-soname,libcuda.so.1 -o libcuda.so.1 &&
export LD_LIBRARY_PATH=/tmp/stubs:$LD_LIBRARY_PATH &&"""
NO_LIB64 = "export CUDA_HOME=/tmp/prefix &&"  # a prefix without lib64, as of conda
FIND_VLLM = "python -c 'import vllm; print(vllm.__path__[0])' 2>/dev/null | tail -n 1"
NO_KERNELS = f"rm $({FIND_VLLM})/_C*.so &&"
# A wheel for other GPUs: in each fatbin (see pack.py) no entry is said to be code or PTX. A changed architecture is no
# fault: the driver reads it in the code itself.
OTHER_ARCH = f"""cp -a $({FIND_VLLM}) /tmp/vllm-kept && python - $({FIND_VLLM})/_C*.so <<'END' &&
import struct, sys
for name in sys.argv[1:]:
    with open(name, "r+b") as file:
        data, at = bytearray(file.read()), 0
        while (at := data.find(struct.pack("<I", 0xBA55ED50), at)) >= 0:
            header, size = struct.unpack_from("<HQ", data, at + 6)
            entry, end = at + header, at + header + size
            at += 4
            while header == 16 and entry < end <= len(data):
                head, length = struct.unpack_from("<IQ", data, entry + 4)
                if not 32 <= head <= 4096:
                    break
                struct.pack_into("<H", data, entry, 0x7F)
                entry += head + length
        file.seek(0)
        file.write(data)
END
"""
ITS_OWN = f"cp -a /tmp/vllm-kept/_C*.so $({FIND_VLLM})/ &&"
WITH_FIXES = f"exec sh /opt/rlbox/libexec/entrypoint.sh {TEST}"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command; `fails` are the parts that must fail in what it prints, none when all must pass."""

    title: str
    words: tuple[str, ...]
    fails: frozenset[str] = frozenset()

    def complaint(self, code: int, output: str) -> str:
        """Return what is wrong with how it ended; empty when nothing is."""
        if not self.fails:
            return f"exit code {code}, not 0" if code else ""
        try:
            failed = {*json.loads(output)["failed"]}
        except (ValueError, KeyError, TypeError):
            return f"exit code {code}, and no word on parts"
        if missed := self.fails - failed:
            return f"{', '.join(sorted(missed))}: not failed"
        return f"failed, too: {', '.join(sorted(failed & SPARED))}" if failed & SPARED else ""


def plan_steps(target: str, devices: list[str]) -> Iterator[Step]:
    """Yield the steps for the first of the GPUs and, where there are more, for all of them."""

    def shell(title: str, script: str, *fails: str) -> Step:
        words = ("shell", target, "--gpus", f"device={devices[0]}", "--", "bash", "-c", script)
        return Step(title=title, words=words, fails=frozenset(fails))

    choices = (devices[:1],) if len(devices) == 1 else (devices[:1], devices)
    for chosen in choices:
        gpus = ("--gpus", f"device={','.join(chosen)}")
        yield Step(title=f"doctor on {len(chosen)}", words=("doctor", target, *gpus))
        yield Step(title=f"components on {len(chosen)}", words=("components", target, *gpus))
    yield shell("stub libcuda first on the path", f"{MAKE_STUB} {TEST}", "CUDA driver", "torch on GPUs")
    yield shell("the same, with the fix", f"{MAKE_STUB} {WITH_FIXES}")
    yield shell("no lib64, and the fix taken away", f"{NO_LIB64} env -u LIBRARY_PATH {TEST}", "C compiler")
    yield shell("no lib64, with the fix", f"{NO_LIB64} {TEST}")
    yield shell("a library of kernels is missing", f"{NO_KERNELS} {TEST}", "vLLM")
    yield shell("kernels of another GPU", f"{OTHER_ARCH} {TEST}", "vLLM")
    yield shell("the same, and its own again", f"{OTHER_ARCH} {ITS_OWN} {TEST}")
    for chosen in choices:
        for job in ("sft", "grpo"):
            count = len(chosen)
            sizes = ("--gpus", f"device={','.join(chosen)}", "--set", f"gpus={count}")
            more = ("--set", f"batch={count}") if job == "grpo" else ()
            words = ("run", job, "--profile", "tiny", "--target", target, *sizes, *more)
            yield Step(title=f"{job} on {count}", words=words)


def main() -> int:
    """Carry out the steps and return 1 when one did not end as it must."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    here = sorted(path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
    parser.add_argument("--devices", default=",".join(here), help="numbers of the GPUs that it may use")
    parser.add_argument("--without-runs", action="store_true", help="no training")
    parser.add_argument("--list", action="store_true", help="print the commands")
    told = parser.parse_args()
    if not told.devices:
        sys.exit("gpu-check: there is no GPU here")
    wrong = 0
    for step in plan_steps(told.target, told.devices.split(",")):
        if told.without_runs and step.words[0] == "run":
            continue
        argv = [sys.executable, "-m", "rlbox", *step.words]
        if told.list:
            sys.stdout.write(f"{step.title}: {argv[3:]}\n")
            continue
        began = time.monotonic()
        done = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True)
        complaint = step.complaint(done.returncode, done.stdout)
        wrong += bool(complaint)
        sys.stdout.write(f"{step.title}: {complaint or 'ok'}, {time.monotonic() - began:.0f} s\n")
        sys.stdout.write(f"{done.stdout[-3000:]}{done.stderr[-3000:]}\n" if complaint else "")
        sys.stdout.flush()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
