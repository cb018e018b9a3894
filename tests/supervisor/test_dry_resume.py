"""`run --resume RUN --dry-run` over real runs in place: what would be taken up, what is in its way; nothing changes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from pathlib import Path

import pytest
from fakes import tree
from launched import Site
from supervised import wait_for

from rlbox.record.run_dir import load_plan_file, write_run_plan

GOES_ON = "echo there; while ! [ -e {run}/go ]; do sleep 0.05; done; echo two > {run}/made-2; echo done"
FAILS_ONCE = "[ {attempt} = 2 ] && echo two > {run}/made-2"


def test_what_would_be_taken_up(site: Site, tmp_path: Path) -> None:
    site.job(second=FAILS_ONCE)
    assert site.run().code == 1
    run = site.run_dir().name
    words = ("run", "--resume", run, "--dry-run")
    site.job(first="true", second=FAILS_ONCE)
    said = site(*words, "--from", "nosuch", "--publish", "nosuch")
    assert (said.code, [line for line in said.out.splitlines() if line.startswith("# refused: ")]) == (
        2,
        ["# refused: job two has no stage 'nosuch'", "# refused: no service of job two has the port 'nosuch'"],
    )
    changed = site(*words, "--json").data["verdict"]["refused"]
    assert [row["what"] for row in changed] == [
        f"run {run} cannot go on: spec/job.toml changed since its earlier stages passed"
    ]
    site.job(second=FAILS_ONCE)
    before = tree(tmp_path)
    said = site(*words)
    assert said.code == 0
    assert said.out.splitlines()[-1] == f"# verdict: this would take up run {run}, attempt 2, on mine, place here"
    assert "# stage second, attempt 2: needs it" in said.out.splitlines()
    assert tree(tmp_path) == before
    assert site("run", "--resume", run).code == 0
    said = site(*words, "--json")
    assert (said.code, said.data["verdict"]["refused"][0]["what"]) == (
        2,
        f"run {run} has nothing left to do: all its stages passed",
    )


@pytest.mark.slow
def test_a_run_that_goes_on_and_one_that_was_killed(site: Site, tmp_path: Path) -> None:
    site.job(second=GOES_ON)
    run = site.detach()
    wait_for(lambda: site.states() == ["passed", "running"])
    for words in (("run", "--resume", run), ("run", "two", "--place", "here")):
        said = site(*words, "--dry-run", "--json")
        (found,) = said.data["verdict"]["refused"]
        assert (said.code, found["what"].partition(", started")[0]) == (
            8,
            f"run {run} has the data disk: job two",
        )
    facts = site.supervisor()
    for pid in (facts.warden, facts.pid, *site.marked()):
        with contextlib.suppress(ProcessLookupError):  # it went with one before it
            os.kill(pid, signal.SIGKILL)
    site.wait_for_end()
    before = tree(tmp_path)
    said = site("run", "--resume", run, "--dry-run")
    assert said.out.splitlines()[-2:] == [
        f"# first: run {run}, which nothing carries out any more, is settled",
        f"# verdict: this would take up run {run}, attempt 2, on mine, place here",
    ]
    assert (said.code, tree(tmp_path)) == (0, before)
    (site.run_dir() / "go").touch()
    assert site("run", "--resume", run).code == 0


@pytest.mark.slow
def test_run_of_another_user_and_machine_is_taken_up_as_the_callers_own(site: Site) -> None:
    site.job(second=FAILS_ONCE)
    assert site.run().code == 1
    run_dir = site.run_dir()
    started = load_plan_file(run_dir)
    write_run_plan(run_dir, dataclasses.replace(started, user="other", uid=started.uid + 1, host="elsewhere"))
    assert site("run", "--resume", run_dir.name).code == 0
    resumed = load_plan_file(run_dir)
    assert (resumed.user, resumed.uid, resumed.host) == (started.user, started.uid, started.host)
