"""What explains a failure, from every node that answers: its container's words, its logs' last lines, its state."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rlbox.cluster.act.jobs import session_of
from rlbox.cluster.act.reach.fleet import Fleet
from rlbox.cluster.act.reach.link import Link
from rlbox.cluster.plan import ClusterPlan
from rlbox.cluster.ray import container_name, role_of
from rlbox.cluster.verdict import Loss
from rlbox.errors import RlboxError
from rlbox.files.act.folders import state_folder, write_atomic

_LINES = 100
_LOGS = ["raylet.out", "raylet.err", "gcs_server.out", "dashboard.log", "dashboard_agent.log", "python-core-*"]


def gather(fleet: Fleet, plan: ClusterPlan, losses: Sequence[Loss], mount: str) -> Path:
    """Write what every node that answers has to say into a new folder of this machine, and return it."""
    folder = state_folder("clusters", f"{plan.name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}")
    roles = {member.name: role_of(plan, member) for member in plan.members}
    rows = [{"node": one.node, "kind": one.kind, "at": one.at, "says": one.sentence(roles[one.node])} for one in losses]
    write_atomic(folder / "losses.json", json.dumps({"schema": 1, "losses": rows}, indent=2) + "\n")
    write_atomic(folder / "cluster.json", plan.text() + "\n")
    told, failed = fleet.tried(lambda link: _node(link, plan, mount))
    for name, text in told.items():
        write_atomic(folder / f"{name.replace('/', '_')}.txt", text)
    for name, error in failed.items():
        write_atomic(folder / f"{name.replace('/', '_')}.txt", f"it does not answer: {error.what}\n")
    return folder


def _node(link: Link, plan: ClusterPlan, mount: str) -> str:
    if link.lost or link.silent_s() > 3:
        raise link.gone()
    told: dict[str, Callable[[], str]] = {
        "container": lambda: json.dumps(link.ask("containers", timeout_s=5.0), indent=1),
        "output of its container": lambda: link.engine().output(container_name(plan), _LINES),
        "logs": lambda: _logs(link, plan, mount),
    }
    parts = [f"# node {link.name}"]
    for title, read in told.items():
        try:
            parts += [f"## {title}", read()]
        except RlboxError as error:
            parts += [f"## {title}", f"not told: {error.what}"]
    return "\n".join(parts) + "\n"


def _logs(link: Link, plan: ClusterPlan, mount: str) -> str:
    folder = session_of(link, container_name(plan), mount)
    going = link.start("follow", disk=link.wish.data, folder=folder, names=_LOGS, lines=_LINES, grow=False)
    return "\n".join("\n".join([f"### {row['file']}", *row["lines"]]) for row in going)
