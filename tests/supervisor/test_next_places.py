"""What is advised about where a run takes place: a newer rlbox's place, an open network, a machine with a run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from following import Follow, findings
from launched import BARE, FIRST, SECOND, Site
from supervised import wait_for

NEWER = BARE.replace(
    "from rlbox.cli import main",
    "import rlbox.run.places as places; places.PLACES['moon'] = 'as here'; sys.modules['rlbox.run.moon'] = here\n"
    "from rlbox.cli import main",
)
"""An rlbox that knows one more place."""


@pytest.fixture
def job(site: Site) -> Site:
    site.job(first=f"[ -e {{run}}/go ] || sleep 600; {FIRST}")
    return site


def test_a_run_of_a_newer_rlbox_is_taken_up_with_that(site: Site, follow: Follow) -> None:
    site.job(second=f"[ {{attempt}} = 2 ] && {SECOND}")
    newer = Site(site.folder.path.parent)
    newer.argv = lambda *words: [sys.executable, "-c", NEWER, *words]  # type: ignore[method-assign]
    assert site.run().code == 1
    run = site.run_dir().name
    records = [site.run_dir() / "plan.json", *Path(site.env["XDG_STATE_HOME"]).rglob(f"{run}.json")]
    for path in records:
        path.write_text(path.read_text().replace('"place": "here"', '"place": "moon"'))
    step = follow("run", "--resume", run)
    assert "unknown place 'moon'" in step.said.err
    follow.rlbox = newer
    follow.again(step)


def test_a_run_is_open_where_that_is_said(site: Site, follow: Follow) -> None:
    site.job()
    path = site.folder.path / "jobs/two.toml"
    path.write_text(path.read_text().replace('name = "first"', 'name = "first"\nown_ray = true'))
    step = follow("run", "two", "--place", "here")
    follow.again(step, *step.options({}))


def test_a_run_that_goes_on_is_ended(job: Site, follow: Follow) -> None:
    job.detach()
    wait_for(lambda: job.states()[:1] == ["running"])
    step = follow.found(("doctor",), follow.rlbox("doctor", "-v"), "live-runs")
    follow.types(step)
    wait_for(lambda: not job.marked())
    assert "live-runs" not in findings(follow.rlbox("doctor", "-v"))
