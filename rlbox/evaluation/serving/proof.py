"""Whether an engine whose weights were exchanged computes what one does that was started with them.

Proven once for an engine, its settings, a form of model and a machine, by the log-probabilities of some prompts: those
of every token of the prompt, and of what follows greedily, with and without the cache of prefixes. Equal means equal
to the last digit that the engine tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlbox.evaluation.lock import canonical, content_digest

VERSION = 1
"""Of what is compared; a proof of another one counts for nothing."""
PROBES = (
    "The quick brown fox jumps over the lazy dog, and then",
    "def add(x, y):\n    return x + y\n\n\nprint(add(1, 2",
    "1, 1, 2, 3, 5, 8, 13, 21,",
    "Write a program that prints 7 plus 5.",
)
NEW_TOKENS = 8

Probed = Sequence[Any]
"""What an engine said of each probe, as JSON types."""


def probe_request(model: str, text: str, *, whole: bool) -> dict[str, Any]:
    """Return what is asked of an engine; `whole`: of the tokens of the prompt, too, which no cache answers."""
    asked = {"model": model, "prompt": text, "max_tokens": NEW_TOKENS, "temperature": 0.0, "logprobs": 5}
    return {**asked, "prompt_logprobs": 1} if whole else asked


def probed_of(answer: Any) -> Any:
    """Return of an answer what must be equal; `ValueError` where it has no log-probabilities."""
    try:
        choice = answer["choices"][0]
        told = choice["logprobs"]
        found = {name: told[name] for name in ("tokens", "token_logprobs", "top_logprobs")}
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError("it tells no log-probabilities") from error
    return {**found, "prompt": choice.get("prompt_logprobs")}


def proof_key(engine: Mapping[str, Any], form: Mapping[str, Any], machine: Mapping[str, Any]) -> str:
    """Return what a proof is kept under: all that decides how weights get into an engine, and what it then computes."""
    return content_digest({"version": VERSION, "engine": dict(engine), "form": dict(form), "machine": dict(machine)})


def differs(exchanged: Probed, started: Probed) -> str:
    """Return how two engines' answers differ, or nothing where they are equal."""
    if canonical(list(exchanged)) == canonical(list(started)):
        return ""
    one, other = list(_numbers(exchanged)), list(_numbers(started))
    if len(one) != len(other):
        return "other tokens follow"
    if one == other:
        return "other tokens follow"
    largest = max((abs(a - b) for a, b in zip(one, other, strict=True)), default=0.0)
    return f"log-probabilities differ by up to {largest:.2g}"


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, Mapping):
        for _, inner in sorted(value.items()):
            yield from _numbers(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _numbers(inner)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield float(value)
