"""Write the picture of docs/report.md: `python scripts/make_report_picture.py [RUN]`.

RUN is the folder of a run; without it the job `smoke` is run. The page is as Chromium shows it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(CHECKOUT), str(CHECKOUT / "tests")]

from browserbox import find_chromium  # noqa: E402

from rlbox.amounts import utc_now  # noqa: E402
from rlbox.report.html import render_report_html  # noqa: E402
from rlbox.report.read import load_run_record  # noqa: E402
from rlbox.secrets.masks import SecretMasker  # noqa: E402

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--window-size=1180,1000",
)


def main(words: list[str]) -> int:
    """Make the picture; return the exit code."""
    if not find_chromium() or len(words) > 1:
        sys.stderr.write("a Chromium is needed (scripts/ensure-test-tools.sh), and no word or the folder of a run\n")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        run = Path(words[0]) if words else run_smoke(folder)
        record = load_run_record(run, SecretMasker({}), max_points_per_series=400)
        page = Path(folder, "page.html")
        page.write_text(render_report_html(record, made_at=utc_now()), encoding="utf-8")
        screenshot = f"--screenshot={CHECKOUT}/docs/report.png"
        argv = [find_chromium(), *FLAGS, screenshot, f"--user-data-dir={folder}/profile", page.as_uri()]
        subprocess.run(argv, check=True, capture_output=True, timeout=120)
    return 0


def run_smoke(disk: str) -> Path:
    """Run the job to its end; return the run's folder."""
    subprocess.run([f"{CHECKOUT}/.venv/bin/rlbox", "run", "smoke", "--build", "--data", disk], check=True)
    return next(Path(disk).glob("runs/*/plan.json")).parent


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
