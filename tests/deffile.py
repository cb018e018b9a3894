"""Reads an Apptainer definition as `apptainer build` does, and refuses what it would refuse.

Source: apptainer pkg/build/types/parser/deffile.go (grammar), internal/pkg/build/sources (what each agent needs).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SECTIONS = {"help", "setup", "files", "labels", "environment", "pre", "post", "runscript", "test", "startscript"}
HEADERS = {"bootstrap", "from", "includecmd", "mirrorurl", "updateurl", "osversion", "include", "library", "stage"}
AGENTS = {"docker", "oci-archive"}


@dataclass(frozen=True)
class Definition:
    """A definition of one build stage: header keys in lower case, sections by name."""

    header: dict[str, str]
    sections: dict[str, str]


def parse_definition(text: str) -> Definition:
    """Return what a definition says; `ValueError` for what Apptainer refuses or would take for something else."""
    header: dict[str, str] = {}
    sections: dict[str, list[str]] = {}
    now: list[str] | None = None
    for line in text.splitlines():
        word = line.split()[0] if line.split() else ""
        if word.startswith("%"):  # also where it is indented
            name = word.lstrip("%").lower()
            if name not in SECTIONS or name in sections:
                raise ValueError(f"section {word}")
            now = sections.setdefault(name, [])
        elif now is not None:
            now.append(line)
        elif word and not word.startswith("#"):
            key, colon, value = line.partition("#")[0].partition(":")
            if not colon or key.strip().lower() not in HEADERS:
                raise ValueError(f"header {line!r}")
            header[key.strip().lower()] = value.strip()
    if header.get("bootstrap") not in AGENTS or not header.get("from"):
        raise ValueError(f"header {header}")
    if found := re.findall(r"\{\{\s*\w+\s*\}\}", text):
        raise ValueError(f"arguments of the build: {found}")
    if len(re.findall(r"(?mi)^bootstrap:", text)) != 1:
        raise ValueError("more than one build stage")
    return Definition(header, {name: "\n".join(lines) + "\n" for name, lines in sections.items()})
