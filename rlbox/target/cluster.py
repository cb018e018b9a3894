"""The nodes of a target that is for several machines. The schema of `[cluster]`; no part of the image."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from rlbox.config.kinds import NAME, Frozen, Line

NODE = r"^[A-Za-z0-9_.:\[][A-Za-z0-9_.:%\[\]@-]{0,252}$"
"""What ssh takes as a destination: a name of its configuration, a host, an address, with a user before it."""

NodeName = Annotated[str, StringConstraints(pattern=NODE)]


class ClusterNode(Frozen):
    """One node; `local` is the machine that rlbox is typed on."""

    name: NodeName = Field(description="what ssh calls it, or local")
    data: Line = Field("", description="its data disk; empty: disk.host")
    address: Line = Field("", description="address by which the other nodes reach it; empty: by the route to it")
    here: bool = Field(False, description="run Ray as processes there, as on a node without an engine")


class Cluster(Frozen):
    """The nodes, the head first, and what they share."""

    nodes: tuple[NodeName | ClusterNode, ...] = Field(description="names, or tables with name, data, address, here")
    name: Annotated[str, StringConstraints(pattern=f"^$|{NAME}")] = Field(
        description="tells clusters of one user on the same nodes apart; empty: the target's name"
    )
    port: Annotated[int, Field(ge=0, le=65000)] = Field(
        description="first of the 20 ports of its parts, the same on all nodes; 0: the first 20 that are free"
    )
