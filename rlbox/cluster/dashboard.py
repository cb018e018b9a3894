"""The dashboard of a cluster on this machine's loopback, forwarded by ssh until Ctrl-C."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rlbox.app import App
from rlbox.cluster.connection import Node
from rlbox.cluster.context import open_context
from rlbox.cluster.options import ClusterOptions
from rlbox.cluster.runtime import TOKEN_FILE
from rlbox.errors import NodeError
from rlbox.i18n import _
from rlbox.system.ports import LOOPBACK

_POLL_S = 0.5


@dataclass(frozen=True, kw_only=True)
class OpenDashboard:
    """Where it is, and which file of the head has the token that it asks for, empty where it asks for none."""

    url: str
    token_file: str
    head: Node

    def wait(self) -> None:
        """Wait until the connection to the head breaks; `NodeError` then. Ctrl-C ends it before."""
        while not self.head.is_lost:
            time.sleep(_POLL_S)
        raise self.head.connection_lost()


@contextmanager
def open_dashboard(app: App, options: ClusterOptions, port: int) -> Iterator[OpenDashboard]:
    """Yield a cluster's dashboard, reached from here while the block runs; of a head that is this machine its own port.

    Raises
    ------
    NodeError
        There is no such cluster, its head does not answer, or the port is taken here.
    """
    with open_context(app, options) as context:
        cluster = context.require_cluster(context.probe())
        plan, head = cluster.plan, context.require_head(cluster)
        remote_port = plan.ports.of("dashboard")
        if head.spec.is_local:
            port = remote_port
        else:
            port = _find_free_port(port)
            head.forward_port(port, remote_port)
        file = f"{head.spec.data}/{plan.directory(head.name)}/{TOKEN_FILE}" if plan.protection == "token" else ""
        yield OpenDashboard(url=f"http://{LOOPBACK}:{port}", token_file=file, head=head)


def _find_free_port(port: int) -> int:
    """Return the port, or a free one for 0; `NodeError` where it is taken."""
    try:
        with socket.create_server((LOOPBACK, port)) as server:
            return int(server.getsockname()[1])
    except OSError as error:
        raise NodeError(
            _("port {port} is taken on this machine").format(port=port),
            next_step=_("--port N, or without it any that is free"),
        ) from error
