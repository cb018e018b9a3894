"""What the head of a cluster is asked over its dashboard, which listens on the node's loopback alone."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from rlbox.cluster.act.programs.node_files import read
from rlbox.cluster.act.programs.node_http import ask_loopback

if TYPE_CHECKING:
    from rlbox.cluster.act.programs.node_wire import Row

_ANSWER_S = 60.0


def ask_ray(row: Row) -> Row:
    """Return status and text of an answer; the token comes from the node's own file, and leaves it nowhere else."""
    headers = dict(row.get("headers", {}))
    token = read(row["disk"], row["token"]).strip() if row.get("token") else ""
    if token:
        headers["Authorization"] = f"Bearer {token}"
    body = base64.b64decode(row["body"]) if row.get("body") else b""
    try:
        status, text = ask_loopback(row["port"], row["method"], row["path"], headers, body, _ANSWER_S)
    except OSError as error:
        return {"status": 0, "text": error.strerror or str(error)}
    return {"status": status, "text": text.decode("utf-8", "replace")}
