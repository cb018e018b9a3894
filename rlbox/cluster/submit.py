"""Submit a job to a cluster, and follow what its driver writes until it ends."""

from __future__ import annotations

import os
import queue
import secrets
import shlex
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlbox.amounts import size_text
from rlbox.app import App
from rlbox.cluster.connection import NodeConnection, RemoteStream
from rlbox.cluster.context import ClusterContext, RunningCluster, open_context
from rlbox.cluster.jobs import FAILED, ClusterJob, JobsApi, RayRefused, require_head
from rlbox.cluster.logs import start_logs
from rlbox.cluster.node_watch import WatchedNodes
from rlbox.cluster.options import ClusterOptions
from rlbox.cluster.package import WorkFiles, find_files, packed
from rlbox.cluster.ray_runtime import create_runtime
from rlbox.cluster.survey import Survey
from rlbox.errors import Interrupted, NodeError, RlboxError, SpecError
from rlbox.findings import Finding
from rlbox.i18n import _
from rlbox.secrets.lookup import find_secrets
from rlbox.secrets.masks import SECRETS_VARIABLE, SecretMasker
from rlbox.terminal import ControlFilter
from rlbox.values import Secret

_ASK_S = 0.5
_LAST_S = 5.0
_MOST = 1 << 22

_News = str | RlboxError | None


class JobFollower:
    """The log of a job's driver, and the news of the nodes: they are told at once, whatever the head is asked then."""

    def __init__(self, going: RemoteStream, id_: str, shown: _Shown, nodes: WatchedNodes) -> None:
        self._going, self._id, self._shown = going, id_, shown
        self.nodes = nodes
        self.news: queue.Queue[_News] = queue.Queue()
        threading.Thread(target=self._hear, name=f"log of {id_}", daemon=True).start()

    def _hear(self) -> None:
        try:
            for part in self._going:
                for row in part["logs"]:
                    self.news.put(str(row["text"]))
            self.news.put(None)
        except RlboxError as error:
            self.news.put(error)

    def follow(self, api: JobsApi) -> ClusterJob:
        """Show what comes until the job has ended, and return how; `NodeError` where the head is gone."""
        asked, job = 0.0, ClusterJob(id=self._id, status="PENDING")
        while True:
            if not job.ended and time.monotonic() - asked > _ASK_S:
                asked, job = time.monotonic(), api.job(self._id)
                if job.ended:
                    self._going.end()
            try:
                news = self.news.get(timeout=_LAST_S if job.ended else _ASK_S)
            except queue.Empty:
                news = None if job.ended else ""
            match news:
                case str():
                    self._shown.write(news)
                case None:
                    self._shown.close()
                    return job
                case _:
                    raise news


@contextmanager
def following(
    context: ClusterContext,
    survey: Survey,
    standing: RunningCluster,
    head: NodeConnection,
    id_: str,
    masks: SecretMasker,
) -> Iterator[JobFollower]:
    """Yield what follows a job, the nodes being watched while the block runs."""
    going = start_logs(context, standing, head.name, [f"job-driver-{id_}.log"], follow=True, most=_MOST)
    nodes = WatchedNodes(context, standing, survey.offsets)
    try:
        yield JobFollower(going, id_, _Shown(masks, quiet=context.app.as_json), nodes)
    finally:
        nodes.close()


class _Shown:
    """What a driver writes, on stdout, without secrets and control sequences."""

    def __init__(self, masks: SecretMasker, *, quiet: bool) -> None:
        self._masked, self._printable, self._quiet = masks.open_stream(), ControlFilter(), quiet

    def write(self, text: str) -> None:
        self._put(self._printable.feed(self._masked.feed(text.encode())))

    def close(self) -> None:
        self._put(self._printable.feed(self._masked.close()) + self._printable.close())

    def _put(self, data: bytes) -> None:
        if data and not self._quiet:
            sys.stdout.buffer.write(data)
            sys.stdout.flush()


@dataclass(frozen=True, kw_only=True)
class SubmitOptions(ClusterOptions):
    """A job to be: its command, the directory that goes along, what of that stays here, names of its secrets."""

    command: tuple[str, ...]
    folder: str = ""
    excludes: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    env_file: str = ""
    detach: bool = False


@dataclass(frozen=True, kw_only=True)
class _Ready:
    """What is looked for before any node is asked."""

    files: WorkFiles | None
    secrets: Mapping[str, Secret]

    def masks(self) -> SecretMasker:
        values = {name: secret.reveal() for name, secret in self.secrets.items()}
        return SecretMasker({**values, SECRETS_VARIABLE: ",".join(values)})


@dataclass(frozen=True, kw_only=True)
class SubmitResult:
    """A job that was submitted; `failures` are what happened to nodes, the first first, where it failed."""

    job: ClusterJob
    failures: tuple[Finding, ...] = ()


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
    ready = _ready(app, options)
    id_ = f"job-{secrets.token_hex(4)}"
    with open_context(app, options) as context:
        survey = context.survey()
        standing = context.require_standing(survey)
        head = require_head(context, standing)
        api = JobsApi(head, standing.plan)
        runtime_env: dict[str, Any] = {}
        with packed(ready.files) if ready.files else nullcontext() as package:
            if package:
                app.say(_told(ready.files))
                api.send(package)
                runtime_env["working_dir"] = package.uri
        with _goes_on(options, id_):
            api.submit(id_, _entrypoint(context, api, head, options, ready, id_), runtime_env)
            app.say(f"job {id_} of cluster {standing.plan.name}")
            if options.detach:
                return SubmitResult(job=api.job(id_))
            with following(context, survey, standing, head, id_, ready.masks()) as follower:
                try:
                    job = follower.follow(api)
                except NodeError as error:
                    raise _with_cause(follower, error) from error
                failures = follower.nodes.findings() if job.status == FAILED else ()
            return SubmitResult(job=job, failures=failures)


def dry_run_submit(app: App, options: SubmitOptions) -> int:
    """Say what would be submitted, and what is refused; return the exit code of a dry run."""
    ready = _ready(app, options)
    data = {"command": list(options.command), "files": dict(ready.files.sizes) if ready.files else {}}
    with open_context(app, options) as context:
        with app.checking("cluster"):
            require_head(context, context.require_standing(context.survey()))
        told = _told(ready.files) if ready.files else ""
        return app.planned(data, told, f"submit {shlex.join(options.command)} to cluster {context.name}")


def _ready(app: App, options: SubmitOptions) -> _Ready:
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
    return _Ready(files=find_files(Path(options.folder), options.excludes) if options.folder else None, secrets=found)


def _told(files: WorkFiles | None) -> str:
    if files is None:
        return ""
    left = f"; left out: {', '.join(files.left[:8])}" if files.left else ""
    return f"working directory {files.folder}: {len(files.sizes)} files, {size_text(files.total)}{left}"


def _entrypoint(
    context: ClusterContext, api: JobsApi, head: NodeConnection, options: SubmitOptions, ready: _Ready, id_: str
) -> str:
    """Return the command as Ray is given it: secrets are in a file that it reads and removes, and in no word of it."""
    command = shlex.join(options.command)
    if not ready.secrets:
        return command
    lines = [f"export {key}={shlex.quote(secret.reveal())}\n" for key, secret in ready.secrets.items()]
    text = "".join([*lines, f"export {SECRETS_VARIABLE}={shlex.quote(','.join(ready.secrets))}\n"])
    name = api.give(id_, text)
    disk = create_runtime(head, api.plan, api.plan.head).disk(context.image.container.mount)
    inside = shlex.quote(f"{disk}/{name}")
    return f". {inside} && rm -f {inside} && exec {command}"


def _with_cause(follower: JobFollower, error: NodeError) -> NodeError:
    """Return an error of the head with what happened to nodes behind it."""
    lines = [f"\n  {one.where}: {one.title}: {one.seen}" for one in follower.nodes.findings()]
    return NodeError("".join([error.what, *lines]), where=error.where, next_step=error.next_step)


@contextmanager
def _goes_on(options: ClusterOptions, id_: str) -> Iterator[None]:
    """Say of what breaks off from here on that the job goes on without this process."""
    go_on = f"rlbox cluster logs {options.option_text} --job {id_}, or rlbox cluster stop {options.option_text} {id_}"
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(_("left alone: job {id} goes on").format(id=id_), next_step=go_on) from None
    except RayRefused:
        raise
    except NodeError as error:
        raise NodeError(
            _("job {id} is no longer followed: {what}").format(id=id_, what=error.what),
            where=error.where,
            next_step=go_on,
        ) from error
