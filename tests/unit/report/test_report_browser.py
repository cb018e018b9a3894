"""The report in a real browser: it runs, draws, answers the mouse, fits every screen and asks nobody for anything."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import threading
from dataclasses import replace
from html import escape, unescape
from pathlib import Path

import pytest
from browserbox import find_chromium
from fakes import load_cases
from reportbox import iso, plan_of, write_run
from test_scores_page import page, write_results

from rlbox.report.html import render_report_html
from rlbox.report.live import LivePageServer
from rlbox.report.read import RunRecord, load_run_record
from rlbox.secrets.masks import SecretMasker

CASES = load_cases("report", "test_report_browser")
CHROMIUM = find_chromium()
pytestmark = [
    pytest.mark.allow("processes", "sockets"),
    pytest.mark.skipif(not CHROMIUM, reason="this distribution has no chromium-headless-shell"),
]
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--enable-logging=stderr", "--timeout=20000", "--window-size=1280,1000",
)  # fmt: skip
PROBE = CASES["PROBE"]


def browse(page: Path | str, *flags: str, profile: Path | None = None) -> tuple[str, str]:
    """Return the document after its scripts ran, and what they and the browser complained of."""
    address = page if isinstance(page, str) else page.as_uri()
    folder = profile or Path(page).parent
    done = subprocess.run(
        [CHROMIUM, *FLAGS, *flags, f"--user-data-dir={folder / 'profile'}", "--dump-dom", address],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    complaints = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return done.stdout, "\n".join(complaints)


OVERFLOW = CASES["OVERFLOW"]
WIDTHS = (360, 1280)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    """A run that failed, with a path that is wider than a phone."""
    folder = tmp_path_factory.mktemp("runs") / "holdem"
    write_run(folder)
    read = load_run_record(folder, SecretMasker({}), max_points_per_series=400)
    return replace(read, plan=plan_of("holdem", "holdem", actor=f"/root/autodl-tmp/{'deep/' * 30}"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_screen(tmp_path: Path, record: RunRecord, scheme: str) -> None:
    """The report, live, scores: in frames as narrow as a phone, which a browser's window is not."""
    pages = {
        "report": render_report_html(record, made_at=iso(30000)),
        "live": render_report_html(record, made_at=iso(30000), live=True),
        "scores": page(write_results(tmp_path / "eval", text=f"x = '{'wide' * 200}'")),
    }
    frames = ""
    for name, html in pages.items():
        opened = html.replace("<details", "<details open").replace("</body>", f"{OVERFLOW}</body>")
        for width in WIDTHS:
            shape = f'name="{name}{width}" width="{width}" height="900"'
            frames += f'<iframe {shape} srcdoc="{escape(opened)}"></iframe>'
    framed = tmp_path / "pages.html"
    framed.write_text(f'<body style="margin: 0">{frames}')
    dom, complaints = browse(framed, f"--blink-settings=preferredColorScheme={int(scheme == 'light')}")
    asked = [line for line in complaints.splitlines() if "Fetch API" not in line]  # a live page, which lies in no file
    assert asked == []
    told = re.findall(r'data-([a-z]+)(\d+)="([^"]*)"', dom[dom.index("<body") :].partition(">")[0])
    found = {(name, int(width)): json.loads(unescape(text)) for name, width, text in told}
    fits = {"over": [], "bars": 0, "across": False, "dark": scheme == "dark"}
    assert found == {(name, width): {**fits, "screen": width} for name in pages for width in WIDTHS}


def test_a_live_page_follows_the_run(tmp_path: Path) -> None:
    """What is added to the record while the browser looks is shown without a look of the user's."""
    run_dir = tmp_path / "holdem"
    write_run(run_dir)
    looks = itertools.count(1)

    def page() -> str:
        """Make the page, and let the run go on."""
        with (run_dir / "events.jsonl").open("a") as events:
            events.write("\n")
        record = load_run_record(run_dir, SecretMasker({}), max_points_per_series=400)
        return render_report_html(record, made_at=iso(30000), live=True).replace("<h1>", f"<h1>look {next(looks)}, ")

    with LivePageServer(run_dir, page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        dom, complaints = browse(f"http://127.0.0.1:{server.port}/", "--virtual-time-budget=12000", profile=tmp_path)
        server.shutdown()
    assert complaints == ""
    assert re.search(r'data-drawn="\d', dom)
    assert re.search(r"<h1>look [2-9]", dom)


def test_in_a_browser(tmp_path: Path) -> None:
    write_run(tmp_path / "holdem")
    html = render_report_html(
        load_run_record(tmp_path / "holdem", SecretMasker({}), max_points_per_series=400), made_at=iso(30000)
    )
    page = tmp_path / "report.html"
    page.write_text(html.replace("</body>", f"{PROBE}</body>"))
    dom, complaints = browse(page)
    assert complaints == ""
    found = dict(re.findall(r'data-(tip|zoomed|scrolled|heights|wide)="([^"]*)"', dom[dom.index("<body") :]))
    assert re.match(r"11-20 \d\d:\d\d:\d\d\nall: \d+ %\nothers on this machine: \d+ %\nmain: \d+ %", found["tip"])
    assert int(found["zoomed"]) >= 8  # all plots over time
    assert float(found["scrolled"]) > 0  # to the fatal line
    assert int(found["heights"]) == len(re.findall("<polyline[^>]* data-name", html))
    assert found["wide"] == "false"
    assert re.search(r'<time datetime="[^"]+" title="2026-11-20 08:00:00 UTC">2026-11-20 ', dom)
