"""The same command without rlbox: what a stage runs, taken from its process, and started again by itself.

`bare.py take FILE PROGRAM TEXT…` waits for a Python process of that module or script whose words hold every TEXT and
writes its words, environment and folder to FILE; `bare.py run FILE GPUS OLD=NEW…` becomes it on other GPUs, OLD
replaced, without the variables of rlbox and of its Ray; `bare.py steps LOG…` prints how long each log's steps took: the
first, which compiles, is left out.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
import time
from pathlib import Path

# verl; OpenRLHF; slime
STEP = re.compile(r"(?:timing_s/step:|'timing/step_total': |'perf/step_time': )(?:np\.float\d+\()?([0-9.]+)")
# verl's SFT tells what its GPU did and of how many tokens: their quotient is a time, in a unit of its own.
OF_TOKENS = re.compile(r"train/mfu:([0-9.e-]+) - train/global_tokens:(\d+)")


def take(file: Path, texts: list[str]) -> None:
    """Write down the oldest process of those."""
    while not (found := sorted(_processes(texts))):
        time.sleep(0.2)
    process = Path("/proc", str(found[0]))
    told = {
        "argv": process.joinpath("cmdline").read_bytes().decode().split("\0")[:-1],
        "env": dict(row.split("=", 1) for row in process.joinpath("environ").read_bytes().decode().split("\0") if row),
        "cwd": os.readlink(process / "cwd"),
    }
    file.write_text(json.dumps(told), "utf-8")


def _processes(texts: list[str]) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # it has ended
        program = words[2:3] if words[1:2] == ["-m"] else [word for word in words[1:2] if word.endswith(".py")]
        named = any(word == texts[0] or word.endswith(f"/{texts[0]}") for word in program)
        if named and all(any(text in word for word in words) for text in texts[1:]):
            found.append(int(path.parent.name))
    return found


def run(file: Path, gpus: str, changes: list[str]) -> None:
    """Become that process."""
    text = file.read_text("utf-8")
    for change in changes:
        old, _, new = change.partition("=")
        text = text.replace(old, new)
    told = json.loads(text)
    env = {name: value for name, value in told["env"].items() if not name.startswith(("RLBOX_", "RAY_"))}
    env["CUDA_VISIBLE_DEVICES"] = gpus
    env["RAY_ADDRESS"] = "local"  # not a Ray that stands here
    os.chdir(told["cwd"])
    os.execvpe(told["argv"][0], told["argv"], env)


def steps(log: Path) -> str:
    """Return the median of the steps, how many there are, and the shortest and longest."""
    text = log.read_text("utf-8", errors="replace")
    found = [float(seconds) for seconds in STEP.findall(text)][1:]
    found = found or [float(tokens) / float(mfu) / 1e9 for mfu, tokens in OF_TOKENS.findall(text)][1:]
    if not found:
        return f"{log}: no step"
    return f"{log}: {statistics.median(found):.3f} of {len(found)}, {min(found):.3f} to {max(found):.3f}"


if __name__ == "__main__":
    verb, *words = sys.argv[1:]
    if verb == "take":
        take(Path(words[0]), words[1:])
    elif verb == "run":
        run(Path(words[0]), words[1], words[2:])
    else:
        print(*(steps(Path(word)) for word in words), sep="\n")
