"""The account of the journey `vast`, and the machine that it rents: `python3 account.py FOLDER KEY.pub`.

Its address is written to FOLDER/address. An instance is stopped once its run has made ten steps,
and started again a little later. Python's own library alone.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from vastbox import Platform, serving
from vastmachine import Instance

STEPS, AWAY_S, LONGEST_S = 10, 5.0, 900.0
NAME = "rlbox-journey-vast"


def main(folder: Path, key: Path) -> None:
    """Serve the account until this process is ended."""
    instance = Instance(NAME, ("--network=host",), key=key.read_text())

    def create(row: dict[str, Any]) -> None:
        instance.create(row)
        threading.Thread(target=interrupt, args=(platform, instance, row), daemon=True).start()

    with serving(Platform()) as platform:
        platform.on_create = create
        platform.on_state = lambda row, state: instance.power(state)
        platform.on_destroy = lambda row: instance.destroy()
        (folder / "address").write_text(platform.url)
        threading.Event().wait()


def interrupt(platform: Platform, instance: Instance, row: dict[str, Any]) -> None:
    """Stop an instance in the middle of its work, and start it again."""
    until = time.monotonic() + LONGEST_S
    while time.monotonic() < until and steps(instance) <= STEPS:
        time.sleep(0.5)
    row["actual_status"] = "exited"
    instance.power("stopped")
    print("the platform: stopped", flush=True)
    time.sleep(AWAY_S)
    platform.states = ["exited", "loading"]
    instance.power("running")
    platform.states, row["actual_status"] = [], "running"  # by itself, whether it is asked for or not
    print("the platform: started", flush=True)


def steps(instance: Instance) -> int:
    """Return how many steps the run has made."""
    words = ("docker", "exec", instance.name, "cat", "/workspace/at")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return int(done.stdout.strip() or 0) if done.returncode == 0 else 0


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
