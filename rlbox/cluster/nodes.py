"""Which cluster is meant, and which nodes: as the command line says, else as the target does."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlbox.config.schema import NAME_PATTERN
from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.target.target import NODE, ClusterNode

if TYPE_CHECKING:
    from rlbox.target.target import Target

LOCAL = "local"
"""The node that is this machine."""

_WRITE = _("--nodes gpu005,gpu006, or cluster.nodes of the target")


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """The target, and nodes, the cluster's name and the data disk in place of what it says; empty: as it says."""

    target: str
    nodes: str = ""
    name: str = ""
    data: str = ""

    @property
    def option_text(self) -> str:
        options = (("--nodes", self.nodes), ("--name", self.name), ("--data", self.data))
        return " ".join([self.target, *(f"{option} {shlex.quote(text)}" for option, text in options if text)])


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """A node as it was asked for: `data` its data disk; no `cluster_address`: where ssh reaches it.

    `ray_as_processes`: without the engine that may be there; a node that has none needs no such word.
    """

    name: str
    data: str
    cluster_address: str = ""
    ray_as_processes: bool = False

    @property
    def is_local(self) -> bool:
        return self.name == LOCAL


def resolve_node_specs(target: Target, names_csv: str = "", default_data_disk: str = "") -> tuple[NodeSpec, ...]:
    """Return the nodes, the head first: those of `names_csv`, else all of the target, which says more of each.

    `default_data_disk` is that of every node that names none itself, else that of the target.
    """
    rows = [ClusterNode(name=row) if isinstance(row, str) else row for row in target.cluster.nodes]
    if names := [name for name in (word.strip() for word in names_csv.split(",")) if name]:
        by_name = {row.name: row for row in rows}
        if wrong := next((name for name in names if not re.match(NODE, name)), ""):
            raise SpecError(_("{name!r} is not a valid node name").format(name=wrong), next_step=_WRITE)
        rows = [by_name.get(name) or ClusterNode(name=name) for name in names]
    where = f"images/{target.name}/target.toml"
    if not rows:
        what = _("target {target} names no nodes").format(target=target.name)
        raise SpecError(what, where=f"{where}: cluster.nodes", next_step=_WRITE)
    name, count = Counter(row.name for row in rows).most_common(1)[0]
    if count > 1:
        raise SpecError(_("node {twice} is named twice").format(twice=name), next_step=_WRITE)
    disk = default_data_disk or target.disk.host
    specs = tuple(
        NodeSpec(name=row.name, data=row.data or disk, cluster_address=row.address, ray_as_processes=row.here)
        for row in rows
    )
    for spec in specs:
        if not spec.data.startswith("/"):
            raise SpecError(
                _("the data disk of node {wrong} is {data!r}, which is not an absolute path").format(
                    wrong=spec.name, data=spec.data
                ),
                where=f"{where}: disk.host",
                next_step=_("--data /PATH/ON/THE/NODES, or disk.host of the target"),
            )
    return specs


def resolve_cluster_name(target: Target, option: str = "") -> str:
    """Return the cluster's name: that of `--name`, else what the target says, else the target's own."""
    name = option or target.cluster.name or target.name
    if not re.fullmatch(NAME_PATTERN, name):
        raise SpecError(
            _("{name!r} is not a valid cluster name").format(name=name),
            where="--name",
            next_step=_("small letters, digits and dashes, 63 of them at most: --name pair"),
        )
    return name
