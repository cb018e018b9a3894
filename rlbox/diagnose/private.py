"""What of a diagnosis may be shown to somebody else: no secrets, hosts, addresses, people or folders; at most 8 kB."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rlbox.diagnose.told import report
from rlbox.diagnose.verdict import Diagnosis
from rlbox.secrets.masks import Masks

MOST_BYTES = 8000
_ASKED = "What is the cause of this failure, and the smallest next step? What is known so far:"
_HIDDEN = (
    (re.compile(r"\b(?:hf_|gh[pousr]_|github_pat_|sk-|xox[a-z]-|glpat-|AKIA)[A-Za-z0-9_-]{8,}"), "***"),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"), "***"),
    (re.compile(r"\b[0-9a-fA-F]{32,}\b"), "***"),
    (
        re.compile(r"(?i)\b((?:api[_-]?key|token|secret|password|passwd)\w*[\"']?\s*[=:]\s*[\"']?)[^\s\"',;]{4,}"),
        r"\1***",
    ),
    (re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)*\b"), "***@***"),
    (re.compile(r"(\w+://)[^\s/'\"<>)]+"), r"\1***"),
    (re.compile(r"(?<![\w.])(?!127\.|0\.0\.0\.0)\d{1,3}(?:\.\d{1,3}){3}(?![\w.])"), "***"),
    (re.compile(r"(?i)\b(host(?:name)?\s*[=:]\s*['\"]?|\bip=|on node )[\w.-]+"), r"\1***"),
    (re.compile(r"(?:/[^\s/:'\"`]+)+/((?:site|dist)-packages/)"), r"\1"),
    (re.compile(r"(?<![\w.:/*])/(?:[^\s/:'\"`,()\[\]]+/)+([^\s/:'\"`,()\[\]]*)"), r"***/\1"),
)
"""What is hidden, and what stands in its place: keys, people, hosts, and the folders of paths but for packages'."""


def evidence_pack(found: Diagnosis, excerpt: str, environment: Mapping[str, str]) -> str:
    """Return what a stranger may be asked with: the question, the answer so far, and the lines around the root.

    `environment` holds the secrets of this process, which are masked however they are written.
    """
    text = f"{_ASKED}\n\n{report(found, excerpt)}\n"
    text = hidden(Masks(environment).text(text))
    return text.encode("utf-8", "replace")[:MOST_BYTES].decode("utf-8", "ignore")


def hidden(text: str) -> str:
    """Return a text without keys, people, hosts and folders."""
    for pattern, other in _HIDDEN:
        text = pattern.sub(other, text)
    return text
