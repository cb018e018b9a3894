"""Two containers of a target's image as the nodes of a cluster, each with a GPU: `nodes.py TARGET --gpus 0,1`.

The containers have no engine, as a rented one has none (nodepair.py); `rlbox cluster` reaches them by ssh from the
machine itself. Shown are: `up --prove`; an all-reduce as a job of the cluster beside the same program without rlbox, in
turn, in the same containers; a GPU that another process fills, named by `doctor --prove`; `down`. It needs root,
`nsenter`, a kernel with veth, an engine that has the image, and sshd, ssh and ip, or such
as were carried (SSH_HOME: a folder with bin and lib). `--gpus none` takes the processor and gloo.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nodepair import Pair, nodes

from rlbox.config.project import Project
from rlbox.image.names import project_image_tag

HERE = Path(__file__).resolve().parent
REDUCED = HERE / "reduced.py"
FILL = """
import time, torch
free, total = torch.cuda.mem_get_info()
kept = torch.empty(int(free - (600 << 20)), dtype=torch.uint8, device="cuda")
print("filled", flush=True)
time.sleep(90)
"""


def bare(pair: Pair, port: int) -> dict[str, Any]:
    """Return what the program tells without rlbox, by two plain commands in the same containers."""
    words = (pair.python, "-c", REDUCED.read_text("utf-8"), "bare", pair.kind)
    ranks = [(*words, str(at), pair.address(0), str(port)) for at in (0, 1)]
    argv = ("docker", "exec", "-e", "NCCL_NVLS_ENABLE=0", pair.names[0], *ranks[0])
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        texts = [pair.inside(1, *ranks[1]), process.communicate(timeout=60)[0]]
    return max((json.loads(text.splitlines()[-1]) for text in texts), key=lambda told: told["seconds"])


def job(pair: Pair) -> dict[str, Any]:
    """Return what the same program tells as a job of the cluster."""
    code, told, text = pair.rlbox("submit", "--", "python", "-c", REDUCED.read_text("utf-8"), "job", pair.kind)
    rows = [line for line in text.splitlines() if line.startswith('{"seconds"')]
    if code or not (told or rows):
        raise SystemExit(f"the job ended with {code}\n{text[-3000:]}")
    return told or json.loads(rows[-1])


def reduce_beside(pair: Pair, rounds: int) -> None:
    """Measure the all-reduce under rlbox and without, in turn."""
    rows: dict[str, list[dict[str, Any]]] = {"job": [], "bare": []}
    for at in range(rounds):
        rows["bare"].append(bare(pair, 29500 + at))
        rows["job"].append(job(pair))
    medians = {name: statistics.median(row["seconds"] for row in found) for name, found in rows.items()}
    wrong = sum(row["wrong"] for found in rows.values() for row in found)
    pair.said["all_reduce"] = {**rows, "wrong": wrong, "ratio": medians["job"] / medians["bare"]}
    print(f"== all-reduce: job {medians['job']:.4f} s, bare {medians['bare']:.4f} s, {wrong} wrong sums", flush=True)


def found_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what an answer found wrong."""
    return [
        {key: row.get(key) for key in ("id", "where", "seen", "level", "title")} for row in answer.get("findings", ())
    ]


@contextmanager
def beside(pair: Pair, program: Sequence[str], ready_s: float) -> Iterator[None]:
    """Have another process on the second node's GPU, from outside the cluster."""
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": pair.gpus[1]}
    process = subprocess.Popen([pair.torch, *program], env=env)
    try:
        time.sleep(ready_s)
        yield
    finally:
        process.kill()
        process.wait()


def name_the_filled_gpu(pair: Pair) -> None:
    """Have one GPU filled, and ask who is bad."""
    with beside(pair, ("-c", FILL), 15):
        code, answer, __ = pair.rlbox("doctor", "--prove", "--json")
    pair.said["filled"] = {"code": code, "findings": found_of(answer), "proof": answer.get("proof")}
    print(f"== filled: {[(row['id'], row['where']) for row in pair.said['filled']['findings']]}", flush=True)


def show(pair: Pair, rounds: int) -> None:
    """Do all of it."""
    before = pair.look()
    began = time.monotonic()
    code, answer, text = pair.rlbox("up", "--prove", "--json")
    pair.said["up"] = {
        "code": code,
        "seconds": time.monotonic() - began,
        "healthy": answer.get("healthy"),
        "proof": answer.get("proof"),
    }
    if code:
        print(json.dumps(answer)[:3000])
        code, answer, text = pair.rlbox("up", "--json")
        if code:
            raise SystemExit(text[-3000:])
    reduce_beside(pair, rounds)
    _, answer, _ = pair.rlbox("doctor", "--prove", "--json")
    pair.said["doctor"] = {"findings": found_of(answer), "proof": answer.get("proof")}
    if pair.gpus:
        name_the_filled_gpu(pair)
    pair.said["down"] = pair.rlbox("down")[0]
    time.sleep(1)
    after = pair.look()
    pair.said["left"] = [sorted({*new} - {*old}) for old, new in zip(before, after, strict=True)]
    print(f"== left: {pair.said['left']}", flush=True)


def main() -> None:
    """Show it, and write down what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--gpus", default="0,1")
    parser.add_argument("--python", default="/opt/venv/bin/python")
    parser.add_argument(
        "--torch", default="/opt/torch/.venv/bin/python", help="what keeps a GPU busy, on the machine itself"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("nodes.json"))
    args = parser.parse_args()
    gpus = [] if args.gpus == "none" else args.gpus.split(",")
    with tempfile.TemporaryDirectory(prefix="gpu-nodes-") as folder:
        pair = Pair(target=args.target, gpus=gpus, folder=Path(folder), python=args.python, torch=args.torch)
        Path(folder).chmod(0o755)
        try:
            with nodes(
                pair, project_image_tag(Project(folder=Path(os.environ.get("RLBOX_PROJECT", "."))), args.target)
            ):
                show(pair, args.rounds)
        finally:
            args.out.write_text(json.dumps(pair.said, indent=1) + "\n")


if __name__ == "__main__":
    main()
