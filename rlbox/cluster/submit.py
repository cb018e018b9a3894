"""Submit a job to a cluster, and follow what its driver writes until it ends."""

from __future__ import annotations

import fnmatch
import os
import queue
import secrets
import shlex
import stat
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rlbox.amounts import MIB, size_text
from rlbox.app import App
from rlbox.cluster.connection import Node, read_streams
from rlbox.cluster.context import ClusterContext, RunningCluster, open_context
from rlbox.cluster.jobs import FAILED, ClusterJob, JobsApi, RayRefusedError
from rlbox.cluster.logs import start_logs
from rlbox.cluster.monitor import NodeMonitor
from rlbox.cluster.options import SubmitOptions
from rlbox.cluster.plan import ClusterPlan
from rlbox.cluster.probe import ClusterProbe
from rlbox.cluster.runtime import create_runtime
from rlbox.errors import Interrupted, NodeError, SpecError
from rlbox.findings import Finding
from rlbox.i18n import _
from rlbox.secrets.lookup import find_secrets
from rlbox.secrets.masks import SECRETS_VARIABLE, SecretMasker
from rlbox.terminal import ControlFilter
from rlbox.values import Secret

EXCLUDED = (".git", ".venv", "venv", "__pycache__", "ckpts", "checkpoints", "outputs", "wandb")
"""Left out unasked: what git, Python and trainers make there."""

LARGEST_PACKAGE = 512 * MIB
"""Source: ray/_private/runtime_env/packaging.py: a larger package is refused."""

_POLL_S, _LAST_S = 1.0, 5.0
_LOG_BYTES = 1 << 22


# ---- the working directory


@dataclass(frozen=True, kw_only=True)
class WorkingDirectory:
    """The files that go along: their bytes by path; `skipped` are links to directories, sockets and the like."""

    path: Path
    sizes: dict[str, int]
    skipped: tuple[str, ...] = ()

    def text(self) -> str:
        skipped = f"; left out: {', '.join(self.skipped[:8])}" if self.skipped else ""
        total = size_text(sum(self.sizes.values()))
        return f"working directory {self.path}: {len(self.sizes)} files, {total}{skipped}"


def is_excluded(path: str, patterns: Sequence[str]) -> bool:
    """Return whether a path is left out: by a name in it, or where a pattern has a `/` by a path that it is below."""
    names = path.split("/")
    heads = ["/".join(names[:end]) for end in range(1, len(names) + 1)]
    for pattern in (pattern.strip("/") for pattern in patterns):
        if any(fnmatch.fnmatchcase(part, pattern) for part in (heads if "/" in pattern else names)):
            return True
    return False


def find_files(directory: Path, excludes: Sequence[str]) -> WorkingDirectory:
    """Return what of a directory goes along; `SpecError` where it is none, or too much for Ray."""
    if not directory.is_dir():
        raise SpecError(
            _("the working directory is missing"),
            where=str(directory),
            next_step=_("name one with --working-dir DIR"),
        )
    patterns, sizes, skipped = (*EXCLUDED, *excludes), dict[str, int](), list[str]()
    for folder, folders, names in os.walk(directory):
        base = Path(folder).relative_to(directory)
        kept = [name for name in sorted(folders) if not is_excluded((base / name).as_posix(), patterns)]
        folders[:] = [name for name in kept if not Path(folder, name).is_symlink()]
        skipped += [(base / name).as_posix() for name in kept if name not in folders]
        for path in ((base / name).as_posix() for name in sorted(names)):
            if not is_excluded(path, patterns):
                try:
                    about = (directory / path).stat()
                except OSError:  # a link that leads nowhere
                    skipped.append(path)
                    continue
                if stat.S_ISREG(about.st_mode):
                    sizes[path] = about.st_size
                else:
                    skipped.append(path)
    _check_size(directory, sizes)
    return WorkingDirectory(path=directory, sizes=sizes, skipped=tuple(skipped))


def _check_size(directory: Path, sizes: Mapping[str, int]) -> None:
    total = sum(sizes.values())
    if total <= LARGEST_PACKAGE:
        return
    parts: Counter[str] = Counter()
    for path, size in sizes.items():
        parts[path.split("/")[0]] += size
    largest = parts.most_common(3)
    raise SpecError(
        _("the working directory has {total}, and Ray takes {most}: {named}").format(
            total=size_text(total),
            most=size_text(LARGEST_PACKAGE),
            named=", ".join(f"{name} {size_text(size)}" for name, size in largest),
        ),
        where=str(directory),
        next_step=_("--exclude {largest}; what a job reads belongs on the nodes' data disks").format(
            largest=largest[0][0]
        ),
    )


def send_files(head: Node, files: WorkingDirectory, target: str) -> None:
    """Unpack the files into the directory `target` of the head; nothing is left of a connection that breaks."""
    goal = shlex.quote(target)
    with tempfile.TemporaryFile() as packed:
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for path in files.sizes:
                archive.add(os.path.realpath(files.path / path), path, recursive=False)
        packed.seek(0)
        head.run_shell(f"umask 077; mkdir -p {goal} && tar -xzf - -C {goal} || {{ rm -rf {goal}; exit 1; }}", packed)


# ---- submit and follow


@dataclass(frozen=True, kw_only=True)
class SubmitResult:
    """A job that was submitted; `failures` are what happened to nodes, the first first, where it failed."""

    job: ClusterJob
    failures: tuple[Finding, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Submission:
    """What is looked for before any node is asked."""

    options: SubmitOptions
    files: WorkingDirectory | None
    secrets: Mapping[str, Secret]
    id: str

    def masker(self) -> SecretMasker:
        values = {name: secret.reveal() for name, secret in self.secrets.items()}
        return SecretMasker({**values, SECRETS_VARIABLE: ",".join(values)})

    def send(self, head: Node, plan: ClusterPlan, mount: str) -> None:
        """Bring directory and secrets to the head and have Ray start the job.

        Secrets are in a file that the job's command reads and removes, and in no command line.
        """
        directory, disk = plan.directory(head.name), create_runtime(head, plan, plan.head).disk(mount)
        working_dir = f"{directory}/{self.id}" if self.files else ""
        if self.files:
            send_files(head, self.files, f"{head.spec.data}/{working_dir}")
        command = shlex.join(self.options.command)
        if self.secrets:
            lines = [f"export {name}={shlex.quote(one.reveal())}\n" for name, one in self.secrets.items()]
            names = f"export {SECRETS_VARIABLE}={shlex.quote(','.join(self.secrets))}\n"
            path, owner = f"{directory}/{self.id}.env", [head.machine["uid"], head.machine["gid"]]
            head.call("write", disk=head.spec.data, path=path, text="".join([*lines, names]), owner=owner)
            inside = shlex.quote(f"{disk}/{path}")
            command = f". {inside} && rm -f {inside} && exec {command}"
        try:
            JobsApi(head, plan).submit(self.id, command, f"{disk}/{working_dir}" if working_dir else "")
        except NodeError:
            if self.secrets:
                head.call("remove", disk=head.spec.data, path=f"{directory}/{self.id}.env")
            raise


def submit(app: App, options: SubmitOptions) -> SubmitResult:
    """Submit a job; return how it ended, or with `detach` that it was taken.

    Raises
    ------
    SpecError
        The directory is none or too large, or a secret is nowhere.
    NodeError
        There is no such cluster, or the connection to its head broke; the job goes on then.
    Interrupted
        Ctrl-C: the job goes on.
    """
    submission = _prepare(app, options)
    with open_context(app, options) as context:
        probe = context.probe()
        cluster = context.require_cluster(probe)
        head = context.require_head(cluster)
        if submission.files:
            app.say(submission.files.text())
        with _job_goes_on(options, submission.id):
            submission.send(head, cluster.plan, context.image.container.mount)
            app.say(f"job {submission.id} of cluster {cluster.plan.name}")
            if options.detach:
                return SubmitResult(job=JobsApi(head, cluster.plan).get_job(submission.id))
            return _follow(context, probe, cluster, head, submission)


def dry_run_submit(app: App, options: SubmitOptions) -> int:
    """Say what would be submitted, and what is refused; return the exit code of a dry run."""
    submission = _prepare(app, options)
    files = submission.files
    data = {"command": list(options.command), "files": dict(files.sizes) if files else {}}
    with open_context(app, options) as context:
        with app.checking("cluster"):
            context.require_head(context.require_cluster(context.probe()))
        would = f"submit {shlex.join(options.command)} to cluster {context.name}"
        return app.planned(data, files.text() if files else "", would)


def _prepare(app: App, options: SubmitOptions) -> _Submission:
    if not options.command:
        raise SpecError(
            _("no command is named"), next_step=_("name it behind --: rlbox cluster submit TARGET -- python train.py")
        )
    found = find_secrets(
        options.secrets,
        (),
        env_file=Path(options.env_file) if options.env_file else None,
        env_file_dirs=[app.project.folder],
        environ=os.environ,
        aliases=(),
        argv=options.command,
    )
    files = find_files(Path(options.folder), options.excludes) if options.folder else None
    return _Submission(options=options, files=files, secrets=found, id=f"job-{secrets.token_hex(4)}")


def _follow(
    context: ClusterContext, probe: ClusterProbe, cluster: RunningCluster, head: Node, submission: _Submission
) -> SubmitResult:
    """Print what the driver writes until the job has ended; the nodes are watched meanwhile."""
    patterns = [f"job-driver-{submission.id}.log"]
    stream = start_logs(context, cluster, head.name, patterns, follow=True, most=_LOG_BYTES)
    monitor = NodeMonitor(context, cluster, probe.offsets)
    printer = _Printer(submission.masker(), is_quiet=context.app.as_json)
    api, job = JobsApi(head, cluster.plan), ClusterJob(id=submission.id, status="PENDING")
    try:
        reports, asked_at, ended_at = read_streams({head.name: stream}), 0.0, float("inf")
        while True:
            if not job.has_ended and time.monotonic() - asked_at > _POLL_S:
                asked_at, job = time.monotonic(), api.get_job(submission.id)
                if job.has_ended:
                    ended_at = time.monotonic()
                    stream.end_input()  # it reports the last lines, and ends
            try:
                __, report = reports.get(timeout=_POLL_S)
            except queue.Empty:
                if time.monotonic() - ended_at < _LAST_S:
                    continue
                report = None if job.has_ended else {"logs": []}
            if isinstance(report, NodeError):
                raise report
            if report is None:
                printer.close()
                break
            for row in report["logs"]:
                printer.write(str(row["text"]))
        failures = monitor.list_findings() if job.status == FAILED else ()
        return SubmitResult(job=job, failures=failures)
    except NodeError as error:
        lines = [f"\n  {one.where}: {one.title}: {one.seen}" for one in monitor.list_findings()]
        raise NodeError("".join([error.what, *lines]), where=error.where, next_step=error.next_step) from error
    finally:
        monitor.close()
        stream.close()


class _Printer:
    """Writes what a driver writes to stdout, without secrets and control sequences."""

    def __init__(self, masker: SecretMasker, *, is_quiet: bool) -> None:
        self._masks, self._filter, self._is_quiet = masker.open_stream(), ControlFilter(), is_quiet

    def write(self, text: str) -> None:
        self._print(self._filter.feed(self._masks.feed(text.encode())))

    def close(self) -> None:
        self._print(self._filter.feed(self._masks.close()) + self._filter.close())

    def _print(self, data: bytes) -> None:
        if data and not self._is_quiet:
            sys.stdout.buffer.write(data)
            sys.stdout.flush()


@contextmanager
def _job_goes_on(options: SubmitOptions, id_: str) -> Iterator[None]:
    """Say of what breaks off from here on that the job goes on without this process."""
    go_on = f"rlbox cluster logs {options.option_text} --job {id_}, or rlbox cluster stop {options.option_text} {id_}"
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(_("left alone: job {id} goes on").format(id=id_), next_step=go_on) from None
    except RayRefusedError:
        raise
    except NodeError as error:
        raise NodeError(
            _("job {id} is no longer followed: {what}").format(id=id_, what=error.what),
            where=error.where,
            next_step=go_on,
        ) from error
