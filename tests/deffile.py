"""Reads an Apptainer definition as `apptainer build` does, and refuses what it would refuse.

Source: apptainer pkg/build/types/parser/deffile.go (grammar), internal/pkg/build/sources (what each agent needs).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SECTIONS = {"help", "setup", "files", "labels", "environment", "pre", "post", "runscript", "test", "startscript"}
HEADERS = {"bootstrap", "from", "includecmd", "mirrorurl", "updateurl", "osversion", "include", "library", "stage"}
NEED_FROM = {"docker": True, "oci-archive": True, "scratch": False}


@dataclass(frozen=True)
class Definition:
    """A definition of one build stage: header keys in lower case, sections by name."""

    header: dict[str, str]
    sections: dict[str, str]

    @property
    def labels(self) -> dict[str, str]:
        """What `%labels` says: the first word of a line is the name."""
        rows = [line.strip().partition(" ") for line in self.sections["labels"].splitlines() if line.strip()]
        return {name: text for name, _, text in rows}


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
    if header.get("bootstrap") not in NEED_FROM or NEED_FROM[header["bootstrap"]] != bool(header.get("from")):
        raise ValueError(f"header {header}")
    if found := re.findall(r"\{\{\s*\w+\s*\}\}", text):
        raise ValueError(f"arguments of the build: {found}")
    if len(re.findall(r"(?mi)^bootstrap:", text)) != 1:
        raise ValueError("more than one build stage")
    return Definition(header, {name: "\n".join(lines) + "\n" for name, lines in sections.items()})
