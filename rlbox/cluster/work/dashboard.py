"""The dashboard of a cluster on this machine's loopback, until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rlbox.app import App
from rlbox.cluster.ray import TOKEN_FILE
from rlbox.cluster.reach.doorway import Doorway
from rlbox.cluster.reach.link import NodeLink
from rlbox.cluster.story import story_of
from rlbox.cluster.wish import ClusterWish
from rlbox.cluster.work.jobs import require_head
from rlbox.errors import NodeError
from rlbox.i18n import _

_POLL_S = 0.5


@dataclass(frozen=True, kw_only=True)
class OpenDashboard:
    """Where it is, and which file of the head has the token that it asks for, empty where it asks for none."""

    url: str
    token_file: str
    head: NodeLink

    def wait(self) -> None:
        """Wait until the connection to the head breaks; `NodeError` then. Ctrl-C ends it before."""
        while not self.head.lost:
            time.sleep(_POLL_S)
        raise self.head.gone()


@contextmanager
def dashboard(app: App, wish: ClusterWish, port: int) -> Iterator[OpenDashboard]:
    """Yield a cluster's dashboard, reached from here while the block runs.

    Raises
    ------
    NodeError
        There is no such cluster, its head does not answer, or the port is taken here.
    """
    with story_of(app, wish) as story:
        standing = story.require_standing(story.survey())
        plan, head = standing.plan, require_head(story, standing)
        door = head.door(plan.ports.of("dashboard"))
        try:
            doorway = Doorway(door, port)
        except OSError as error:
            raise NodeError(
                _("port {port} is taken on this machine").format(port=port),
                next_step=_("--port N, or without it any that is free"),
            ) from error
        file = f"{head.wish.data}/{plan.folder(head.name)}/{TOKEN_FILE}" if plan.closed == "token" else ""
        try:
            yield OpenDashboard(url=f"http://127.0.0.1:{doorway.port}", token_file=file, head=head)
        finally:
            doorway.close()
