"""Run by the stack's own interpreter: print the nodes of a Ray cluster as a line of JSON.

Argument: the address of the GCS. It asks that and joins nothing.
"""

from __future__ import annotations

import importlib
import json
import signal
import socket
import sys
from typing import Any

_LISTENS_S, _ANSWER_S = 5, 30


def _connect(address: str) -> Any:
    """Return the state of the GCS; the words are the same from Ray 2.43 to 2.60.

    Ray is imported once it listens: until then the import would keep its start waiting.
    """
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), _LISTENS_S).close()
    raylet: Any = importlib.import_module("ray._raylet")
    state = importlib.import_module("ray._private.state").GlobalState()
    options = raylet.GcsClientOptions.create(address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
    state._initialize_global_state(options)
    return state


def _list_nodes(state: Any) -> list[dict[str, Any]]:
    free = state.available_resources_per_node()
    return [
        {
            "id": node.get("NodeID", ""),
            "name": node.get("NodeName", ""),
            "alive": bool(node.get("Alive")),
            "total": node.get("Resources") or {},
            "free": free.get(node.get("NodeID"), {}),
            "death_reason": node.get("DeathReasonMessage", ""),
        }
        for node in state.node_table()
    ]


def _main() -> None:
    signal.alarm(_ANSWER_S)  # a call to a GCS that is halted never returns
    try:
        row: dict[str, Any] = {"nodes": _list_nodes(_connect(sys.argv[1]))}
    except Exception as error:
        row = {"error": f"{type(error).__name__}: {error}"[:300]}
    sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    _main()
