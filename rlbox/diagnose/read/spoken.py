"""Which kinds of programs a log is of, by words of its beginning: a failure may mean one thing or another by them."""

from __future__ import annotations

import functools
import re

BEGINNING = 1 << 18
"""Bytes of a log that are looked at."""

_WORDS = {
    "building": rb"building extension|\bninja\b|\bnvcc\b|setup\.py|Building wheel|build_ext|Compiling objects",
    "pip": rb"pip install|^Collecting |Downloading [\w.-]+\.whl|uv pip|pip subprocess",
    "serving": rb"vLLM API server|vllm serve|api_server|launch_server|ServerArgs|Uvicorn running|Decode batch|Prefill batch"
    rb"|EngineCore|LLMEngine|LLM engine|Avg prompt throughput|ModelTpServer|AsyncLLM",
    "training": rb"[tT]rainer|train_loss|'loss'|optimizer|torchrun|deepspeed|TaskRunner|WorkerDict|global_step|FSDP|[mM]egatron|train\.py",
}


def spoken_in(data: bytes) -> frozenset[str]:
    """Return the kinds of programs that bytes of a log speak of: `building`, `pip`, `serving`, `training`."""
    return frozenset(kind for kind in _WORDS if _pattern(kind).search(data))


def words_of(kinds: frozenset[str]) -> str:
    """Return what was spoken of as one line; a log of training with an engine in it is one of training."""
    told = kinds - {"serving"} if "training" in kinds else kinds
    return f"spoken {' '.join(sorted(told))}"


@functools.cache
def _pattern(kind: str) -> re.Pattern[bytes]:
    return re.compile(_WORDS[kind], re.MULTILINE)
