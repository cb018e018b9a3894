"""What a kept run's record does not tell: GPU, date, the lock that ran, what differed from it; `about.py RUN ROOT`.

ROOT is the proof's folder on that machine, where `stack.py verify` wrote of each target what differs (`TARGET.json`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import tomllib

from rlbox.target.lock import load_lock

DECIDE = (
    "torch",
    "verl",
    "openrlhf",
    "sglang",
    "sglang-kernel",
    "sglang-router",
    "vllm",
    "deepspeed",
    "flash-attn",
    "ray",
    "transformers",
    "tensordict",
)
"""The packages that a stack is told by; of git parts all."""


IMAGE = "; the image was put together there of its frame, built elsewhere from its Dockerfile, and of those packages"


def about(run: Path, root: Path) -> dict[str, Any]:
    """Return it; the specs are those that the run was started with."""
    (spec,) = run.rglob("spec/target.toml")
    lock = load_lock(spec.with_name("lock.json"))
    assert lock
    record = json.loads((run / "run.json").read_text("utf-8"))
    versions = {package.name: package.version for group in lock.groups for package in group.packages}
    stack = {name: versions[name] for name in DECIDE if name in versions}
    stack |= {tree.name: tree.ref[:12] for tree in lock.git if tree.name in ("slime", "megatron-lm")}
    differs = root / f"{lock.target}.json"
    rows = json.loads(differs.read_text("utf-8"))["differs"] if differs.exists() else []
    counts = Counter(row["change"] for row in rows)
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpu, _, driver = (
        subprocess.run(query, check=True, capture_output=True, text=True).stdout.splitlines()[0].partition(", ")
    )
    return {
        "schema": 2,
        "gpu": gpu,
        "gpus": int((run.parents[1] / "gpus").read_text("utf-8")),
        "driver": driver.partition(".")[0],
        "date": record["started_at"][:10],
        "python": lock.python,
        "target": str(tomllib.loads(spec.read_text("utf-8"))["include"]),
        "lock": lock.digest_without_target_and_spec(),
        "stack": stack,
        "differs": dict(sorted(counts.items())),
        "note": note(counts) + ("" if record["place"] == "here" else IMAGE),
    }


def note(counts: Counter[str]) -> str:
    """Return in words what differs from the lock."""
    words = {
        "thinned": "libraries without kernels for other GPUs than sm_90",
        "stripped": "without their symbols",
        "patched": "changed by the target's fixes, as in its image",
        "left out": "that no program loads here left out",
    }
    told = [f"{counts[kind]} {text}" for kind, text in words.items() if counts.get(kind)]
    return "the lock's own files" + (f"; of them {', '.join(told)}" if told else "")


if __name__ == "__main__":
    print(json.dumps(about(Path(sys.argv[1]), Path(sys.argv[2])), indent=1))
