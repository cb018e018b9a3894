"""`make nightly ARGS=busy`: the smoke, and ten faults, while sixteen more processes want to compute.

The smoke passes or says that the machine is busy; a fault is told as itself. The burners end by themselves, too. Writes
`docs/internal/busy.md`; nothing is resumed, since the load is the thing that is tried.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from enginebox import Box  # noqa: E402
from lanes import CHECKOUT, provenance  # noqa: E402

from rlbox.amounts import duration_text  # noqa: E402

RESULTS = HERE.parents[1] / "docs/internal/busy.md"
BURNERS = 16
BURN = "import signal\nsignal.alarm({seconds})\nwhile True: pass"
LONGEST_S = 3000
TESTS = "tests/engine/test_run.py"
FAULTS = {
    "test_exit_0_without_the_accepted_line_is_a_failure": "the accepted line never comes",
    "test_a_stage_that_dies_is_quoted": "a stage dies",
    "test_a_stage_that_hangs_is_stopped_at_its_limit": "a stage says nothing any more",
    "test_a_service_that_dies_is_the_cause": "a service dies",
    "test_lack_of_memory_is_named": "no memory",
    "test_a_taken_port_is_found_before_anything_starts": "a port is taken",
    "test_bad_disks_are_refused_before_anything_starts": "the data disk is none",
    "test_a_read_only_or_full_disk_is_refused": "the data disk is full, or read-only",
    "test_a_missing_and_a_stale_image_are_said": "the image is missing, or outdated",
    "test_a_killed_supervisor_is_a_failed_run": "the supervisor is killed",
}


@contextlib.contextmanager
def burners() -> Iterator[None]:
    """Processes that want all they can get, for `LONGEST_S` at most."""
    with contextlib.ExitStack() as stack:
        for _ in range(BURNERS):
            process = subprocess.Popen([sys.executable, "-c", BURN.format(seconds=LONGEST_S)])
            stack.callback(process.wait)
            stack.callback(process.kill)
        time.sleep(5)
        yield


def smoke(folder: Path) -> tuple[bool, str]:
    """Run the main job; return whether what it says is true, and that."""
    box = Box(project=folder, data=folder)
    done = box("run", "smoke", "--json")
    if done.code == 0:
        return True, "passed"
    if not list(folder.glob("runs/*/run.json")):
        return False, f"it never began: {' '.join(done.err.split())[-300:]}"
    cause = next((stage["cause"] for stage in box.state()["stages"] if stage["cause"]), None)
    return bool(cause and cause["kind"] == "busy"), cause["what"] if cause else done.err[-300:]


def fault(test: str) -> tuple[bool, str]:
    """Run the test that plants a fault and looks at what is told."""
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{TESTS}::{test}"]
    done = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True)
    failed = next((line[2:].strip() for line in done.stdout.splitlines() if line.startswith("E  ")), "")
    return done.returncode == 0, "told as itself" if done.returncode == 0 else failed or done.stdout[-300:]


def main() -> int:
    """Carry out all, and write the table."""
    rows, wrong = [], 0
    with tempfile.TemporaryDirectory() as folder, burners():
        for name in ("smoke", *FAULTS):
            began = time.monotonic()
            right, said = smoke(Path(folder)) if name == "smoke" else fault(name)
            wrong += not right
            took, load = duration_text(time.monotonic() - began), f"{os.getloadavg()[0]:.1f}"
            cells = (FAULTS.get(name, "`rlbox run smoke`"), "yes" if right else "NO", said, took, load)
            rows.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n")
            print(rows[-1], end="", flush=True)
    about = f"`make nightly ARGS=busy` wrote this: {provenance(RESULTS)};\n{BURNERS} processes computed beside it."
    head = "| what | true | what was told | took | load |\n|---|---|---|---|---|\n"
    RESULTS.write_text(f"# What is told on a busy machine\n\n{about}\n\n{head}{''.join(rows)}", encoding="utf-8")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
