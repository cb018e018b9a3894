"""Prompt templates: how a conversation becomes the text that the model goes on from, and where its response begins."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ENDS = ("<|im_end|>", "<｜end▁of▁sentence｜>", "<|endoftext|>")
"""What may stand behind a response: ends of a turn, and padding."""


@dataclass(frozen=True, kw_only=True)
class Template:
    """One prompt template: `message` wraps a turn of any role, or (`roles` False) the last question alone."""

    message: str
    response: str
    roles: bool = False


TEMPLATES: Mapping[str, Template] = {
    "chatml": Template(
        message="<|im_start|>{role}\n{content}<|im_end|>\n", response="<|im_start|>assistant\n", roles=True
    ),
    "qwen1": Template(message="<｜User｜>{content}", response="<｜Assistant｜>"),
    "base": Template(message="User: {content}\n\n", response="Assistant: "),
}
"""Names as the original server takes them (`--prompt-template`)."""


def prompt_of(message: Any, template: Template) -> str:
    """Return the prompt of a row's message: a list of turns, the same as JSON text, a finished prompt, or a question.

    Raises
    ------
    ValueError
        It is none of these, or holds no question.
    """
    if isinstance(message, str):
        turns = _turns(message)
        if turns is None:
            finished = template.response.rstrip() in message
            return message if finished else render([{"role": "user", "content": message}], template)
        return render(turns, template)
    if isinstance(message, Sequence):
        return render(message, template)
    raise ValueError(f"neither text nor a list of turns: {message!r:.80}")


def _turns(text: str) -> list[Any] | None:
    if not text.lstrip().startswith("["):
        return None
    try:
        turns = json.loads(text)
    except ValueError:
        return None
    return turns if isinstance(turns, list) and turns and isinstance(turns[0], dict) else None


def render(turns: Sequence[Any], template: Template) -> str:
    """Return the prompt of a list of turns (`role`, `content`); a response at their end is left out."""
    kept = list(turns)
    while kept and kept[-1].get("role") == "assistant":
        kept.pop()
    if not any(turn.get("role") == "user" for turn in kept):
        raise ValueError("no turn of role 'user'")
    if not template.roles:
        kept = [turn for turn in kept if turn["role"] == "user"][-1:]
    return "".join(template.message.format(**turn) for turn in kept) + template.response


def response_in(query: str, prompt: str, template: Template) -> str:
    """Return what the model wrote behind the prompt in `query`, without ends of turns and padding.

    A query is what the trainer decoded: padding, prompt and response in one text, special tokens included.
    """
    place = query.find(prompt) if prompt else -1
    if place >= 0:
        response = query[place + len(prompt) :]
    else:
        _, found, rest = query.partition(template.response)
        response = rest if found else query
    for end in ENDS:
        response = response.replace(end, "")
    return response.strip()
