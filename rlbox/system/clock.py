"""The clock."""

from __future__ import annotations

from datetime import datetime, timezone


def utc_now() -> str:
    """Return the time in UTC, ISO 8601 with milliseconds."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
