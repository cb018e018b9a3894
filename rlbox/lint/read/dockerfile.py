"""Fill a document from a Dockerfile: its images, variables and the shell text of its steps."""

from __future__ import annotations

import re

from rlbox.lint.read.reader import Reader
from rlbox.lint.read.shell import read_shell
from rlbox.lint.read.text import Piece, join
from rlbox.lint.read.yaml import json_words

_INSTRUCTION = re.compile(r"\s*(?P<name>[A-Za-z]+)[ \t]+")
_STEP_OPTIONS = re.compile(r"(?:--[a-z][a-z-]*=\S+\s+)*")
_HEREDOC = re.compile(r"<<-?[\"']?(\w+)[\"']?")
_STEP = frozenset({"image"})
_FROM = re.compile(r"(?:--platform=\S+\s+)?(?P<image>\S+)(?:\s+AS\s+(?P<stage>\S+))?", re.IGNORECASE)


def read_dockerfile(reader: Reader, piece: Piece) -> None:
    """Read a Dockerfile, as far as it goes."""
    _Dockerfile(reader, piece).read()


class _Dockerfile:
    def __init__(self, reader: Reader, piece: Piece) -> None:
        self.reader, self.lines = reader, piece.lines()
        self.i = 0
        self.stages = {"scratch"}

    def read(self) -> None:
        first = self.lines[0] if self.lines else Piece("", [0])
        if re.match(r"#\s*syntax\s*=", first.text):
            self.reader.document.flags.append(("syntax", first.at[0]))
        while self.i < len(self.lines):
            line = self._logical()
            if hit := _INSTRUCTION.match(line.text):
                self._instruction(hit["name"].upper(), line.cut(hit.end(), len(line.text)))

    def _logical(self) -> Piece:
        """Return the next line with those that continue it, and without comments between them."""
        parts: list[Piece] = []
        while self.i < len(self.lines):
            line = self.lines[self.i]
            self.i += 1
            if line.text.lstrip().startswith("#"):
                if not parts:
                    return Piece("", [0])
                continue
            if parts and not line.text.strip():  # an empty line ends no instruction
                continue
            parts.append(line)
            if not line.text.rstrip().endswith("\\"):
                break
        return join(parts) if parts else Piece("", [0])

    def _instruction(self, name: str, rest: Piece) -> None:
        if name == "FROM":
            self._from(rest)
        elif name == "ARG":
            hit = re.match(r"(\w+)=[\"']?([^\"'\s]*)", rest.text)
            if hit:
                self.reader.document.names.note(hit.group(1), hit.group(2), rest.at[0])
        elif name == "ENV":
            self._env(rest)
        elif name == "ONBUILD" and (hit := _INSTRUCTION.match(rest.text)):
            self._instruction(hit["name"].upper(), rest.cut(hit.end(), len(rest.text)))
        elif name in ("RUN", "CMD", "ENTRYPOINT"):
            self._run(rest, _STEP if name == "RUN" else _STEP | {"entry"})
        elif name == "HEALTHCHECK" and (hit := re.search(r"\bCMD\s+", rest.text)):
            self._run(rest.cut(hit.end(), len(rest.text)), _STEP | {"healthcheck"})
        elif name == "SHELL" and "pipefail" in rest.text:
            self.reader.document.flags.append(("pipefail", rest.at[0]))

    def _from(self, rest: Piece) -> None:
        hit = _FROM.match(rest.text)
        if hit is None:
            return
        start = rest.at[hit.start("image")]
        image = self.reader.document.names.resolve(hit["image"], start)
        if hit["stage"]:
            self.stages.add(hit["stage"].lower())
        if image.lower() not in self.stages:
            self.reader.image(image, start)

    def _env(self, rest: Piece) -> None:
        self.reader.block += 1
        hit = re.match(r"(\w+)[ \t]+(?!\\\n)", rest.text)
        if hit:
            self.reader.set(hit.group(1), rest.text[hit.end() :].strip(), rest.at[0], "dockerfile")
            return
        for pipeline in read_shell(rest, powershell=False).pipelines:
            for word in pipeline.commands[0].assigns:
                name, _, value = word.value.partition("=")
                self.reader.set(name, value, word.start, "dockerfile")

    def _run(self, rest: Piece, within: frozenset[str]) -> None:
        hit = _STEP_OPTIONS.match(rest.text)
        rest = rest.cut(hit.end(), len(rest.text)) if hit else rest
        if words := json_words(self.reader, rest):
            self.reader.argv(words, within)
            return
        marks = _HEREDOC.findall(rest.text)
        body = [rest]
        for mark in marks:
            while self.i < len(self.lines):
                line = self.lines[self.i]
                self.i += 1
                body.append(line)
                if line.text.strip() == mark:
                    break
        if marks and rest.text.lstrip().startswith("<<"):  # the here-document is the step itself
            body = body[1:-1] or [Piece("", [rest.at[0]])]
        self.reader.shell(join(body), within, powershell=False)
