"""What the stand-ins of the trainers share: they bind what the real ones bind, and wait for the test's word."""

from __future__ import annotations

import http.server
import os
import socket
import threading
import time
from collections.abc import Iterable
from typing import Any

DEEDS = ("/collective_rpc", "/run_code")
DATA = os.path.dirname(os.path.dirname(os.environ["RLBOX_RUN_DIR"]))


def node() -> str:
    """Return the address that Ray gives this node, as slime, verl and OpenRLHF ask for it."""
    import ray

    return str(ray.util.get_node_ip_address()).strip("[]")


def serve(host: str, port: int = 0, does: Iterable[str] = ()) -> int:
    """Answer on `host` from now on: 200 for POST of `does` and for every GET, else 404; return the port."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.command == "GET" or self.path in does else 404)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_POST = do_GET  # noqa: N815

        def log_message(self, *words: Any) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer((host, port), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.server_address[1])


def store(port: int = 0) -> Any:
    """Return the store of a process group's first rank: torch's own, which listens on all addresses."""
    from torch.distributed import TCPStore

    return TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)


def wait() -> None:
    """Say that all of it listens; then plant a listener when the test says so, and go on for ever.

    The code sandbox and the development server that a reward may ask stand here on loopback, where they take all.
    """
    port = serve("127.0.0.1", does=DEEDS)
    print(f"[stand-in] up, and takes everything on 127.0.0.1:{port}", flush=True)
    while not os.path.exists(f"{DATA}/plant"):
        time.sleep(0.1)
    with socket.create_server(("0.0.0.0", 4444)):
        time.sleep(600)
