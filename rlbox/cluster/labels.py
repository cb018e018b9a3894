"""The labels by which a container tells which cluster it is of; they are the truth, and no workload writes them."""

from __future__ import annotations

CLUSTER_LABEL = "rlbox.cluster"
"""The cluster's name. Beside it: its id, the node's name, its role (head, worker), the plan as JSON, who made it."""

ID_LABEL, NODE_LABEL, ROLE_LABEL = "rlbox.cluster.id", "rlbox.cluster.node", "rlbox.cluster.role"
PLAN_LABEL, MAKER_LABEL = "rlbox.cluster.plan", "rlbox.cluster.maker"
CALL_LABEL = "rlbox.call"
"""The call that made it: what is undone when that is cut."""


def rules_name(id_: str) -> str:
    """Return the name of the rules that close the ports of a cluster with this id."""
    return f"rlbox_{id_}"
