"""Write docs/report.png: the report of a made-up run as Chromium shows it.

`python scripts/make_report_picture.py`; it needs `chromium` on the machine, which nothing else of rlbox does.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
PICTURE = CHECKOUT / "docs/report.png"
SIZE = "920,850"
LOOKS = "html { zoom: .74 } nav, dl, .service, figure details { display: none }"
NOT_SHOWN = " &lt;script&gt;alert(1)&lt;/script&gt;"  # the tests want it in the log


def main() -> int:
    """Make the run, its report and the picture; return the exit code."""
    sys.path.insert(0, str(CHECKOUT / "tests"))
    from reportbox import iso, write_run

    from rlbox.report.act.html import render_report
    from rlbox.report.act.read import load_run_record
    from rlbox.secrets.masks import Masks

    chromium = shutil.which("chromium")
    if not chromium:
        sys.stderr.write("no chromium on this machine\n")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder, "holdem-20261120-080000-95ac")
        write_run(run_dir)
        html = render_report(load_run_record(run_dir, Masks({}), points=400), made_at=iso(20030))
        page = Path(folder, "report.html")
        page.write_text(html.replace("</style>", f"{LOOKS}</style>").replace(NOT_SHOWN, ""), encoding="utf-8")
        flags = (
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder}/profile",
        )
        shot = ("--hide-scrollbars", f"--window-size={SIZE}", f"--screenshot={PICTURE}")
        subprocess.run([chromium, *flags, *shot, page.as_uri()], check=True, capture_output=True, timeout=120)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
