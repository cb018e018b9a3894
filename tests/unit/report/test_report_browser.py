"""The report in a real browser, where there is one: it runs, draws, answers the mouse and asks nobody for anything."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from reportbox import iso, write_run

from rlbox.report.act.html import render_report
from rlbox.report.act.read import load_run_record
from rlbox.secrets.masks import Masks

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
pytestmark = [
    pytest.mark.allow("processes"),
    pytest.mark.elsewhere,
    pytest.mark.skipif(not CHROMIUM, reason="no chromium on this machine"),
]
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--enable-logging=stderr", "--timeout=20000", "--window-size=1280,1000",
)  # fmt: skip
PROBE = """
<script>
const plot = [...document.querySelectorAll("svg.plot")].find((svg) => svg.ariaLabel.startsWith("CPU"));
plot.scrollIntoView();
const box = plot.getBoundingClientRect();
const point = (kind, share) => plot.dispatchEvent(new PointerEvent(kind, {
  bubbles: true, clientX: box.left + box.width * share, clientY: box.top + box.height / 2 }));
point("pointermove", 0.5);
document.body.dataset.tip = plot.parentElement.querySelector(".tip").textContent;
point("pointerdown", 0.4); point("pointermove", 0.6); point("pointerup", 0.6);
document.body.dataset.zoomed = [...document.querySelectorAll("svg.plot[data-kind=time] .moved")]
  .filter((moved) => moved.getAttribute("transform")).length;
const filter = document.querySelector("pre .fatal").closest("pre");
document.body.dataset.scrolled = filter.scrollTop;
document.body.dataset.heights = [...document.querySelectorAll("polyline[data-name]")]
  .filter((line) => line.getBBox().width > 0).length;
document.body.dataset.wide = document.documentElement.scrollWidth > innerWidth;
</script>
"""


def browse(page: Path) -> tuple[str, str]:
    """Return the document after its scripts ran, and what they and the browser complained of."""
    done = subprocess.run(
        [CHROMIUM, *FLAGS, f"--user-data-dir={page.parent / 'profile'}", "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    complaints = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return done.stdout, "\n".join(complaints)


def test_in_a_browser(tmp_path: Path) -> None:
    write_run(tmp_path / "holdem")
    html = render_report(load_run_record(tmp_path / "holdem", Masks({}), points=400), made_at=iso(30000))
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


def test_the_page_itself_forbids_every_request(tmp_path: Path) -> None:
    write_run(tmp_path / "holdem", samples=5, steps=5)
    html = render_report(load_run_record(tmp_path / "holdem", Masks({}), points=400), made_at=iso(30000))
    page = tmp_path / "report.html"
    page.write_text(html.replace("</body>", '<img src="http://127.0.0.1:9/x.png"></body>'))
    assert "Content Security Policy" in browse(page)[1]
