#!/usr/bin/env python3
"""Ask uv which sets of packages can be installed together, and keep its answers: `tests/cases/planner/uv_sets.json`.

`tests/unit/planner/test_uv_sets.py` compares the solver's word with them, without a network.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from uv import find_uv_bin

OUT = Path(__file__).resolve().parents[1] / "tests/cases/planner/uv_sets.json"
PYTHON, PLATFORM, BEFORE = "3.12", "x86_64-manylinux_2_36", "2026-11-22"
SETS = (
    "torch==2.10.0 vllm==0.20.1",
    "torch==2.11.0 vllm==0.20.1",
    "torch==2.11.0 vllm==0.24.0 ray==2.55.0",
    "torch==2.9.1 sglang==0.5.12 vllm==0.24.0",
    "sglang==0.5.12 vllm==0.24.0",
    "sglang==0.5.15.post1 vllm==0.22.1",
    "torch==2.13.0 vllm==0.28.0 verl==0.8.0 numpy<2",
    "torch==2.13.0 vllm==0.28.0 numpy<2",
    "vllm==0.24.0 numpy==2.5.5",
    "vllm==0.24.0 numpy==2.2.6",
    "verl==0.9.1 transformers==5.6.0",
    "verl==0.9.1 transformers==5.7.0",
    "verl==0.9.1 transformers==5.12.1",
    "verl==0.9.1 numpy==1.26.4",
    "verl==0.7.0 numpy==2.2.6",
    "verl==0.7.0 numpy==1.26.4",
    "verl==0.9.1 vllm==0.24.0 torch==2.11.0 transformers==5.7.0",
    "verl==0.9.1 tensordict==0.11.0",
    "verl[vllm]==0.9.1 vllm==0.22.1",
    "vllm==0.12.0 torch==2.9.0 transformers==5.6.0",
    "vllm==0.12.0 torch==2.9.0 transformers==4.57.1",
    "vllm==0.29.0 flashinfer-cubin==0.6.18",
    "vllm==0.24.0 flashinfer-cubin==0.6.11",
    "sglang==0.5.15.post1 torch==2.11.0 transformers==5.12.1",
    "sglang==0.5.15.post1 torch==2.12.0",
    "sglang==0.5.15.post1 transformers==5.7.0",
    "sglang==0.5.15.post1 sglang-kernel==0.4.3",
    "sglang==0.5.15.post1 openai>2.6.1",
    "sglang==0.5.9 torch==2.9.1 sgl-kernel==0.3.20",
    "torch==2.11.0 torchvision==0.25.0",
    "torch==2.11.0 torchvision==0.26.0",
    "torch==2.11.0 triton==3.5.1",
    "torch==2.11.0 nvidia-nccl-cu13==2.28.9",
    "transformers==5.7.0 huggingface-hub<1",
    "transformers==4.57.1 huggingface-hub<1",
    "numba==0.65.0 numpy==2.5.5",
    "vllm==0.33.0 torch==2.14.0",
    "vllm==0.33.0 torch==2.15.0",
    "ray==2.55.0 vllm==0.22.1 torch==2.11.0",
    "vllm==0.20.2 torch==2.11.0 xgrammar==0.1.20",
)
"""Requirements, a set a line."""


def ask(requirements: str) -> str:
    """Return `fits`, `refused`, or the last line of what went wrong otherwise."""
    options = ("--python-version", PYTHON, "--python-platform", PLATFORM, "--exclude-newer", BEFORE)
    done = subprocess.run(
        [find_uv_bin(), "pip", "compile", "--quiet", "--no-header", *options, "-"],
        input="\n".join(requirements.split()),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return "fits"
    return "refused" if re.search("No solution found", done.stderr) else done.stderr.strip().splitlines()[-1]


def main() -> int:
    """Write the file."""
    rows = []
    for requirements in SETS:
        answer = ask(requirements)
        sys.stdout.write(f"{answer[:60]:<10} {requirements}\n")
        sys.stdout.flush()
        if answer in ("fits", "refused"):
            rows.append({"packages": requirements.split(), "uv": answer})
    table = {"python": PYTHON, "platform": PLATFORM, "before": BEFORE, "sets": rows}
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    head = json.dumps({key: value for key, value in table.items() if key != "sets"})
    OUT.write_text(f'{head[:-1]}, "sets": [\n{lines}\n]}}\n', encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
