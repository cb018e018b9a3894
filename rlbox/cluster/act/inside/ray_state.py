"""Run by the stack's own interpreter: tell the nodes of a Ray cluster, a line of JSON each time that something changed.

Arguments: address of the GCS, and for how many seconds; 0: once. It asks the GCS and joins nothing.
"""

from __future__ import annotations

import importlib
import json
import signal
import sys
import time
from typing import Any


def connect(address: str) -> Any:
    """Return the state of the GCS; the words are the same from Ray 2.43 to 2.60."""
    raylet: Any = importlib.import_module("ray._raylet")
    state = importlib.import_module("ray._private.state").GlobalState()
    options = raylet.GcsClientOptions.create(address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
    state._initialize_global_state(options)
    return state


def rows(state: Any) -> list[dict[str, Any]]:
    """Return the nodes as plain values."""
    free = state.available_resources_per_node()
    return [
        {
            "name": node.get("NodeName", ""),
            "address": node.get("NodeManagerAddress", ""),
            "alive": bool(node.get("Alive")),
            "total": node.get("Resources") or {},
            "free": free.get(node.get("NodeID"), {}),
            "why": node.get("DeathReasonMessage", ""),
        }
        for node in state.node_table()
    ]


_PATIENCE_S = 30


def main() -> None:
    """Tell until the time is over."""
    address, seconds = sys.argv[1], float(sys.argv[2])
    if not seconds:
        signal.alarm(_PATIENCE_S)  # a call to a GCS that is halted never returns
    until, told, state = time.monotonic() + seconds, "", None
    while True:
        try:
            state = state or connect(address)
            line = json.dumps({"nodes": rows(state)}, sort_keys=True)
        except Exception as error:
            state, line = None, json.dumps({"said": f"{type(error).__name__}: {error}"[:300]})
        if line != told:
            told = line
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        if time.monotonic() > until:
            return
        time.sleep(0.25)


if __name__ == "__main__":
    main()
