"""Signs that work goes on, that a program starts anew, and that it ends as it should."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any, Literal

Sign = Literal["step", "served", "bar", "ready", "done", "start", "stop"]

_SIGNS: dict[Sign, tuple[str, ...]] = {
    "step": (
        r"\b(?:global_)?[sS]teps?[ :=]{1,3}\d+(?:/\d+)?\b[^\n]{0,4}[-,|:\[ ]",
        r"\biteration +\d+/ *\d+ \|",
        r"\{'(?:loss|eval_loss|train_loss|reward)': ",
        r"\b(?:train_)?loss[=:] ?\d+\.\d+",
        r"\bEpoch[ :]+\d+",
        r"\btrain_runtime\b",
    ),
    "served": (
        r'"(?:POST|GET|PUT) /(?:v1/(?:chat|comp|emb|resp|audio|score|rerank|pool)|generate|encode|classify|predict|api/)[^"\n]{0,200}" 2\d\d',
        r"Decode batch\b|Prefill batch\b",
        r"Avg generation throughput: (?:[1-9]|0\.[1-9])",
        r"\bFinished request\b",
    ),
    "bar": (r"\b\d{1,9}/\d{1,9} \[\d+:\d\d",),
    "ready": (
        r"Application startup complete|fired up and ready to roll|Uvicorn running on|Server is ready|Ray runtime started"
        r"|Started a local Ray instance|Capturing CUDA graphs|Graph capturing finished|Capture cuda graph end",
    ),
    "done": (
        r"\b(?:Successfully (?:installed|built|copied|saved|uploaded|completed|finished|merged|loaded)|Training completed)",
        r"\b(?:[sS]aved|[sS]aving|[wW]rote) [^\n]{0,80}(?:to|at|in|checkpoint|→)\b|\bResults? saved|saved (?:model|results)",
        r"\bReturn [cC]ode:? 0\b|\bEXIT_CODE=0\b|exit(?:ed with)? (?:code|status):? 0\b|All tests passed|^PASS(?:ED)?\b|finished successfully"
        r"|[cC]ompleted successfully|Final validation metrics|Job '[^'\n]+' succeeded",
    ),
    "start": (
        r"vLLM API server version|server_args=ServerArgs\(|server_args=PortArgs|Initializing (?:a|an) (?:V\d )?LLM engine",
        r"^nohup: ignoring input|^\s*(?:\([\w.-]+\) )?[\w.-]+@[\w.-]+:[^\n]{0,80}[#$] \S|^[#$] \S+ ",
        r"^\+ (?:python|torchrun|ray|vllm|deepspeed|accelerate|bash)\b",
    ),
    "stop": (
        r"Application shutdown complete|Finished server process|\[shutdown\]|Shutting down FastAPI|trigger received signal"
        r"|^INFO: +Shutting down",
    ),
}


@dataclass(frozen=True, slots=True)
class Mark:
    """A sign at a line; `text` is the line's beginning."""

    number: int
    sign: Sign
    text: str


def sign_of(text: str) -> Sign | None:
    """Return what a line is a sign of; None of nothing."""
    found = _pattern().search(text[:600])
    return found.lastgroup if found else None  # type: ignore[return-value]


@functools.cache
def _pattern() -> re.Pattern[str]:
    return re.compile("|".join(f"(?P<{sign}>{'|'.join(parts)})" for sign, parts in _SIGNS.items()))


@functools.cache
def block_pattern() -> Any:
    """Return the signs as one expression of RE2 over a block of bytes."""
    import re2

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    text = "|".join(part for parts in _SIGNS.values() for part in parts)
    return re2.compile(f"(?m)(?:{text})".encode(), options)
