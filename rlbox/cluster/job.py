"""A job of a cluster as Ray's jobs API tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SUCCEEDED, FAILED = "SUCCEEDED", "FAILED"
_ENDED = (SUCCEEDED, FAILED, "STOPPED")


@dataclass(frozen=True, kw_only=True)
class ClusterJob:
    """A job: `exit_code` is that of its driver, None where it has none yet; `ray_id` is in names of logs."""

    id: str
    status: str
    exit_code: int | None = None
    message: str = ""
    entrypoint: str = ""
    ray_id: str = ""

    @property
    def ended(self) -> bool:
        """Whether it will not go on."""
        return self.status in _ENDED

    @property
    def code(self) -> int:
        """The exit code of who waited for it: the driver's where Ray knows it."""
        if self.status == SUCCEEDED:
            return 0
        return self.exit_code if self.exit_code and 0 < self.exit_code < 256 else 1

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return {
            "job": self.id,
            "status": self.status,
            "driver_exit_code": self.exit_code,
            "message": self.message,
            "entrypoint": self.entrypoint,
        }


def read_job(row: Mapping[str, Any]) -> ClusterJob:
    """Return the job of an answer."""
    code = row.get("driver_exit_code")
    return ClusterJob(
        id=str(row.get("submission_id") or row.get("job_id") or ""),
        status=str(row.get("status") or "UNKNOWN"),
        exit_code=code if isinstance(code, int) else None,
        message=str(row.get("message") or ""),
        entrypoint=str(row.get("entrypoint") or ""),
        ray_id=str(row.get("job_id") or ""),
    )
