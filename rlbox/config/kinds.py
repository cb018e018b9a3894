"""Kinds of values that every spec is made of."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints

from rlbox.config.pattern import check_pattern
from rlbox.i18n import _


def _one_line(text: str) -> str:
    if wrong := re.search(r"[\x00-\x1f\x7f]", text):
        raise ValueError(
            _("holds the control character {wrong!r}, which no line of a Dockerfile can").format(wrong=wrong.group())
        )
    return text


NAME = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
Name = Annotated[str, StringConstraints(pattern=NAME)]


EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^\s:]*$")]


AptPackage = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9+.-]+$")]


Line = Annotated[str, AfterValidator(_one_line)]


PatternText = Annotated[str, AfterValidator(check_pattern)]
MaybePattern = Annotated[str, AfterValidator(lambda text: text and check_pattern(text))]
"""A pattern of RE2, or an empty text for none."""


# A number of the inventory of demands.
Cover = Annotated[str, StringConstraints(pattern=r"^[PB]\d{3}$")]


class Frozen(BaseModel):
    """Base of every spec model: immutable, and a key nobody declared is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
