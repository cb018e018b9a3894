"""The sandbox's own processes: `python -m rlbox.sandbox serve` answers over HTTP, `probe` says how strong it is.

`worker` is what the server starts to run programs.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
from dataclasses import asdict

from rlbox.sandbox.plan import LAYERS
from rlbox.sandbox.request import RequestLimits


def _parse_arguments(argv: list[str]) -> argparse.Namespace:
    limits = RequestLimits()
    parser = argparse.ArgumentParser(prog="python -m rlbox.sandbox", description=__doc__)
    parser.add_argument("command", choices=("serve", "probe", "worker"))
    parser.add_argument("--port", type=int, default=8080, help="on loopback; 0: any")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the programs")
    parser.add_argument("--cpu-s", type=float, default=limits.cpu_s, help="processor time of a request, at most")
    parser.add_argument("--memory-mb", type=int, default=limits.memory_mb)
    parser.add_argument("--disk-mb", type=int, default=limits.disk_mb)
    parser.add_argument("--tasks", type=int, default=limits.tasks, help="processes and threads at a time")
    parser.add_argument("--output", type=int, default=limits.output_bytes, help="bytes of each output")
    parser.add_argument("--at-once", type=int, default=0, help="requests at a time; 0: one more than cores")
    parser.add_argument("--scratch", default="", help="where the programs' folders are made")
    parser.add_argument("--layers", default=",".join(LAYERS), help="layers of isolation that are tried")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Run a command; exit status 1: programs have no wall here."""
    args = _parse_arguments(argv)
    if args.command == "worker":
        from rlbox.sandbox.worker import serve_plans

        serve_plans(socket.socket(fileno=0))
        return 0
    from rlbox.sandbox.sandbox import Sandbox

    limits = RequestLimits(
        cpu_s=args.cpu_s,
        compile_s=args.cpu_s,
        memory_mb=args.memory_mb,
        disk_mb=args.disk_mb,
        tasks=args.tasks,
        output_bytes=args.output,
    )
    with Sandbox(
        args.python,
        limits,
        scratch=args.scratch,
        layers=args.layers.split(","),
        concurrency=args.at_once,
    ) as sandbox:
        level, error = sandbox.probe_isolation()
        sys.stdout.write(json.dumps(asdict(level) | {"strength": level.layers_text, "wrong": error}) + "\n")
        sys.stdout.flush()
        if error:
            return 1
        if args.command == "serve":
            from rlbox.sandbox.server import serve

            serve(sandbox, args.port)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
