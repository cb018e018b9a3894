"""The jobs of a cluster, by Ray's own API beside its head, which has the token, and the logs of all nodes."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import queue
import re
import secrets
import shlex
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from rlbox.amounts import MIB, decimal_size_text
from rlbox.app import App
from rlbox.cluster.connection import Node, NodeStream
from rlbox.cluster.context import ClusterContext, ExistingCluster, open_context
from rlbox.cluster.plan import ClusterOptions, ClusterPlan
from rlbox.cluster.runtime import run_packaged_script
from rlbox.cluster.status import NodeMonitor
from rlbox.errors import EngineError, Interrupted, NodeError, SpecError, TimedOut
from rlbox.findings import Finding
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _
from rlbox.secrets.lookup import find_secrets
from rlbox.secrets.masks import SECRETS_VARIABLE, SecretMasker
from rlbox.terminal import sanitize_for_terminal
from rlbox.values import Secret

SUCCEEDED, FAILED = "SUCCEEDED", "FAILED"
_ENDED = (SUCCEEDED, FAILED, "STOPPED")
_EXCLUDED = (".git", ".venv", "venv", "__pycache__", "ckpts", "checkpoints", "outputs", "wandb")
"""Left out unasked: what git, Python and trainers make there."""

LARGEST_PACKAGE = 512 * MIB
"""Source: ray/_private/runtime_env/packaging.py: a larger package is refused."""

_STOP_S, _POLL_S = 60.0, 1.0
_RAY_LOGS = ("job-driver-*.log", "worker-*.out", "worker-*.err", "raylet.*", "gcs_server.*", "dashboard.err")
_LEADING_TIME = re.compile(r"\[?(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?")


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
    code = row.get("driver_exit_code")
    return ClusterJob(
        id=str(row.get("submission_id") or row.get("job_id") or ""),
        status=str(row.get("status") or "UNKNOWN"),
        exit_code=code if isinstance(code, int) else None,
        message=str(row.get("message") or ""),
        entrypoint=str(row.get("entrypoint") or ""),
        ray_job_id=str(row.get("job_id") or ""),
    )


class JobsApi:
    def __init__(self, head: Node, plan: ClusterPlan) -> None:
        self._head, self._plan = head, plan

    def _ask(self, call: str, **arguments: str) -> Any:
        """Return what Ray answers, None where it knows no such job; `NodeError` where it refuses."""
        request = json.dumps({"call": call, "port": self._plan.ports.of("dashboard"), **arguments})
        try:
            row = run_packaged_script(self._head, self._plan, "ray_api.py", request)
        except EngineError as error:
            raise NodeError(error.what, where=self._head.name, next_step=error.next_step) from error
        if "error" in row:
            raise NodeError(
                _("Ray's jobs API does not answer: {line}").format(line=row["error"]), where=self._head.name
            )
        if row["status"] == 404:
            return None
        text = str(row["text"]).strip()
        if row["status"] >= 400:
            line = text.splitlines()[-1] if text else f"HTTP {row['status']}"
            raise NodeError(_("Ray refuses it: {line}").format(line=line[:300]), where=self._head.name)
        return parse_untrusted_json(text) if text else {}

    def list_jobs(self) -> tuple[ClusterJob, ...]:
        rows = [row for row in self._ask("list") or () if row.get("submission_id")]
        return tuple(read_job(row) for row in sorted(rows, key=lambda row: row.get("start_time") or 0))

    def get_job(self, id_: str) -> ClusterJob:
        row = self._ask("get", id=id_)
        if row is None:
            known = ", ".join(job.id for job in self.list_jobs())
            raise SpecError(
                _("cluster {plan} has no job {id}").format(plan=self._plan.name, id=id_),
                next_step=_("choose one of: {known}").format(known=known)
                if known
                else "rlbox cluster submit TARGET -- COMMAND, first",
            )
        return read_job(row)

    def submit(self, id_: str, entrypoint: str, working_dir_on_head: str) -> None:
        self._ask("submit", id=id_, entrypoint=entrypoint, working_dir=working_dir_on_head)

    def stop(self, id_: str) -> None:
        self._ask("stop", id=id_)


def stop_job(app: App, options: ClusterOptions, id_: str) -> tuple[ClusterJob, bool]:
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


# ---- the working directory


def is_excluded_itself(path: str, patterns: Sequence[str]) -> bool:
    """Return whether a path is left out: by its name, or where a pattern has a `/` as a whole."""
    name = path.rpartition("/")[2]
    stripped = (pattern.strip("/") for pattern in patterns)
    return any(fnmatch.fnmatchcase(path if "/" in pattern else name, pattern) for pattern in stripped)


def find_upload_file_sizes(directory: Path, extra_excludes: Sequence[str]) -> dict[str, int]:
    if not directory.is_dir():
        raise SpecError(
            _("the working directory is missing"),
            where=str(directory),
            next_step=_("name one with --working-dir DIR"),
        )
    patterns, sizes = (*_EXCLUDED, *extra_excludes), dict[str, int]()
    for folder, folders, names in os.walk(directory):
        base = Path(folder).relative_to(directory)
        folders[:] = [name for name in sorted(folders) if not is_excluded_itself((base / name).as_posix(), patterns)]
        for path in ((base / name).as_posix() for name in sorted(names)):
            if not is_excluded_itself(path, patterns) and (directory / path).is_file():
                sizes[path] = (directory / path).stat().st_size
    if (total := sum(sizes.values())) > LARGEST_PACKAGE:
        raise SpecError(
            _("the working directory has {total}, and Ray takes {most}").format(
                total=decimal_size_text(total), most=decimal_size_text(LARGEST_PACKAGE)
            ),
            where=str(directory),
            next_step=_("--exclude {largest}; put the input data of a job on the data disks of the nodes").format(
                largest=max(sizes, key=lambda path: sizes[path])
            ),
        )
    return sizes


def _send_files(head: Node, directory: Path, files: Mapping[str, int], target: str) -> None:
    """Unpack files into the directory `target` of the head; nothing is left of a connection that breaks."""
    goal = shlex.quote(target)
    with tempfile.TemporaryFile() as packed:
        with tarfile.open(fileobj=packed, mode="w:gz", dereference=True) as archive:
            for path in files:
                archive.add(directory / path, path, recursive=False)
        packed.seek(0)
        head.run_shell(f"umask 077; mkdir -p {goal} && tar -xzf - -C {goal} || {{ rm -rf {goal}; exit 1; }}", packed)


# ---- submit and follow


@dataclass(frozen=True, kw_only=True)
class SubmitOptions(ClusterOptions):
    command: tuple[str, ...]
    folder: str = ""
    excludes: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    env_file: str = ""
    detach: bool = False


class SubmitResult(NamedTuple):
    job: ClusterJob
    failures: tuple[Finding, ...] = ()


def submit_and_follow_job(app: App, options: SubmitOptions) -> SubmitResult:
    """Submit a job; return how it ended, or with `detach` that it was taken.

    It goes on where the connection breaks (`NodeError`) or at Ctrl-C (`Interrupted`).
    """
    job_secrets, files = _find_secrets(app, options), _find_files(options)
    id_ = f"job-{secrets.token_hex(4)}"
    with open_context(app, options) as context:
        probe = context.probe()
        cluster = context.require_own_cluster(probe)
        head, plan = context.require_running_head(cluster), cluster.plan
        if options.folder:
            app.print_status(_format_files(options, files))
        _send_job(context, head, plan, options, files, job_secrets, id_)
        app.print_status(f"job {id_} of cluster {plan.name}")
        if options.detach:
            return SubmitResult(JobsApi(head, plan).get_job(id_))
        typed = options.target_and_options_text
        go_on = f"rlbox cluster logs {typed} --job {id_}, or rlbox cluster stop {typed} {id_}"
        with contextlib.closing(NodeMonitor(context, cluster, probe.clock_offsets_s)) as monitor:
            try:
                job = _follow(context, cluster, head, id_, job_secrets)
                return SubmitResult(job, monitor.stop_and_show_findings() if job.status == FAILED else ())
            except KeyboardInterrupt:
                raise Interrupted(_("left alone: job {id} goes on").format(id=id_), next_step=go_on) from None
            except NodeError as error:
                what = _("job {id} is no longer followed: {what}").format(id=id_, what=monitor.stop_and_explain(error))
                raise NodeError(what, where=error.where, next_step=go_on) from error


def dry_run_submit(app: App, options: SubmitOptions) -> int:
    _find_secrets(app, options)
    files = _find_files(options)
    data = {"command": list(options.command), "files": files}
    with open_context(app, options) as context:
        with app.collecting_refusals_if_dry_run("cluster"):
            context.require_running_head(context.require_own_cluster(context.probe()))
        would = f"submit {shlex.join(options.command)} to cluster {context.name}"
        return app.print_dry_run(data, _format_files(options, files) if options.folder else "", would)


def _find_secrets(app: App, options: SubmitOptions) -> dict[str, Secret]:
    if not options.command:
        raise SpecError(
            _("no command is named"), next_step=_("name it behind --: rlbox cluster submit TARGET -- python train.py")
        )
    return find_secrets(
        options.secrets,
        (),
        overriding_env_file=Path(options.env_file) if options.env_file else None,
        fallback_env_file_dirs=[app.project.folder],
        environ=os.environ,
        aliases=(),
        logged_texts=options.command,
    )


def _find_files(options: SubmitOptions) -> dict[str, int]:
    return find_upload_file_sizes(Path(options.folder), options.excludes) if options.folder else {}


def _format_files(options: SubmitOptions, files: Mapping[str, int]) -> str:
    return f"working directory {options.folder}: {len(files)} files, {decimal_size_text(sum(files.values()))}"


def _send_job(
    context: ClusterContext,
    head: Node,
    plan: ClusterPlan,
    options: SubmitOptions,
    files: Mapping[str, int],
    job_secrets: Mapping[str, Secret],
    id_: str,
) -> None:
    """Bring directory and secrets to the head and have Ray start the job.

    Secrets are in a file that the job's command reads and removes, and in no command line.
    """
    directory = plan.directory_relative_to_disk(head.name)
    disk = head.spec.data if plan.head.is_inplace else context.image.container.disk_mount
    working_dir, secrets_file = f"{directory}/{id_}", f"{directory}/{id_}.env"
    if options.folder:
        _send_files(head, Path(options.folder), files, f"{head.spec.data}/{working_dir}")
    command = shlex.join(options.command)
    if job_secrets:
        values = _reveal(job_secrets)
        text = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())
        head.call("write_private_file", disk=head.spec.data, path=secrets_file, text=text)
        inside = shlex.quote(f"{disk}/{secrets_file}")
        command = f". {inside} && rm -f {inside} && exec {command}"
    try:
        JobsApi(head, plan).submit(id_, command, f"{disk}/{working_dir}" if options.folder else "")
    except NodeError:
        head.call("remove_with_empty_parents", disk=head.spec.data, path=secrets_file)
        raise


def _reveal(job_secrets: Mapping[str, Secret]) -> dict[str, str]:
    values = {name: secret.reveal() for name, secret in job_secrets.items()}
    return {**values, SECRETS_VARIABLE: ",".join(values)}


def _follow(
    context: ClusterContext, cluster: ExistingCluster, head: Node, id_: str, job_secrets: Mapping[str, Secret]
) -> ClusterJob:
    masker, api = SecretMasker(_reveal(job_secrets)), JobsApi(head, cluster.plan)
    stream = cluster.start_log_stream(head, [f"job-driver-{id_}.log"], follow=True)

    def show() -> None:
        with contextlib.suppress(NodeError):  # the next question about the job says so
            for logs in stream:
                text = "".join(sanitize_for_terminal(masker.mask_text(text)) for __, text, ___ in logs)
                if not context.app.as_json:
                    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
                    sys.stdout.flush()

    reader = threading.Thread(target=show, name=id_, daemon=True)
    reader.start()
    try:
        while not (job := api.get_job(id_)).has_ended:
            time.sleep(_POLL_S)
        stream.end_input()
        reader.join()
        return job
    finally:
        stream.close()


# ---- logs of all nodes in one order, over the nodes' own connections


class LogLine(NamedTuple):
    """A line of a node's log; `at` in seconds since 1970 by the clock of this machine."""

    at: float
    node: str
    file: str
    text: str

    def format(self) -> str:
        moment = datetime.fromtimestamp(self.at, timezone.utc)
        return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d} {self.node} {self.file}: {self.text}"


def parse_leading_utc_time(line: str) -> float | None:
    match = _LEADING_TIME.match(line)
    if not match:
        return None
    try:
        moment = datetime.strptime(f"{match[1]} {match[2]}.{match[3] or 0} +0000", "%Y-%m-%d %H:%M:%S.%f %z")
    except ValueError:
        return None
    return moment.timestamp()


class LogLineTimestamper:
    """The time of each line of each log: its own, else that of the line before it.

    Lines before the first that has a time have that of it; of a text without any all are of when it was written.
    """

    def __init__(self, clock_offsets_s: Mapping[str, float]) -> None:
        self._clock_offsets_s = clock_offsets_s
        self._last: dict[tuple[str, str], float] = {}

    def timestamp_lines(self, node: str, logs: Sequence[tuple[str, str, float]]) -> Iterator[LogLine]:
        for file, text, written in logs:
            lines = [(parse_leading_utc_time(line), line) for line in text.splitlines()]
            begin = max(written, self._last.get((node, file), 0.0))
            last = next((at for at, __ in lines if at is not None), begin)
            for at, line in lines:
                last = last if at is None else at
                yield LogLine(last - self._clock_offsets_s[node], node, file, line)
            self._last[node, file] = last


def read_logs(
    app: App,
    options: ClusterOptions,
    show: Callable[[LogLine], None],
    *,
    job: str,
    lines: int | None,
    follow_until_interrupted: bool,
) -> None:
    """Show the last `lines` (None: all) of all nodes that answer, of one `job` where it is named.

    With `follow_until_interrupted` it ends by Ctrl-C alone, or with a `NodeError` as the connection to a node breaks.
    """
    masker = SecretMasker(os.environ)
    with open_context(app, options) as context:
        for line in context.pool.format_unreached():
            app.print_status(line)
        probe = context.probe()
        cluster = context.require_own_cluster(probe)
        patterns = _choose_patterns(context, cluster, job)
        pool = context.pool.select_skipping_unconnected(list(cluster.instances))
        clocks = LogLineTimestamper(probe.clock_offsets_s)
        streams = pool.map(lambda node: cluster.start_log_stream(node, patterns, follow=follow_until_interrupted))
        try:
            reports = pool.map(lambda node: streams[node.name].next_or_raise())
            found = [line for name, report in reports.items() for line in clocks.timestamp_lines(name, report)]
            found.sort(key=lambda line: line.at)
            for log_line in found[0 if lines is None else max(0, len(found) - lines) :]:
                show(log_line._replace(text=masker.mask_text(log_line.text)))
            for name, report in _merge_streams(streams) if follow_until_interrupted else ():
                for log_line in clocks.timestamp_lines(name, report):
                    show(log_line._replace(text=masker.mask_text(log_line.text)))
        finally:
            for stream in streams.values():
                stream.close()


def _choose_patterns(context: ClusterContext, cluster: ExistingCluster, job: str) -> tuple[str, ...]:
    if not job:
        return _RAY_LOGS
    found = JobsApi(context.require_running_head(cluster), cluster.plan).get_job(job)
    workers = (f"worker-*-{found.ray_job_id}-*.out", f"worker-*-{found.ray_job_id}-*.err") if found.ray_job_id else ()
    return (f"job-driver-{found.id}.log", *workers)


def _merge_streams(streams: Mapping[str, NodeStream]) -> Iterator[tuple[str, Any]]:
    reports: queue.Queue[tuple[str, Any]] = queue.Queue()

    def read(name: str, stream: NodeStream) -> None:
        try:
            for report in stream:
                reports.put((name, report))
        except NodeError as error:
            reports.put((name, error))

    for name, stream in streams.items():
        threading.Thread(target=read, args=(name, stream), name=f"reports of {name}", daemon=True).start()
    while True:
        name, report = reports.get()
        if isinstance(report, NodeError):
            raise NodeError(report.what, next_step=_("the same command again: the cluster lives on")) from report
        yield name, report
