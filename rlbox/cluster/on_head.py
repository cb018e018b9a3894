"""Run a command line on the head of a running cluster, its nodes being watched from here meanwhile."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rlbox.app import App
from rlbox.cluster.connection import NodeConnection
from rlbox.cluster.context import ClusterContext, RunningCluster, open_context
from rlbox.cluster.in_use import head_command_line
from rlbox.cluster.jobs import require_head
from rlbox.cluster.logs import EVERYTHING, LogClocks, LogLine, masked, merged, node_parts, start_logs
from rlbox.cluster.node_watch import WatchedNodes
from rlbox.cluster.options import ClusterOptions
from rlbox.cluster.plan import ClusterPlan
from rlbox.cluster.preflight import format_findings
from rlbox.cluster.status import ClusterStatus, status_here
from rlbox.cluster.survey import Survey
from rlbox.errors import EngineError, NodeError, RlboxError
from rlbox.findings import Finding
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.secrets.masks import SECRETS_VARIABLE, SecretMasker
from rlbox.values import Secret

LINES_FILE, STATUS_FILE = "nodes.txt", "nodes.json"
_KEPT, _MOST = 1000, 1 << 16
"""Lines of each log that are kept, and bytes of each that are read of what was before."""
_CHATTER = re.compile(r"\[\d{4}-\d\d-\d\d [\d:,]+ D ")
"""Lines of Ray's own for who debugs it: on that level it writes hundreds in a second."""
_LAST_S = 1.5


class NodeLogWatcher:
    """The last lines of every node, those too that answer no more, and what is told of nodes while the block runs."""

    def __init__(self, context: ClusterContext, survey: Survey, standing: RunningCluster, masks: SecretMasker) -> None:
        self._story, self._standing, self._masks = context, standing, masks
        self._began = time.time()
        self._lines: dict[tuple[str, str], deque[LogLine]] = {}
        nodes = [name for name in context.fleet.links if name in standing.containers]
        goings = {name: start_logs(context, standing, name, EVERYTHING, follow=True, most=_MOST) for name in nodes}
        self._parts, self._clocks = node_parts(goings), LogClocks(survey)
        threading.Thread(target=self._hear, name="logs of nodes", daemon=True).start()
        self._nodes = WatchedNodes(context, standing, survey.offsets)

    def _hear(self) -> None:
        while True:
            name, part = self._parts.get()
            for line in self._clocks.lines(name, part) if isinstance(part, dict) else ():
                if not _CHATTER.match(line.text):
                    self._lines.setdefault((name, line.file), deque(maxlen=_KEPT)).append(line)

    def close(self) -> None:
        """Watch no more."""
        self._nodes.close()

    def findings(self) -> tuple[Finding, ...]:
        """Return what happened to nodes, the first first, and say what was not said."""
        return self._nodes.findings()

    def evidence(self) -> Mapping[str, str]:
        """Return the files of evidence: the nodes' lines since the watch began, in one order, and what happened."""
        time.sleep(_LAST_S)  # what was written as it failed is on its way
        kept = [line for log in list(self._lines.values()) for line in list(log) if line.at >= self._began]
        found, links = self.findings(), self._story.fleet.links
        nodes = {name: {"answers": name in links and links[name].heard} for name in self._standing.containers}
        status = {"schema": 1, "failures": [one.as_json() for one in found], "nodes": nodes}
        text = "".join(masked(self._masks, line).shown() + "\n" for line in merged(kept))
        return {LINES_FILE: text, STATUS_FILE: json.dumps(status, indent=1, ensure_ascii=False) + "\n"}


@contextmanager
def watch_node_logs(
    context: ClusterContext, survey: Survey, standing: RunningCluster, masks: SecretMasker
) -> Iterator[NodeLogWatcher]:
    """Yield the watch over the nodes of a cluster, which ends with the block."""
    found = NodeLogWatcher(context, survey, standing, masks)
    try:
        yield found
    finally:
        found.close()


def evidence_folder(head: NodeConnection, run: str) -> str:
    """Return the folder, below the head's data disk, of the evidence of the stage that failed; nothing without one.

    `run` may be the beginning of its name that no other run has.
    """
    disk = head.options.data
    with contextlib.suppress(RlboxError, ValueError, LookupError, TypeError, AttributeError):
        names = head.ask("names", disk=disk, path="runs")["names"]
        (name,) = [run] if run in names else [name for name in names if name.startswith(run)]
        record = parse_json(str(head.ask("read", disk=disk, path=f"runs/{name}/run.json")["text"]))
        (stage, *__) = [stage for stage in record["stages"] if stage.get("state") == "failed"]
        return f"runs/{name}/{stage['directory']}/evidence"
    return ""


def write_files_on_head(head: NodeConnection, folder: str, files: Mapping[str, str]) -> None:
    """Write files into a folder of the head's data disk; `NodeError` where that fails."""
    owner = [int(head.facts["uid"]), int(head.facts["gid"])]
    for name, text in files.items():
        head.ask("write", disk=head.options.data, path=f"{folder}/{name}", text=text, mode=0o600, owner=owner)


HEAD_VARIABLE = "RLBOX_BESIDE_HEAD"
"""Set, to the cluster's name, for a command that is carried out beside the head."""


@dataclass(frozen=True, kw_only=True)
class HeadCommand:
    """What is carried out: `words` after `rlbox`, with `env` more variables and secrets, for the run named `run`."""

    words: tuple[str, ...]
    run: str
    env: Mapping[str, str]
    secrets: Mapping[str, Secret]
    terminal: bool = False


def find_running_cluster(app: App, options: ClusterOptions) -> tuple[ClusterPlan, str]:
    """Return a cluster that a run could be on, and where its head's Ray has its files; `NodeError` where none is."""
    with open_context(app, options) as context:
        survey = context.survey()
        standing = context.require_standing(survey)
        head = require_head(context, standing)
        _require_healthy(context, survey, standing)
        return standing.plan, ray_folder(head, standing)


def ray_folder(head: NodeConnection, standing: RunningCluster) -> str:
    """Return the folder of the head's Ray, as its container names it on the data disk."""
    argv = ("readlink", "-f", "/tmp/ray")  # noqa: S108
    return next(iter(head.engine().stream_exec_output(standing.containers[head.name].id, argv)), "")


def run_on_head(app: App, options: ClusterOptions, work: HeadCommand) -> int:
    """Carry out a command line in a container beside the head, with this process's streams; return its exit code.

    Everything goes over the head's one connection. What happens to nodes meanwhile is said; when the run failed, what
    the nodes tell is laid beside its evidence.

    Raises
    ------
    NodeError
        There is no such cluster, a node of it is not as it should be, or the head is no longer reached: a run that had
        started goes on there.
    """
    with open_context(app, options) as context:
        survey = context.survey()
        standing = context.require_standing(survey)
        head = require_head(context, standing)
        _require_healthy(context, survey, standing)
        app.say(f"the run is on node {head.name}; from here: {head_command_line(standing.plan, 'logs', work.run)}")
        values = {name: secret.reveal() for name, secret in work.secrets.items()}
        masks = SecretMasker({**values, SECRETS_VARIABLE: ",".join(values)})
        with watch_node_logs(context, survey, standing, masks) as watch:
            code = _carry_out(app, head, standing, work, values, watch)
            if code:
                _explain(app, head, work.run, watch)
            return code


def _require_healthy(context: ClusterContext, survey: Survey, standing: RunningCluster) -> None:
    """Refuse a cluster that lacks nodes, for which the run would wait, and a head without an engine."""
    head = standing.plan.head.name
    if survey.facts[head].engine.state != "ok":
        raise NodeError(_("the head has no engine that answers: the run's container would be beside it"), where=head)
    status = status_here(context, survey, standing)
    if status.healthy:
        return
    found = (*status.failures, *status.listens)
    table = format_findings(found) or "\n".join(_lacking(status))
    raise NodeError(
        _("cluster {plan} is not as it should be\n{table}").format(plan=status.plan.name, table=table),
        next_step=_("rlbox cluster up {words} brings back what died").format(words=context.options.option_text),
    )


def _lacking(status: ClusterStatus) -> Sequence[str]:
    return [f"  {node.name}: {node.container}, {node.missing}" for node in status.nodes if not node.healthy]


def _carry_out(
    app: App,
    head: NodeConnection,
    standing: RunningCluster,
    work: HeadCommand,
    values: Mapping[str, str],
    watch: NodeLogWatcher,
) -> int:
    from rlbox.engine.remote_helper import HelperContainer, run_helper_container
    from rlbox.ssh.tunnel import EngineTunnel

    told, plan = head.ask("beside"), standing.plan
    tunnel = EngineTunnel(
        address=head.engine_address,
        socket=str(told["socket"]),
        uid=int(head.facts["uid"]),
        gid=int(head.facts["gid"]),
        socket_gid=int(told["group"]),
        home=str(told["home"]),
        state=str(told["state"]),
    )
    helper = HelperContainer(
        target=plan.target,
        image=standing.containers[head.name].image,
        data_dir=plan.head.data,
        create_data_dir=False,
        rlbox_args=work.words,
        env={**work.env, **values, HEAD_VARIABLE: plan.name, "RLBOX_DATA": plan.head.data},
        terminal=work.terminal,
    )
    try:
        return run_helper_container(tunnel, app.project, helper)
    except EngineError as error:
        lines = [f"\n  {one.where}: {one.title}: {one.seen}" for one in watch.findings()]
        what = "".join([error.what, *lines])
        raise NodeError(what, where=head.name, next_step=head_command_line(plan, "logs", work.run)) from error


def _explain(app: App, head: NodeConnection, run: str, watch: NodeLogWatcher) -> None:
    """Lay what the nodes tell beside the evidence of a run that failed."""
    folder = evidence_folder(head, run)
    if not folder:
        return
    try:
        write_files_on_head(head, folder, watch.evidence())
    except NodeError as error:
        app.say(f"evidence of the nodes was not written: {error.what}")
        return
    app.say(f"evidence of all nodes: {head.options.data}/{folder}/{LINES_FILE} on {head.name}")
