"""What the project of the tests is called in an engine: all of them have one, another checkout's tests another."""

from __future__ import annotations

from pathlib import Path

from rlbox.image.names import format_rlbox_image_tag, make_hashed_project_name

PROJECT = make_hashed_project_name("tests", str(Path(__file__).resolve()))


def own(target: str) -> str:
    """Return the name of the image of a target of the tests."""
    return format_rlbox_image_tag(target, PROJECT)
