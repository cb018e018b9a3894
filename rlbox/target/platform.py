"""Platforms that rent machines: `platforms/NAME.toml`, the contract between a start script and its machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from rlbox.config.schema import AbsolutePath, SingleLine, SpecModel, TranslatedText, validate_spec
from rlbox.config.toml_files import load_toml

PLATFORM_FILES = {path.stem: path for path in sorted((Path(__file__).parent / "platforms").glob("*.toml"))}


class ScriptField(SpecModel):
    """Where the text goes, and its two forms: templates with `script`, `packed`, `packed_line`, `name` and `count`."""

    field: SingleLine = Field(description="name of the field on the platform; empty: the text is a file")
    limit_bytes: Annotated[int, Field(ge=0)] = Field(0, description="most bytes and characters; 0: none is known")
    plain: str = Field("{{ script }}", description="form of a script that fits")
    packed: str = Field("", description="form of a longer one, compressed; empty: it is rejected")
    source: SingleLine = Field(description="documents that the facts are from")


class StartScript(ScriptField):
    """What the start script does, besides the steps of every platform."""

    runs: SingleLine = Field(description="when the script runs, the first words of a sentence")
    installs_python: bool = Field(description="install Python with apt if it is missing, and read /etc/environment")
    starts_sshd: bool = Field(description="start sshd for the keys in PUBLIC_KEY")


class PlatformDisk(SpecModel):
    """The disk for data."""

    path: AbsolutePath | SingleLine = Field(description="data disk; empty: unknown")
    is_separate: bool = Field(description="all other paths are on a smaller disk, or cleared by a stop")
    source: SingleLine = Field(description="documents that the facts are from")


class PlatformContainer(SpecModel):
    """How the platform starts the container of an image."""

    options: tuple[SingleLine, ...] = Field(description="options that the platform honours, in its own words")
    replaced: tuple[SingleLine, ...] = Field(description="parts of the image that the platform replaces")
    source: SingleLine = Field(description="documents that the facts are from")


class PlatformRestart(SpecModel):
    """A stop of the machine and its next start."""

    effect: TranslatedText = Field(description="what stays, and what does not")
    source: SingleLine = Field(description="documents that the facts are from")


class Platform(SpecModel):
    """A platform and what is known of it."""

    name: SingleLine
    title: SingleLine = Field(description="the name that the platform gives itself")
    has_docker: bool = Field(description="Docker can run on its machines")
    unknown: tuple[SingleLine, ...] = Field(description="facts that no document gives")
    script: StartScript
    provisioning: ScriptField | None = Field(None, description="file that the platform's own images download and run")
    disk: PlatformDisk
    container: PlatformContainer
    restart: PlatformRestart


def load_platform(name: str) -> Platform:
    """Return the platform of a key of `PLATFORM_FILES`."""
    data = {**load_toml(PLATFORM_FILES[name]), "name": name}
    return validate_spec(Platform, data, f"platforms/{name}.toml", is_shipped=True)
