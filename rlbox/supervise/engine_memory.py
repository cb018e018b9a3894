"""The share of a GPU's memory that the inference engines of a run ask for, read from its commands."""

from __future__ import annotations

import math
import re

from rlbox.job.plan import RunPlan

_SHARE = re.compile(r"(?:gpu[-_]memory(?:[-_]utilization)?|mem[-_]fraction[-_]static)[= ](1(?:\.0+)?|0?\.\d+)(?![\w.])")
_ENGINE = re.compile(r"(?<![\w])(?:vllm|sglang)(?![\w/-])")
_DEFAULT = 90
"""Percent that vLLM and SGLang take of a GPU where nothing is said. Source: their `--help`."""


def find_inference_gpu_memory_percent(plan: RunPlan) -> int:
    """Return the largest share in percent, 0 for a run without an inference engine."""
    commands = [argv for stage in plan.stages for argv in (stage.argv, *(one.argv for one in stage.services))]
    text = "\n".join(" ".join(argv) for argv in commands)
    shares = [float(found) for found in _SHARE.findall(text)]
    if shares:
        return math.ceil(max(shares) * 100)
    return _DEFAULT if _ENGINE.search(text) else 0
