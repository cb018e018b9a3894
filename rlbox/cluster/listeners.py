"""Check what the processes of a cluster listen on, on every node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rlbox.cluster.connection import NodeConnection
from rlbox.cluster.facts import Listener, NodeFacts
from rlbox.cluster.fleet import Fleet
from rlbox.cluster.plan import ID_LABEL, STRIDE, ClusterPlan
from rlbox.cluster.preflight import format_findings
from rlbox.cluster.ray_runtime import list_ray_processes
from rlbox.errors import NodeError
from rlbox.findings import Finding, listed
from rlbox.i18n import _
from rlbox.job.ports import EPHEMERAL, is_port_allowed


def check_listeners(
    plan: ClusterPlan, found: Mapping[str, Sequence[Listener]], ephemeral: Mapping[str, tuple[int, int]]
) -> Iterator[Finding]:
    """Yield nodes on which others could reach a port that nobody has named.

    Loopback is left alone. Workers and jobs may also have ports of the kernel's choice, where NCCL and gloo meet; parts
    of Ray may not.

    Parameters
    ----------
    found
        By node what processes of its container listen on.
    ephemeral
        By node the first and last port of the kernel's choice.
    """
    first, last = plan.ports.worker_range
    named = (f"{plan.ports.base}-{plan.ports.base + STRIDE - 1}", f"{first}-{last}")
    for node, listeners in found.items():
        kernel = range(ephemeral[node][0], ephemeral[node][1] + 1) if node in ephemeral else range(0)
        besides = [
            one
            for one in listeners
            if not one.loopback and not is_port_allowed(named if one.own else (*named, EPHEMERAL), one.port, kernel)
        ]
        if besides:
            yield Finding(
                id="listens-besides",
                title=_("processes of the cluster listen where its plan has named no port"),
                seen=listed(sorted({_shown(one) for one in besides})),
                where=node,
                remedy=_("have it listen on 127.0.0.1, or on a port of the kernel's choice; end it if it is nobody's"),
            )


def _shown(one: Listener) -> str:
    words = " ".join(one.words.split()[:3])
    host = f"[{one.address}]" if ":" in one.address else one.address
    return f"{words} (pid {one.pid}) on {host}:{one.port}"


def _listeners(link: NodeConnection, plan: ClusterPlan) -> tuple[Listener, ...]:
    """Return what the processes of a cluster listen on at a node."""
    rows = list_ray_processes(link, plan)
    ids = [str(row["id"]) for row in rows if row["labels"].get(ID_LABEL) == plan.id]
    told = link.ask("audit", containers=ids)["listens"]
    return tuple(Listener(**{key: row[key] for key in ("port", "address", "pid", "words")}) for row in told)


def _judged(
    plan: ClusterPlan, found: Mapping[str, tuple[Listener, ...]], facts: Mapping[str, NodeFacts]
) -> tuple[Finding, ...]:
    return tuple(check_listeners(plan, found, {name: one.ephemeral for name, one in facts.items()}))


def find_undeclared_listeners(fleet: Fleet, plan: ClusterPlan, facts: Mapping[str, NodeFacts]) -> tuple[Finding, ...]:
    """Return what of it the plan has not named, on the nodes that can tell."""
    found, __ = fleet.tried(lambda link: _listeners(link, plan))
    return _judged(plan, found, facts)


def require_declared_listeners(fleet: Fleet, plan: ClusterPlan, facts: Mapping[str, NodeFacts]) -> None:
    """Raise `NodeError` where a process of the cluster listens besides its plan, or a node cannot tell."""
    found = _judged(plan, fleet.each(lambda link: _listeners(link, plan)), facts)
    if found:
        raise NodeError(
            _("cluster {plan} listens where its plan has named no port\n{problems_text}").format(
                plan=plan.name, problems_text=format_findings(found)
            ),
            where=", ".join(one.where for one in found),
            next_step=found[0].remedy,
        )
