"""What is wrong with signatures: one that no scan reaches, that is of one log alone, or that ties with another."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from rlbox.diagnose.catalogue import LogSignature
from rlbox.diagnose.literals import SHORTEST, anchors
from rlbox.diagnose.read.triggers import is_triggered
from rlbox.logs.patterns import compile_pattern
from rlbox.spec.pattern import check_pattern

_OF_ONE_LOG = (
    (r"/(?:home|root|mnt|data|workspace|tmp|opt|Users|scratch|cfs|gpfs|lustre|nvme)/", "a path"),
    (r"(?!127|0\\?\.0)\b\d{1,3}(?:\\?\.\d{1,3}){3}(?!\d)", "an address"),
    (r"\bpid[=: ]+\d|(?<![\d.\\{,])\d{6,}", "a number of a process"),
    (
        r"(?i)(?<![a-z])(?:qwen|llama-|llama\d|deepseek-|mixtral|gemma-|gemma\d|chatglm|internlm|phi-\d)",
        "the name of a model",
    ),
)


def problems_of(signature: LogSignature, example: str = "") -> Iterator[str]:
    """Yield what is wrong with one signature; `example` is a line that it is for."""
    try:
        check_pattern(signature.pattern)
    except ValueError as error:
        yield str(error)
        return
    needed = anchors(signature.pattern)
    if not needed or min(map(len, needed)) < SHORTEST:
        short = min(needed, key=len, default="")
        told = f"; {short!r} is too short" if short else ""
        yield f"needs no text of {SHORTEST} bytes or more, by which a scan could find it{told}"
    if example and not is_triggered(example) and not any(anchor in example for anchor in signature.anchor):
        yield "no scan finds its example: name a text of it as `anchor`"
    for text, what in _OF_ONE_LOG:
        if found := re.search(text, signature.pattern):
            yield f"asks for {what} ({found.group()!r}), which is of one log alone"


def ties(signatures: Iterable[tuple[LogSignature, str]]) -> Iterator[str]:
    """Yield pairs of signatures of different causes of which neither counts before the other; each with its example."""
    rows = list(signatures)
    for signature, example in rows:
        for other, _ in rows:
            if other.cause == signature.cause or not other.cause or not signature.cause or other.role != signature.role:
                continue
            if (other.near or other.far) and not (signature.near or signature.far):
                continue
            if other.exactness == signature.exactness and _fits(other, example):
                yield f"{signature.cause} and {other.cause} tie on {example!r}"


def _fits(signature: LogSignature, text: str) -> bool:
    if not compile_pattern(signature.pattern).fits(text):
        return False
    return not (signature.unless and compile_pattern(signature.unless).fits(text))
