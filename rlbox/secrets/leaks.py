"""Whether text that goes to a platform, and stays there, holds secrets."""

from __future__ import annotations

import re

from rlbox.secrets.credentials import mask_credentials
from rlbox.secrets.masks import Masks

_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(\"[^\"]*\"|'[^']*'|[^\s;&|)]+)")
# Tokens that tell what they are: of Hugging Face, GitHub, OpenAI and the like, AWS; what follows `wandb login` has the
# form of a commit.
_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|sk-[A-Za-z0-9_-]{20,}"
    r"|AKIA[0-9A-Z]{16}|wandb login (?:\S+ )*[0-9a-f]{40})\b"
)


def secret_lines(text: str) -> tuple[int, ...]:
    """Return the numbers of the lines of shell text that hold what looks like a secret; the first line is 1."""
    return tuple(number for number, line in enumerate(text.splitlines(), start=1) if _holds_secret(line))


def is_secret(name: str, value: str) -> bool:
    """Whether the value of a variable looks like a secret; one that refers to another variable is none."""
    value = value.strip("\"'")
    return "$" not in value and (bool(_TOKEN.search(value)) or bool(Masks({name: value}).forms))


def _holds_secret(line: str) -> bool:
    assigned = any(is_secret(name, value) for name, value in _ASSIGNED.findall(line))
    return assigned or bool(_TOKEN.search(line)) or mask_credentials(line) != line
