"""Run by the stack's own interpreter: start Ray on a worker, which asks its head once that listens.

Arguments: host and port of the head, for how many seconds it is waited for, and the words of `ray-start`. Ray is
imported meanwhile. A worker that asks too early waits for six seconds more; source: ray/_private/node.py of 2.60.
"""

from __future__ import annotations

import importlib
import socket
import subprocess
import sys
import time

_ANSWER_S, _PAUSE_S = 2.0, 0.1


def wait_for(host: str, port: int, seconds: float) -> None:
    """Wait until somebody listens there, or the time is over: Ray itself says then what is wrong."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            socket.create_connection((host.strip("[]"), port), _ANSWER_S).close()
            return
        except OSError:
            time.sleep(_PAUSE_S)


def main() -> None:
    """Become `ray start` with the words that this version of it takes."""
    host, port, seconds, program, *words = sys.argv[1:]
    told = subprocess.run([program, "--print", *words], stdout=subprocess.PIPE, check=True)
    sys.path = [path for path in sys.path if path]  # no file of the folder that it stands in is a module
    sys.argv = told.stdout.decode().splitlines()
    ray = importlib.import_module("ray.scripts.scripts")
    wait_for(host, int(port), float(seconds))
    ray.main()


if __name__ == "__main__":
    main()
