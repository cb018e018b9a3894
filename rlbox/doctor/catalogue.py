"""The findings of doctor's own checks: `findings.toml` has their texts, and what each explains or means, by id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rlbox.config.toml_files import load_toml
from rlbox.findings import Finding, Level
from rlbox.i18n import _

TRANSLATED_KEYS = frozenset(("title", "seen", "remedy"))


@cache
def load_finding_texts() -> Mapping[str, Mapping[str, Any]]:
    return load_toml(Path(__file__).with_name("findings.toml"))


def make_finding(
    text_id: str,
    *,
    id: str | None = None,
    level: Level = "error",
    seen: str | None = None,
    where: str = "",
    remedy: str | None = None,
    breaks: Sequence[str] | None = None,
    covers: Sequence[str] | None = None,
    **values: object,
) -> Finding:
    """Return a finding with the texts of `text_id`, with `values` filled in; what else is given replaces them."""
    row = load_finding_texts()[text_id]
    texts = {key: _(row[key]) if key in row else "" for key in TRANSLATED_KEYS}
    return Finding(
        id=id or row.get("id", text_id),
        title=texts["title"].format(**values),
        level=level,
        seen=texts["seen"].format(**values) if seen is None else seen,
        where=where or row.get("where", "").format(**values),
        remedy=texts["remedy"].format(**values) if remedy is None else remedy,
        breaks=tuple(row.get("breaks", ()) if breaks is None else breaks),
        covers=tuple(row.get("covers", ()) if covers is None else covers),
    )
