"""The report in a real browser, where there is one: it runs, draws, answers the mouse and asks nobody for anything."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import threading
from html import escape
from pathlib import Path

import pytest
from reportbox import iso, write_run

from rlbox.report.act.html import render_report
from rlbox.report.act.live import LivePage
from rlbox.report.act.read import load_run_record
from rlbox.secrets.masks import Masks

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
pytestmark = [
    pytest.mark.allow("processes", "sockets"),
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


OVERFLOW = """
<script>
const scrolls = (one) => /auto|scroll|hidden/.test(getComputedStyle(one).overflowX);
const inside = (one) => one && (scrolls(one) || inside(one.parentElement));
const beyond = (one) => one.getBoundingClientRect().right > innerWidth + 1;
top.document.body.dataset.over = [...document.querySelectorAll("body *")]
  .filter((one) => beyond(one) && !inside(one) && !one.closest("svg"))
  .map((one) => `${one.tagName}.${one.className}`).join(" ");
top.document.body.dataset.bars = [...document.querySelectorAll(".track")].filter(beyond).length;
top.document.body.dataset.across = document.documentElement.scrollWidth > innerWidth;
top.document.body.dataset.screen = innerWidth;
</script>
"""


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_wider_than_the_screen(tmp_path: Path, width: int, scheme: str, language: str) -> None:
    """A frame is as narrow as a phone, which the browser's window is not."""
    write_run(tmp_path / "holdem")
    record = load_run_record(tmp_path / "holdem", Masks({}), points=400)
    page = tmp_path / "report.html"
    html = render_report(record, made_at=iso(30000), language=language)
    html = html.replace("<details", "<details open").replace("</body>", f"{OVERFLOW}</body>")
    page.write_text(f'<body style="margin: 0"><iframe width="{width}" height="900" srcdoc="{escape(html)}"></iframe>')
    dom, complaints = browse(page, f"--blink-settings=preferredColorScheme={int(scheme == 'light')}")
    assert complaints == ""
    found = dict(re.findall(r'data-(over|bars|across|screen)="([^"]*)"', dom[dom.index("<body") :]))
    assert found == {"over": "", "bars": "0", "across": "false", "screen": str(width)}


def test_a_live_page_follows_the_run(tmp_path: Path) -> None:
    """What is added to the record while the browser looks is shown without a look of the user's."""
    run_dir = tmp_path / "holdem"
    write_run(run_dir)
    looks = itertools.count(1)

    def page() -> str:
        """Make the page, and let the run go on."""
        with (run_dir / "events.jsonl").open("a") as events:
            events.write("\n")
        record = load_run_record(run_dir, Masks({}), points=400)
        return render_report(record, made_at=iso(30000), live=True).replace("<h1>", f"<h1>look {next(looks)}, ")

    with LivePage(run_dir, page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        dom, complaints = browse(f"http://127.0.0.1:{server.port}/", "--virtual-time-budget=12000", profile=tmp_path)
        server.shutdown()
    assert complaints == ""
    assert re.search(r'data-drawn="\d', dom)
    assert re.search(r"<h1>look [2-9]", dom)


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
