"""The sandbox's own processes: `python -m rlbox.sandbox serve` answers over HTTP, `probe` says how strong it is.

`keepers` is what the server starts to keep programs.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
from dataclasses import asdict

from rlbox.sandbox.isolation import LAYERS
from rlbox.sandbox.limits import ProgramLimits


def options(words: list[str]) -> argparse.Namespace:
    """Parse the command line of `serve` and `probe`."""
    own = ProgramLimits()
    parser = argparse.ArgumentParser(prog="python -m rlbox.sandbox", description=__doc__)
    parser.add_argument("verb", choices=("serve", "probe", "keepers"))
    parser.add_argument("--port", type=int, default=8080, help="on loopback; 0: any")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the programs")
    parser.add_argument("--cpu-s", type=float, default=own.cpu_s, help="processor time of a request, at most")
    parser.add_argument("--memory-mb", type=int, default=own.memory_mb)
    parser.add_argument("--disk-mb", type=int, default=own.disk_mb)
    parser.add_argument("--tasks", type=int, default=own.tasks, help="processes and threads at a time")
    parser.add_argument("--output", type=int, default=own.output, help="bytes of each output")
    parser.add_argument("--at-once", type=int, default=0, help="requests at a time; 0: one more than cores")
    parser.add_argument("--scratch", default="", help="where the programs' folders are made")
    parser.add_argument("--layers", default=",".join(LAYERS), help="layers of the walls that are tried")
    parser.add_argument("--allow-weak", action="store_true", help="run programs also where there is no wall")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    """Run a verb; exit status 1: programs have no wall here."""
    asked = options(words)
    if asked.verb == "keepers":
        from rlbox.sandbox.worker import serve_forks

        serve_forks(socket.socket(fileno=0))
        return 0
    from rlbox.sandbox.pool import Pool, Settings

    limits = ProgramLimits(
        cpu_s=asked.cpu_s,
        compile_s=asked.cpu_s,
        memory_mb=asked.memory_mb,
        disk_mb=asked.disk_mb,
        tasks=asked.tasks,
        output=asked.output,
    )
    settings = Settings(
        python=asked.python,
        limits=limits,
        weak=asked.allow_weak,
        scratch=asked.scratch,
        layers=tuple(asked.layers.split(",")),
        at_once=asked.at_once,
    )
    with Pool(settings) as pool:
        strength, wrong = pool.strength()
        sys.stdout.write(json.dumps(asdict(strength) | {"strength": strength.name, "wrong": wrong}) + "\n")
        sys.stdout.flush()
        if wrong:
            return 1
        if asked.verb == "serve":
            from rlbox.sandbox.server import serve

            pool.get_ready()
            serve(pool, asked.port)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
