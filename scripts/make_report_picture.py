"""Write the pictures of docs/report.md: `python scripts/make_report_picture.py [RUN GOING]`.

The two are folders of real runs; without them the job `smoke` is run twice, and the last is looked at while it goes on.
The live page is dark; each is as Chromium shows it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(CHECKOUT), str(CHECKOUT / "tests")]

from browserbox import find_chromium  # noqa: E402

from rlbox.amounts import utc_now  # noqa: E402
from rlbox.record.state import RunState, load_run_state  # noqa: E402
from rlbox.report.html import render_report_html  # noqa: E402
from rlbox.report.live import LivePageServer  # noqa: E402
from rlbox.report.read import RunRecord, load_run_record  # noqa: E402
from rlbox.secrets.masks import SecretMasker  # noqa: E402

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")
DARK = "--blink-settings=preferredColorScheme=0"
WIDE, LIVE = (1180, 1440), (820, 1000)
SMOKE = (str(CHECKOUT / ".venv/bin/rlbox"), "run", "smoke", "--build", "--data")
LONGEST_S = 1200


def main(words: list[str]) -> int:
    """Make the pictures; return the exit code."""
    if not find_chromium() or len(words) not in (0, 2):
        sys.stderr.write("a Chromium is needed (scripts/ensure-test-tools.sh), and no run or the folders of two\n")
        return 1
    with tempfile.TemporaryDirectory() as disk:
        run, going = map(Path, words) if words else (smoke(disk), begun(disk))
        live(going)
        report(read(run))
        if not words:
            subprocess.run([SMOKE[0], "stop", going.name, "--data", disk], check=False)
    return 0


def smoke(disk: str) -> Path:
    """Run the job to its end; return the run's folder."""
    before = set(runs(disk))
    subprocess.run([*SMOKE, disk], check=True)
    return (set(runs(disk)) - before).pop()


def begun(disk: str) -> Path:
    """Start the job, and return the run's folder once its last stage works."""
    before = set(runs(disk))
    subprocess.run([*SMOKE, disk, "--detach"], check=True)
    made = (set(runs(disk)) - before).pop()
    until = time.monotonic() + LONGEST_S
    while time.monotonic() < until and not _far(load_run_state(made)):
        time.sleep(0.5)
    return made


def _far(state: RunState) -> bool:
    return state.state != "running" or state.stages[-1].state == "running"


def runs(disk: str) -> list[Path]:
    """Return the folders of the runs on a disk."""
    return [path.parent for path in Path(disk).glob("runs/*/plan.json")]


def read(run: Path) -> RunRecord:
    """Return the record of a run."""
    return load_run_record(run, SecretMasker({}), max_points_per_series=400)


def report(run: RunRecord) -> None:
    shot("report", render_report_html(run, made_at=utc_now()), WIDE)


def live(run: Path) -> None:
    """Take the live page, dark."""
    with LivePageServer(run, lambda: render_report_html(read(run), made_at=utc_now(), live=True)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        shot("report-live", f"http://127.0.0.1:{server.port}/", LIVE, DARK)
        server.shutdown()


def shot(name: str, page: str, size: tuple[int, int], *flags: str) -> None:
    """Write a picture into docs/ of a page: its address, or its text."""
    with tempfile.TemporaryDirectory() as folder:
        address = page
        if not page.startswith("http://"):
            file = Path(folder, "page.html")
            file.write_text(page, encoding="utf-8")
            address = file.as_uri()
        told = (f"--window-size={size[0]},{size[1]}", f"--screenshot={CHECKOUT}/docs/{name}.png", *flags)
        argv = [find_chromium(), *FLAGS, *told, f"--user-data-dir={folder}/profile", address]
        subprocess.run(argv, check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
