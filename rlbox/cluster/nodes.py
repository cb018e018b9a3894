"""Which nodes are meant: those of `--nodes`, else those of the target."""

from __future__ import annotations

import re
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

_NODE = re.compile(NODE)
_WRITE = _("--nodes gpu005,gpu006, or cluster.nodes of the target")


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


def resolve_node_specs(
    target: Target, override_names_csv: str = "", default_data_disk: str = ""
) -> tuple[NodeSpec, ...]:
    """Return the nodes, the head first.

    Parameters
    ----------
    override_names_csv
        Of `--nodes`, with commas between; what the target says of one of them holds.
    default_data_disk
        Data disk of every node that names none itself; empty: that of the target.

    Raises
    ------
    SpecError
        There is none, one is named twice, or a name is none that ssh would take.
    """
    own = [ClusterNode(name=row) if isinstance(row, str) else row for row in target.cluster.nodes]
    known = {row.name: row for row in own}
    rows = (
        [known.get(name, ClusterNode(name=name)) for name in _split_names(override_names_csv)]
        if override_names_csv
        else own
    )
    disk = default_data_disk or target.disk.host
    if not rows:
        raise SpecError(
            _("target {target} names no nodes").format(target=target.name),
            where=f"images/{target.name}/target.toml: cluster.nodes",
            next_step=_WRITE,
        )
    twice = [name for name, count in Counter(row.name for row in rows).items() if count > 1]
    if twice:
        raise SpecError(_("node {twice} is named twice").format(twice=twice[0]), next_step=_WRITE)
    specs = tuple(
        NodeSpec(name=row.name, data=row.data or disk, cluster_address=row.address, ray_as_processes=row.here)
        for row in rows
    )
    wrong = next((spec for spec in specs if not spec.data.startswith("/")), None)
    if wrong:
        raise SpecError(
            _("the data disk of node {wrong} is {data!r}, which is not an absolute path").format(
                wrong=wrong.name, data=wrong.data
            ),
            where=f"images/{target.name}/target.toml: disk.host",
            next_step=_("--data /PATH/ON/THE/NODES, or disk.host of the target"),
        )
    return specs


def resolve_cluster_name(target: Target, option: str = "") -> str:
    """Return the cluster's name: that of `--name`, else what the target says, else the target's own.

    Raises
    ------
    SpecError
        It is no name that containers and folders can have.
    """
    name = option or target.cluster.name or target.name
    if not re.fullmatch(NAME_PATTERN, name):
        raise SpecError(
            _("{name!r} is not a valid cluster name").format(name=name),
            where="--name",
            next_step=_("small letters, digits and dashes, 63 of them at most: --name pair"),
        )
    return name


def _split_names(text: str) -> list[str]:
    names = [name for name in (word.strip() for word in text.split(",")) if name]
    for name in names:
        if not _NODE.match(name):
            raise SpecError(_("{name!r} is not a valid node name").format(name=name), next_step=_WRITE)
    return names
