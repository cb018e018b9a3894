"""`run --detach`, `runs`, `attach`, `logs -f`, `stop`, `run --resume`, `--from`: typed for real, over runs in place."""

from __future__ import annotations

import os
import pty
import signal

import pytest
from launched import Site
from supervised import wait_for

GOES_ON = "echo there; while ! [ -e {run}/go ]; do sleep 0.05; done; echo two > {run}/made-2; echo done"
FAILS_ONCE = "echo attempt {attempt}; [ {attempt} = 2 ] && echo two > {run}/made-2"


def test_a_run_that_is_left_alone(site: Site) -> None:
    """Started, listed, refused a second time, watched, followed and let go on from other shells."""
    site.job(second=GOES_ON)
    run = site.detach()
    assert run == site.run_dir().name
    wait_for(lambda: site.states() == ["passed", "running"])
    row = site("runs", "--json", "--target", "mine").data["runs"][0]
    assert (row["run"], row["state"], row["stage"], row["cause"]) == (run, "running", "second", "")

    again = site.run()
    assert again.code == 8
    assert f"run {run} has the data disk: job two, started by " in again.err

    refused = site("runs", "rm", run, "--yes")
    assert refused.code == 8
    assert f"run {run} has not ended" in refused.err
    assert f"next:  rlbox stop {run}" in refused.err
    assert site("runs", "prune", "--yes").code == 0
    assert site.run_dir().name == run

    watching = site.start("attach")
    following = site.start("logs", "-f", run[:-2])
    assert watching.stderr
    assert following.stdout
    while (line := following.stdout.readline()) != "there\n":
        assert line.startswith("==> stages/") or line == "made it\n"
    while "second: running" not in watching.stderr.readline():
        pass
    watching.send_signal(signal.SIGINT)
    assert f"run {run} continues" in watching.communicate(timeout=60)[1]
    assert watching.returncode == 0

    (site.run_dir() / "go").touch()
    assert following.communicate(timeout=60)[0] == "done\n"
    assert following.returncode == 0
    said = site("attach", run)
    assert (said.code, site.states()) == (0, ["passed", "passed"])
    assert site("stop").out == f"no run is in progress on {site.data}\n"
    assert site("runs", "rm", run, "--yes").code == 0
    assert site("runs", "--json", "--target", "mine").data["runs"] == []


@pytest.mark.slow
def test_a_terminal_that_is_closed_and_one_that_is_interrupted(site: Site) -> None:
    site.job(second=GOES_ON)
    ours, theirs = pty.openpty()
    window = site.start("run", "two", "--place", "here", stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    wait_for(lambda: site.states() == ["passed", "running"])
    os.close(ours)
    os.killpg(window.pid, signal.SIGHUP)
    assert window.wait(60) == -signal.SIGHUP
    would = f"ask run {site.run_dir().name} to stop, and kill its remaining processes after 20 s"
    assert site("stop", "--dry-run").out == f"# verdict: this would {would}\n"
    said = site("stop", "--json")
    assert (said.code, said.data["state"], said.data["stopped"]) == (0, "interrupted", True)
    assert site.states() == ["passed", "interrupted"]
    assert site.cause().startswith("interrupted by rlbox stop (")
    assert site.marked() == []


def test_resume(site: Site) -> None:
    site.job(second=FAILS_ONCE)
    assert site.run().code == 1
    run = site.run_dir().name
    later = site.run("--from", "second")
    assert later.code == 2
    assert "stage second may not begin: first has not passed in this run" in later.err
    assert "or override it with --force" in later.err

    both = [site.start("run", "--resume", run) for _ in range(2)]
    codes = sorted(process.wait(60) for process in both)
    assert codes[0] == 0
    assert codes[1] in (2, 8)  # refused: it goes on, or (when the first had ended) has nothing left to do
    for process in both:
        process.communicate()
    assert site.run_dir().name == run
    assert [(stage["state"], stage["attempt"]) for stage in site.state()["stages"]] == [("passed", 1), ("passed", 2)]
    assert site("logs", run, "--stage", "second", "-q").out == "attempt 2\n"
    assert "has nothing left to do" in site("run", "--resume", run).err


def test_words_that_do_not_go_together(site: Site) -> None:
    site.job()
    assert site("run", "two", "--resume", "x").err.startswith(
        "rlbox: error: --resume takes no JOB: the run has its own"
    )
    assert "job two has no stage 'secnd' (did you mean 'second'?)" in site.run("--from", "secnd", "--force").err
