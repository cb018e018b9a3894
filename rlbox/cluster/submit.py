"""Submit a job to a cluster, and follow what its driver writes until it ends."""

from __future__ import annotations

import fnmatch
import os
import secrets
import shlex
import sys
import tarfile
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rlbox.amounts import MIB, decimal_size_text
from rlbox.app import App
from rlbox.cluster.connection import Node, NodeStream
from rlbox.cluster.context import ClusterContext, ExistingCluster, open_context
from rlbox.cluster.jobs import FAILED, ClusterJob, JobsApi, RayRefusedError
from rlbox.cluster.logs import start_log_stream
from rlbox.cluster.monitor import NodeMonitor
from rlbox.cluster.options import SubmitOptions
from rlbox.cluster.plan import ClusterPlan
from rlbox.cluster.runtime import select_runtime
from rlbox.errors import Interrupted, NodeError, RlboxError, SpecError
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

_POLL_S = 1.0
_LOG_BYTES = 1 << 22


# ---- the working directory


def is_excluded(path: str, patterns: Sequence[str]) -> bool:
    """Return whether a path is left out: by its name, or where a pattern has a `/` as a whole."""
    name = path.rpartition("/")[2]
    stripped = (pattern.strip("/") for pattern in patterns)
    return any(fnmatch.fnmatchcase(path if "/" in pattern else name, pattern) for pattern in stripped)


def find_upload_file_sizes(directory: Path, excludes: Sequence[str]) -> dict[str, int]:
    """Return what of a directory goes along, with its bytes; `SpecError` where it is none, or too much for Ray."""
    if not directory.is_dir():
        raise SpecError(
            _("the working directory is missing"),
            where=str(directory),
            next_step=_("name one with --working-dir DIR"),
        )
    patterns, sizes = (*EXCLUDED, *excludes), dict[str, int]()
    for folder, folders, names in os.walk(directory):
        base = Path(folder).relative_to(directory)
        folders[:] = [name for name in sorted(folders) if not is_excluded((base / name).as_posix(), patterns)]
        for path in ((base / name).as_posix() for name in sorted(names)):
            if not is_excluded(path, patterns) and (directory / path).is_file():
                sizes[path] = (directory / path).stat().st_size
    _check_size(directory, sizes)
    return sizes


def _check_size(directory: Path, sizes: Mapping[str, int]) -> None:
    total = sum(sizes.values())
    if total <= LARGEST_PACKAGE:
        return
    parts: Counter[str] = Counter()
    for path, size in sizes.items():
        parts[path.split("/")[0]] += size
    largest, size = parts.most_common(1)[0]
    raise SpecError(
        _("the working directory has {total}, and Ray takes {most}: {named}").format(
            total=decimal_size_text(total),
            most=decimal_size_text(LARGEST_PACKAGE),
            named=f"{largest} {decimal_size_text(size)}",
        ),
        where=str(directory),
        next_step=_("--exclude {largest}; put the input data of a job on the data disks of the nodes").format(
            largest=largest
        ),
    )


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
class _JobInputs:
    """What goes along with a job: files of its working directory, None without one, and secrets by name."""

    files: Mapping[str, int] | None
    secrets: Mapping[str, Secret]


@dataclass(frozen=True, kw_only=True)
class SubmitResult:
    """A job that was submitted; `failures` are what happened to nodes, the first first, where it failed."""

    job: ClusterJob
    failures: tuple[Finding, ...] = ()


def submit_and_follow_job(app: App, options: SubmitOptions) -> SubmitResult:
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
    inputs = _find_inputs(app, options)
    id_ = f"job-{secrets.token_hex(4)}"
    with open_context(app, options) as context:
        probe = context.probe()
        cluster = context.require_own_cluster(probe)
        head, plan = context.require_running_head(cluster), cluster.plan
        if inputs.files is not None:
            app.print_status(_format_files(options, inputs.files))
        with _job_goes_on(options, id_):
            _send_job(context, head, plan, options, inputs, id_)
            app.print_status(f"job {id_} of cluster {plan.name}")
            if options.detach:
                return SubmitResult(job=JobsApi(head, plan).get_job(id_))
            monitor = NodeMonitor(context, cluster, probe.clock_offsets_s)
            try:
                job = _follow(context, cluster, head, id_, inputs)
                return SubmitResult(job=job, failures=monitor.probe_and_list_findings() if job.status == FAILED else ())
            except NodeError as error:
                lines = [f"\n  {one.where}: {one.title}: {one.seen}" for one in monitor.probe_and_list_findings()]
                raise NodeError("".join([error.what, *lines]), where=error.where, next_step=error.next_step) from error
            finally:
                monitor.close()


def dry_run_submit(app: App, options: SubmitOptions) -> int:
    """Say what would be submitted, and what is refused; return the exit code of a dry run."""
    files = _find_inputs(app, options).files
    data = {"command": list(options.command), "files": dict(files or {})}
    with open_context(app, options) as context:
        with app.collecting_refusals_if_dry_run("cluster"):
            context.require_running_head(context.require_own_cluster(context.probe()))
        would = f"submit {shlex.join(options.command)} to cluster {context.name}"
        return app.planned(data, "" if files is None else _format_files(options, files), would)


def _find_inputs(app: App, options: SubmitOptions) -> _JobInputs:
    """Return what goes along; it is looked for before any node is asked."""
    if not options.command:
        raise SpecError(
            _("no command is named"), next_step=_("name it behind --: rlbox cluster submit TARGET -- python train.py")
        )
    found = find_secrets(
        options.secrets,
        (),
        overriding_env_file=Path(options.env_file) if options.env_file else None,
        fallback_env_file_dirs=[app.project.folder],
        environ=os.environ,
        aliases=(),
        logged_texts=options.command,
    )
    files = find_upload_file_sizes(Path(options.folder), options.excludes) if options.folder else None
    return _JobInputs(files=files, secrets=found)


def _format_files(options: SubmitOptions, files: Mapping[str, int]) -> str:
    return f"working directory {options.folder}: {len(files)} files, {decimal_size_text(sum(files.values()))}"


def _send_job(
    context: ClusterContext, head: Node, plan: ClusterPlan, options: SubmitOptions, inputs: _JobInputs, id_: str
) -> None:
    """Bring directory and secrets to the head and have Ray start the job.

    Secrets are in a file that the job's command reads and removes, and in no command line.
    """
    directory = plan.directory_relative_to_disk(head.name)
    disk = select_runtime(head, plan, plan.head).data_disk_inside(context.image.container.mount)
    working_dir, secrets_file = f"{directory}/{id_}", f"{directory}/{id_}.env"
    if inputs.files is not None:
        _send_files(head, Path(options.folder), inputs.files, f"{head.spec.data}/{working_dir}")
    command = shlex.join(options.command)
    if inputs.secrets:
        values = {name: one.reveal() for name, one in inputs.secrets.items()}
        values[SECRETS_VARIABLE] = ",".join(values)
        text = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())
        owner = [head.machine["uid"], head.machine["gid"]]
        head.call("write", disk=head.spec.data, path=secrets_file, text=text, owner=owner)
        inside = shlex.quote(f"{disk}/{secrets_file}")
        command = f". {inside} && rm -f {inside} && exec {command}"
    try:
        JobsApi(head, plan).submit(id_, command, None if inputs.files is None else f"{disk}/{working_dir}")
    except NodeError:
        head.call("remove", disk=head.spec.data, path=secrets_file)
        raise


def _follow(context: ClusterContext, cluster: ExistingCluster, head: Node, id_: str, inputs: _JobInputs) -> ClusterJob:
    """Print what the driver writes until the job has ended, and return it."""
    values = {name: secret.reveal() for name, secret in inputs.secrets.items()}
    masks = SecretMasker({**values, SECRETS_VARIABLE: ",".join(values)}).open_stream()
    controls = ControlFilter()

    def write(data: bytes) -> None:
        if data and not context.app.as_json:
            sys.stdout.buffer.write(data)
            sys.stdout.flush()

    stream = start_log_stream(context, cluster, head.name, [f"job-driver-{id_}.log"], follow=True, max_bytes=_LOG_BYTES)
    ended: Future[ClusterJob] = Future()
    arguments = (JobsApi(head, cluster.plan), id_, stream, ended)
    threading.Thread(target=_wait_for_end, args=arguments, name=id_, daemon=True).start()
    try:
        for report in stream:
            for row in report["logs"]:
                write(controls.feed(masks.feed(str(row["text"]).encode())))
        write(controls.feed(masks.close()) + controls.close())
        return ended.result()
    finally:
        stream.close()


def _wait_for_end(api: JobsApi, id_: str, stream: NodeStream, ended: Future[ClusterJob]) -> None:
    """Ask for a job until it has ended, and then have the stream of its log report the last lines and end."""
    try:
        while not (job := api.get_job(id_)).has_ended:
            time.sleep(_POLL_S)
        ended.set_result(job)
    except RlboxError as error:
        ended.set_exception(error)
    finally:
        stream.end_input()


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
