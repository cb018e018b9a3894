"""The commands of the notes that rlbox began with, and what does the same today."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from rlbox.config.schema import Name, SingleLine, SpecModel, validate_spec
from rlbox.config.toml_files import load_toml

TABLE = "docs/internal/seeds.toml"
_COMMAND = re.compile(r"((?:\d+ )*\d+): (.+)")
Number = Annotated[str, StringConstraints(pattern=r"^\d{3}$")]


def _commands(text: str) -> str:
    for line in text.strip("\n").split("\n"):
        if not _COMMAND.fullmatch(line):
            raise ValueError(f"{line!r} is not `NUMBER…: COMMAND`")
    return text


class Seed(SpecModel):
    """One note: what it is about, and the target and job that take its place."""

    title: SingleLine
    target: Name
    job: Name


class SeedRow(SpecModel):
    """Commands of one note that have the same successor."""

    seed: Number
    commands: Annotated[str, AfterValidator(_commands)] = Field(
        description="a line each: numbers of the note's lines, a colon, the command; … stands for what is left out"
    )
    rlbox: tuple[SingleLine, ...] = Field(min_length=1, description="what to type today")
    how: SingleLine = Field(description="what it does about the commands")
    says: SingleLine = Field("", description="words of what the last line of `rlbox` prints")
    rules: tuple[Name, ...] = Field((), description="rules of `rlbox lint` that refuse the commands")
    fixes: tuple[Name, ...] = Field((), description="repairs that take the commands' place")

    def lines(self) -> tuple[tuple[tuple[int, ...], str], ...]:
        """Return numbers and text of each command."""
        found = (line.partition(": ") for line in self.commands.strip("\n").split("\n"))
        return tuple((tuple(map(int, numbers.split())), text) for numbers, _, text in found)


class Seeds(SpecModel):
    """The notes by number, and the rows in the order of their lines."""

    seeds: dict[Number, Seed]
    row: tuple[SeedRow, ...]


def load_seeds(checkout: Path) -> Seeds:
    """Return the table of a checkout; `SpecError` when it is broken.

    It is no part of the package: an image would then name every host that the notes name.
    """
    path = checkout / TABLE
    return validate_spec(Seeds, load_toml(path), str(path))
