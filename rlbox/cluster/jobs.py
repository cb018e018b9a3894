"""The jobs of a cluster, by Ray's own API beside its head, which has the token, and the logs of all nodes."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import secrets
import shlex
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from rlbox.amounts import MIB, decimal_size_text
from rlbox.app import App
from rlbox.cluster.nodes import ExistingCluster, Node, open_context
from rlbox.cluster.plan import ClusterOptions, ClusterPlan
from rlbox.cluster.runtime import RAY_DIRECTORY, RAY_TEMP, ask_in_stack
from rlbox.cluster.status import NodeFailureMonitor
from rlbox.errors import Interrupted, MachineError, SpecError, TimedOut
from rlbox.findings import Finding
from rlbox.i18n import _, translate
from rlbox.secrets.lookup import find_secrets_rejecting_weak
from rlbox.secrets.masks import SECRETS_VARIABLE, SecretMasker
from rlbox.values import Secret

SUCCEEDED, FAILED = "SUCCEEDED", "FAILED"
_ENDED = (SUCCEEDED, FAILED, "STOPPED")
_EXCLUDED = (".git", ".venv", "venv", "__pycache__", "ckpts", "checkpoints", "outputs", "wandb")
"""Left out unasked: what git, Python and trainers make there."""

LARGEST_PACKAGE = 512 * MIB
"""Source: ray/_private/runtime_env/packaging.py: a larger package is refused."""

_POLL_S = 1.0
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


def call_ray_jobs_api(
    head: Node, plan: ClusterPlan, call: str = "list", id_: str = "", *, entrypoint: str = "", working_dir: str = ""
) -> tuple[ClusterJob, ...]:
    """Have Ray's jobs API list, submit, stop or wait for a job; return those that were submitted, the oldest first."""
    port = plan.ports.of("dashboard")
    row = ask_in_stack(head, plan, call, port=port, id=id_, entrypoint=entrypoint, working_dir=working_dir)
    return tuple(ClusterJob(**job) for job in row["jobs"])


def call_and_require_job(head: Node, plan: ClusterPlan, id_: str, call: str = "list") -> ClusterJob:
    jobs = call_ray_jobs_api(head, plan, call, id_)
    if job := next((job for job in jobs if job.id == id_), None):
        return job
    known = ", ".join(job.id for job in jobs)
    step = _("choose one of: {known}").format(known=known) if known else "rlbox cluster submit TARGET -- COMMAND, first"
    raise SpecError(_("cluster {plan} has no job {id}").format(plan=plan.name, id=id_), next_step=step)


def stop_job(app: App, options: ClusterOptions, id_: str) -> tuple[ClusterJob, bool]:
    with open_context(app, options) as context:
        cluster = context.require_own_cluster()
        head = cluster.require_running_head()
        job = call_and_require_job(head, cluster.plan, id_)
        if job.has_ended:
            return job, False
        for call in ("stop", "wait", "wait", "wait"):
            if (job := call_and_require_job(head, cluster.plan, id_, call)).has_ended:
                return job, True
        raise TimedOut(_("job {id} has not ended, a minute after Ray was asked to stop it").format(id=id_))


# ---- the working directory


def is_excluded_itself(path: str, patterns: Sequence[str]) -> bool:
    """Return whether a path is left out: by its name, or where a pattern has a `/` as a whole."""
    name = path.rpartition("/")[2]
    stripped = (pattern.strip("/") for pattern in patterns)
    return any(fnmatch.fnmatchcase(path if "/" in pattern else name, pattern) for pattern in stripped)


def measure_upload_raise_if_too_large(directory: str | None, extra_excludes: Sequence[str]) -> dict[str, int]:
    if directory is None:
        return {}
    patterns, sizes = (*_EXCLUDED, *extra_excludes), dict[str, int]()
    for folder, folders, names in os.walk(directory):
        base = Path(folder).relative_to(directory)
        folders[:] = [name for name in sorted(folders) if not is_excluded_itself((base / name).as_posix(), patterns)]
        for path in ((base / name).as_posix() for name in sorted(names)):
            if not is_excluded_itself(path, patterns) and Path(directory, path).is_file():
                sizes[path] = Path(directory, path).stat().st_size
    if (total := sum(sizes.values())) > LARGEST_PACKAGE:
        raise SpecError(
            _("the working directory has {total}, and Ray takes {most}").format(
                total=decimal_size_text(total), most=decimal_size_text(LARGEST_PACKAGE)
            ),
            where=directory,
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
    folder: str | None = None
    excludes: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    env_file: str = ""
    detach: bool = False


def submit_follow_job_and_find_node_failures(
    app: App, options: SubmitOptions
) -> tuple[ClusterJob, tuple[Finding, ...]]:
    """Submit a job; return how it ended, or with `detach` that it was taken, and what happened to nodes if it failed.

    It goes on where the connection breaks (`MachineError`) or at Ctrl-C (`Interrupted`).
    """
    job_secrets = _find_secrets(app, options)
    files = measure_upload_raise_if_too_large(options.folder, options.excludes)
    id_ = f"job-{secrets.token_hex(4)}"
    with open_context(app, options) as context:
        cluster = context.require_own_cluster()
        head = cluster.require_running_head()
        if options.folder:
            app.print_status(_format_files(options, files))
        _send_job(cluster, options, files, job_secrets, id_)
        app.print_status(_("job {id} of cluster {cluster}").format(id=id_, cluster=cluster.plan.name))
        if options.detach:
            return call_and_require_job(head, cluster.plan, id_), ()
        go_on = _("rlbox cluster logs {words} --job {id}, or rlbox cluster stop {words} {id}")
        go_on = go_on.format(words=options.target_and_options_text, id=id_)
        driver_log = LogReader(cluster, [head.name], [f"job-driver-{id_}.log"], _reveal(job_secrets))
        with contextlib.closing(NodeFailureMonitor(cluster)) as monitor:
            try:
                job = _follow(app, cluster.plan, head, id_, driver_log)
                return job, monitor.stop_probe_and_show_findings() if job.status == FAILED else ()
            except KeyboardInterrupt:
                raise Interrupted(_("left alone: job {id} goes on").format(id=id_), next_step=go_on) from None
            except MachineError as error:
                why = monitor.stop_show_and_format_error_with_findings(error)
                what = _("job {id} is no longer followed: {what}").format(id=id_, what=why)
                raise MachineError(what, where=error.where, next_step=go_on) from error


def dry_run_submit(app: App, options: SubmitOptions) -> int:
    _find_secrets(app, options)
    files = measure_upload_raise_if_too_large(options.folder, options.excludes)
    data = {"command": list(options.command), "files": files}
    with open_context(app, options) as context:
        with app.collecting_refusals_if_dry_run("cluster"):
            context.require_own_cluster().require_running_head()
        would = _("submit {command} to cluster {name}").format(command=shlex.join(options.command), name=context.name)
        return app.print_dry_run(data, translate(_format_files(options, files)) if options.folder else "", would)


def _find_secrets(app: App, options: SubmitOptions) -> dict[str, Secret]:
    return find_secrets_rejecting_weak(
        options.secrets,
        (),
        overriding_env_file=Path(options.env_file) if options.env_file else None,
        fallback_env_file_dirs=[app.project.folder],
        environ=os.environ,
        aliases=(),
        logged_texts=options.command,
    )


def _format_files(options: SubmitOptions, files: Mapping[str, int]) -> str:
    text = _("working directory {folder}: {count} files, {size}")
    return text.format(folder=options.folder, count=len(files), size=decimal_size_text(sum(files.values())))


def _send_job(
    cluster: ExistingCluster,
    options: SubmitOptions,
    files: Mapping[str, int],
    job_secrets: Mapping[str, Secret],
    id_: str,
) -> None:
    """Bring directory and secrets to the head and have Ray start the job.

    Secrets are in a file that the job's command reads and removes, and in no command line.
    """
    plan, head = cluster.plan, cluster.require_running_head()
    data = head.spec.data
    directory = plan.directory_relative_to_disk(head.name)
    disk = data if plan.head.is_inplace else cluster.context.image.container.disk_mount
    working_dir, secrets_file = f"{directory}/{id_}", f"{directory}/{id_}.env"
    if options.folder:
        _send_files(head, Path(options.folder), files, f"{data}/{working_dir}")
    command = shlex.join(options.command)
    if job_secrets:
        values = _reveal(job_secrets)
        text = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())
        head.call("write_private_file", disk=data, path=secrets_file, text=text)
        inside = shlex.quote(f"{disk}/{secrets_file}")
        command = f". {inside} && rm -f {inside} && exec {command}"
    inside = f"{disk}/{working_dir}" if options.folder else ""
    try:
        call_ray_jobs_api(head, plan, "submit", id_, entrypoint=command, working_dir=inside)
    except MachineError:
        head.run_shell(f"rm -f {shlex.quote(f'{data}/{secrets_file}')}")
        raise


def _reveal(job_secrets: Mapping[str, Secret]) -> dict[str, str]:
    values = {name: secret.reveal() for name, secret in job_secrets.items()}
    return {**values, SECRETS_VARIABLE: ",".join(values)}


def _follow(app: App, plan: ClusterPlan, head: Node, id_: str, driver_log: LogReader) -> ClusterJob:
    ended = threading.Event()

    def show() -> None:
        with contextlib.suppress(MachineError):  # the next question about the job says so
            has_ended = False
            while not has_ended:
                has_ended = ended.wait(_POLL_S)
                for line in driver_log.read(with_unfinished_lines=has_ended):
                    if not app.as_json:
                        app.print_stdout(line.text)

    reader = threading.Thread(target=show, name=id_, daemon=True)
    reader.start()
    while not (job := call_and_require_job(head, plan, id_, "wait")).has_ended:
        pass
    ended.set()
    reader.join()
    return job


# ---- logs of all nodes in one order


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
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(f"{match[1]}T{match[2]}.{match[3] or 0:0<6}+00:00").timestamp() if match else None
    return None


def iterate_lines_with_own_or_previous_time(text: str, unix_s_without_any_time: float) -> Iterator[tuple[float, str]]:
    """Yield each line with its time, else that of the line before it.

    Lines before the first that has a time have that of it; of a text without any all are of when it was written.
    """
    lines = [(parse_leading_utc_time(line), line) for line in text.splitlines()]
    last = next((at for at, __ in lines if at is not None), unix_s_without_any_time)
    for at, line in lines:
        last = last if at is None else at
        yield last, line


class LogReader:
    """Reads what logs of nodes gained, first their ends, as lines in the order of their times; secrets are masked."""

    def __init__(
        self,
        cluster: ExistingCluster,
        nodes: Iterable[str],
        patterns: Sequence[str],
        secrets_to_mask: Mapping[str, str],
    ) -> None:
        self._cluster, self._patterns, self._masker = cluster, list(patterns), SecretMasker(secrets_to_mask)
        self._pool = cluster.context.pool.select_skipping_unconnected(nodes)
        self._offsets: dict[str, dict[str, int]] = {name: {} for name in self._pool.nodes}

    def read(self, *, with_unfinished_lines: bool = False) -> list[LogLine]:
        plan, instances, lines = self._cluster.plan, self._cluster.instances, []

        def ask(node: Node) -> Any:
            directory = f"{node.spec.data}/{plan.directory_relative_to_disk(node.name)}/{RAY_DIRECTORY}"
            return node.call(
                "tail_ray_logs",
                ray_directory=RAY_TEMP if instances[node.name].is_inplace else directory,
                patterns=self._patterns,
                offsets=self._offsets[node.name],
                with_unfinished_lines=with_unfinished_lines,
            )

        for node, logs in self._pool.map(ask).items():
            for file, (text, written, offset) in logs.items():
                self._offsets[node][file] = offset
                for at, line in iterate_lines_with_own_or_previous_time(self._masker.mask_text(text), written):
                    lines.append(LogLine(at - self._cluster.probe.clock_offsets_s[node], node, file, line))
        return sorted(lines, key=lambda line: line.at)


def iterate_log_lines(
    app: App, options: ClusterOptions, *, job: str, lines: int | None, follow_until_interrupted: bool
) -> Iterator[LogLine]:
    """Yield the last `lines` (None: all) of all nodes that answer, of one `job` where it is named.

    With `follow_until_interrupted` it ends by Ctrl-C alone, or by `MachineError` as the connection to a node breaks.
    """
    with open_context(app, options) as context:
        for text in context.pool.format_unreached():
            app.print_status(text)
        cluster = context.require_own_cluster()
        reader = LogReader(cluster, cluster.instances, _choose_patterns(cluster, job), os.environ)
        found = reader.read(with_unfinished_lines=not follow_until_interrupted)
        yield from found[0 if lines is None else max(0, len(found) - lines) :]
        try:
            while follow_until_interrupted:
                time.sleep(_POLL_S)
                yield from reader.read()
        except MachineError as error:
            raise MachineError(error.what, next_step=_("the same command again: the cluster lives on")) from error


def _choose_patterns(cluster: ExistingCluster, job: str) -> tuple[str, ...]:
    if not job:
        return _RAY_LOGS
    found = call_and_require_job(cluster.require_running_head(), cluster.plan, job)
    workers = (f"worker-*-{found.ray_job_id}-*.out", f"worker-*-{found.ray_job_id}-*.err") if found.ray_job_id else ()
    return (f"job-driver-{found.id}.log", *workers)
