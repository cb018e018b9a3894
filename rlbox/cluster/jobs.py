"""The jobs of a cluster: Ray's own API, asked by the program on its head, which has the token."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from rlbox.app import App
from rlbox.cluster.connection import NodeConnection
from rlbox.cluster.context import ClusterContext, RunningCluster, open_context
from rlbox.cluster.options import ClusterOptions
from rlbox.cluster.package import JobPackage
from rlbox.cluster.plan import ClusterPlan
from rlbox.cluster.ray_runtime import TOKEN_FILE
from rlbox.errors import NodeError, SpecError, TimedOut
from rlbox.foreign import parse_json
from rlbox.i18n import _

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


_PIECE = 1 << 20
_STOPPED_S, _PAUSE_S = 60.0, 0.5
_ANSWER_S = 360.0


class RayRefused(NodeError):
    """Ray answered that it does not do what it was asked."""


class JobsApi:
    """The jobs API of one cluster; every question goes over the head's one connection, and no token does."""

    def __init__(self, head: NodeConnection, plan: ClusterPlan, answer_s: float = _ANSWER_S) -> None:
        self._head, self.plan, self._answer_s = head, plan, answer_s
        self.folder = plan.folder(head.name)

    def ask(self, method: str, path: str, body: Any = None, file: str = "", kind: str = "application/json") -> Any:
        """Return what Ray answers, None where it knows no such thing; `RayRefused` where it refuses."""
        more = {"body": "" if body is None else json.dumps(body), "file": file, "type": kind}
        answer = self._head.ask("ray", timeout_s=self._answer_s, **self._question(method, path), **more)
        if answer["status"] == 404:
            return None
        if answer["status"] >= 400:
            lines = str(answer["text"]).strip().splitlines() or [f"HTTP {answer['status']}"]
            raise RayRefused(_("Ray refuses it: {line}").format(line=lines[-1][:300]), where=self._head.name)
        try:
            return parse_json(answer["text"]) if str(answer["text"]).strip() else {}
        except ValueError:
            return {}

    def _question(self, method: str, path: str) -> dict[str, Any]:
        token = f"{self.folder}/{TOKEN_FILE}" if self.plan.closed == "token" else ""
        port, disk = self.plan.ports.of("dashboard"), self._head.options.data
        return {"port": port, "disk": disk, "token": token, "method": method, "path": path}

    def jobs(self) -> tuple[ClusterJob, ...]:
        """Return the jobs that were submitted, the latest last."""
        rows = [row for row in self.ask("GET", "/api/jobs/") or () if row.get("submission_id")]
        return tuple(read_job(row) for row in sorted(rows, key=lambda row: row.get("start_time") or 0))

    def job(self, id_: str) -> ClusterJob:
        """Return a job; `SpecError` where there is none of that name."""
        row = self.ask("GET", _path(id_))
        if row is None:
            known = ", ".join(one.id for one in self.jobs())
            raise SpecError(
                _("cluster {plan} has no job {id}").format(plan=self.plan.name, id=id_),
                next_step=_("choose one of: {known}").format(known=known)
                if known
                else "rlbox cluster submit TARGET -- COMMAND, first",
            )
        return read_job(row)

    def send(self, package: JobPackage) -> None:
        """Bring a package to Ray, unless it has the very same already."""
        where = f"/api/packages/gcs/{package.name}"
        if self.ask("GET", where) is not None:
            return
        file, disk = f"{self.folder}/{package.name}", self._head.options.data
        self._head.ask("guard-file", disk=disk, path=file)
        self._head.ask("remove", disk=disk, path=file)  # of a call whose host was cut off
        try:
            while block := package.file.read(_PIECE):
                self._head.tell({"do": "piece", "disk": disk, "file": file, "bytes": len(block)}, block)
            self.ask("PUT", where, file=file, kind="application/octet-stream")
        finally:
            self._head.ask("undo", call=file)

    def give(self, id_: str, text: str) -> str:
        """Write a file that a job is to read and remove; return its path on the data disk. It stays for no other."""
        path, disk = f"{self.folder}/{id_}.env", self._head.options.data
        owner = [int(self._head.facts["uid"]), int(self._head.facts["gid"])]
        self._head.ask("guard-file", disk=disk, path=path, job=self._question("GET", _path(id_)))
        self._head.ask("write", disk=disk, path=path, text=text, mode=0o600, owner=owner)
        return path

    def submit(self, id_: str, entrypoint: str, runtime_env: Mapping[str, Any]) -> None:
        """Have Ray start a job."""
        body = {"entrypoint": entrypoint, "submission_id": id_, "runtime_env": dict(runtime_env)}
        self.ask("POST", "/api/jobs/", body)

    def stop(self, id_: str) -> None:
        """Ask Ray to stop a job."""
        self.ask("POST", f"{_path(id_)}/stop")


def _path(id_: str) -> str:
    return f"/api/jobs/{quote(id_, safe='')}"


def require_head(context: ClusterContext, standing: RunningCluster) -> NodeConnection:
    """Return the head of a cluster; `NodeError` where it does not answer or does not run."""
    head = standing.plan.head.name
    if head not in context.fleet.links:
        finding = next((one for one in context.fleet.unreached if one.where == head), None)
        what = f"{finding.title}: {finding.seen}" if finding else _("it is none of --nodes")
        raise NodeError(
            _("the head of cluster {plan} cannot be reached: {what}").format(plan=standing.plan.name, what=what),
            where=head,
            next_step=finding.remedy
            if finding
            else _("name it: --nodes {members}").format(members=",".join(m.name for m in standing.plan.members)),
        )
    if not standing.going(head):
        raise NodeError(
            _("the head of cluster {plan} does not run").format(plan=standing.plan.name),
            where=head,
            next_step=_("rlbox cluster up {words} brings back what died").format(words=context.options.option_text),
        )
    return context.fleet.links[head]


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
        standing = context.require_standing(context.survey())
        api = JobsApi(require_head(context, standing), standing.plan)
        job = api.job(id_)
        if job.ended:
            return job, False
        api.stop(id_)
        until = time.monotonic() + _STOPPED_S
        while not (job := api.job(id_)).ended:
            if time.monotonic() > until:
                raise TimedOut(_("job {id} has not ended, a minute after Ray was asked to stop it").format(id=id_))
            time.sleep(_PAUSE_S)
        return job, True
