"""Judge what the processes of a cluster listen on: nothing that its plan has not named, by the rule of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rlbox.cluster.facts import Listener
from rlbox.cluster.plan import ClusterPlan
from rlbox.cluster.ports import STRIDE
from rlbox.findings import Finding, listed
from rlbox.i18n import _
from rlbox.job.ports import EPHEMERAL, is_port_allowed


def judge_listeners(
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
