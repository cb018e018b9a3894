"""The jobs of a cluster: Ray's own API, asked by a script beside its head, which has the token."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlbox.app import App
from rlbox.cluster.connection import Node
from rlbox.cluster.context import open_context
from rlbox.cluster.options import ClusterOptions
from rlbox.cluster.plan import ClusterPlan
from rlbox.cluster.runtime import run_packaged_script, select_runtime
from rlbox.errors import EngineError, NodeError, SpecError, TimedOut
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.system.json_files import parse_json_lines

SUCCEEDED, FAILED = "SUCCEEDED", "FAILED"
_ENDED = (SUCCEEDED, FAILED, "STOPPED")
_STOP_S, _POLL_S = 60.0, 0.5


@dataclass(frozen=True, kw_only=True)
class ClusterJob:
    """A job: `exit_code` is that of its driver, None where it has none yet; `ray_job_id` is in names of logs."""

    id: str
    status: str
    exit_code: int | None = None
    message: str = ""
    entrypoint: str = ""
    ray_job_id: str = ""

    @property
    def has_ended(self) -> bool:
        return self.status in _ENDED

    @property
    def cli_exit_code(self) -> int:
        """The exit code of who waited for it: the driver's where Ray knows it."""
        if self.status == SUCCEEDED:
            return 0
        return self.exit_code if self.exit_code and 0 < self.exit_code < 256 else 1

    def as_json(self) -> dict[str, Any]:
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
        ray_job_id=str(row.get("job_id") or ""),
    )


class RayRefusedError(NodeError):
    """Ray answered that it does not do what it was asked."""


class JobsApi:
    """The jobs API of one cluster."""

    def __init__(self, head: Node, plan: ClusterPlan) -> None:
        self.plan, self._head = plan, head
        self._runtime = select_runtime(head, plan, plan.head)

    def _ask(self, **request: str | None) -> Any:
        """Return what Ray answers, None where it knows no such job; `RayRefusedError` where it refuses."""
        port = str(self.plan.ports.of("dashboard"))
        try:
            rows = list(parse_json_lines(run_packaged_script(self._runtime, "ray_jobs.py", port, json.dumps(request))))
        except EngineError as error:
            raise NodeError(error.what, where=self._head.name, next_step=error.next_step) from error
        row: dict[str, Any] = rows[-1] if rows else {"status": 0, "text": "no answer"}
        lines = str(row["text"]).strip().splitlines() or [f"HTTP {row['status']}"]
        if row["status"] == 404:
            return None
        if not row["status"]:
            raise NodeError(_("Ray's jobs API does not answer: {line}").format(line=lines[-1]), where=self._head.name)
        if row["status"] >= 400:
            raise RayRefusedError(_("Ray refuses it: {line}").format(line=lines[-1][:300]), where=self._head.name)
        return parse_json(row["text"]) if str(row["text"]).strip() else {}

    def list_jobs(self) -> tuple[ClusterJob, ...]:
        """Return the jobs that were submitted, the latest last."""
        rows = [row for row in self._ask(call="list", id="") or () if row.get("submission_id")]
        return tuple(read_job(row) for row in sorted(rows, key=lambda row: row.get("start_time") or 0))

    def get_job(self, id_: str) -> ClusterJob:
        """Return a job; `SpecError` where there is none of that name."""
        row = self._ask(call="get", id=id_)
        if row is None:
            known = ", ".join(job.id for job in self.list_jobs())
            raise SpecError(
                _("cluster {plan} has no job {id}").format(plan=self.plan.name, id=id_),
                next_step=_("choose one of: {known}").format(known=known)
                if known
                else "rlbox cluster submit TARGET -- COMMAND, first",
            )
        return read_job(row)

    def submit(self, id_: str, entrypoint: str, working_dir_on_head: str | None) -> None:
        """Have Ray start a job; `working_dir_on_head` is a directory as the head's programs see it."""
        self._ask(call="submit", id=id_, entrypoint=entrypoint, working_dir=working_dir_on_head)

    def stop(self, id_: str) -> None:
        self._ask(call="stop", id=id_)


def stop_job(app: App, options: ClusterOptions, id_: str) -> tuple[ClusterJob, bool]:
    """Stop a job and return how it ended, and whether it was this call that ended it.

    Raises
    ------
    SpecError
        There is no such job.
    TimedOut
        It has not ended in time.
    """
    with open_context(app, options) as context:
        cluster = context.require_own_cluster(context.probe())
        api = JobsApi(context.require_running_head(cluster), cluster.plan)
        job = api.get_job(id_)
        if job.has_ended:
            return job, False
        api.stop(id_)
        until = time.monotonic() + _STOP_S
        while not (job := api.get_job(id_)).has_ended:
            if time.monotonic() > until:
                raise TimedOut(_("job {id} has not ended, a minute after Ray was asked to stop it").format(id=id_))
            time.sleep(_POLL_S)
        return job, True
