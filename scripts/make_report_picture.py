"""Write the pictures of docs/report.md: `python scripts/make_report_picture.py RUN OTHER GOING`.

They are folders of real runs, as of `rlbox run smoke` twice, and once more while it goes on. The report is shown wide
and as on a phone, the live page dark and in Chinese, each as Chromium shows it; it needs `chromium`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
from html import escape
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")
PHONE = (360, 1240)
LIVE = (820, 1000)


def main(words: list[str]) -> int:
    """Make the pictures; return the exit code."""
    sys.path.insert(0, str(CHECKOUT))
    from rlbox.machine.act.clock import utc_now
    from rlbox.report.act.html import render_report
    from rlbox.report.act.live import LivePage
    from rlbox.report.act.read import load_run_record
    from rlbox.secrets.masks import Masks

    chromium = shutil.which("chromium")
    if not chromium or len(words) != 3:
        sys.stderr.write("chromium and the folders of three runs are needed\n")
        return 1
    run, other, going = (load_run_record(Path(word), Masks({}), points=400) for word in words)

    def live_page() -> str:
        return render_report(going, made_at=utc_now(), language="zh", live=True)

    def shot(name: str, address: str, size: tuple[int, int], *flags: str) -> None:
        with tempfile.TemporaryDirectory() as profile:
            told = (f"--window-size={size[0]},{size[1]}", f"--screenshot={CHECKOUT}/docs/{name}.png", *flags)
            argv = [chromium, *FLAGS, *told, f"--user-data-dir={profile}", address]
            subprocess.run(argv, check=True, capture_output=True, timeout=120)

    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        html = render_report(run, made_at=utc_now(), other=other)
        page.write_text(html, encoding="utf-8")
        shot("report", page.as_uri(), (1180, 1440))
        shape = f'width="{PHONE[0]}" height="{PHONE[1]}" style="border: 0; background: #fff"'
        alone = render_report(run, made_at=utc_now())
        frame = f'<iframe {shape} srcdoc="{escape(alone)}"></iframe>'
        page.write_text(
            f'<body style="margin: 0; background: #9aa3af; display: flex; justify-content: center">{frame}',
            encoding="utf-8",
        )
        shot("report-phone", page.as_uri(), (500, PHONE[1]))
    with LivePage(Path(words[2]), live_page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        dark = "--blink-settings=preferredColorScheme=0"
        shot("report-live", f"http://127.0.0.1:{server.port}/", LIVE, dark)
        server.shutdown()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
