"""What is advised about runs is typed over real runs in place, and then it is otherwise."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from pathlib import Path

import pytest
from following import Follow
from launched import FIRST, JOB, SECOND, Site
from supervised import free_port, wait_for

FAILS_ONCE = "[ {attempt} = 2 ] && echo two > {run}/made-2"
GOES_ON = "echo there; while ! [ -e {run}/go ]; do sleep 0.05; done; echo two > {run}/made-2; echo done"
SERVES = "import http.server as h, sys; h.test(h.SimpleHTTPRequestHandler, port=int(sys.argv[1]))"
AGAIN = ("run", "two", "--place", "here")


def edit(site: Site, old: str, new: str) -> None:
    """Change the job as the next step says."""
    path = site.folder.path / "jobs/two.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_later_stage_goes_on_with_the_run_that_passed_the_first(site: Site, follow: Follow) -> None:
    site.job(second=FAILS_ONCE)
    assert site.run().code == 1
    step = follow(*AGAIN, "--from", "second")
    follow.types(step)


def test_a_run_with_nothing_left_is_begun_anew(site: Site, follow: Follow) -> None:
    site.job()
    assert site.run().code == 0
    run = site.run_dir().name
    step = follow("run", "--resume", run)
    follow.types(step)
    assert len(site.runs()) == 2
    follow.types(step, 1, STAGE="second")


def test_changed_specs_want_a_new_run_or_force(site: Site, follow: Follow) -> None:
    site.job(second=FAILS_ONCE)
    assert site.run().code == 1
    site.job(first=f"true; {FIRST}", second=FAILS_ONCE)
    step = follow("run", "--resume", site.run_dir().name)
    follow.types(step, code=1)
    assert len(site.runs()) == 2
    follow.again(step, *step.options({}, 1))


def test_a_stage_that_may_not_begin_yet(site: Site, follow: Follow) -> None:
    site.job(first=f"[ {{attempt}} = 2 ] && {FIRST}")
    assert site.run().code == 1
    step = follow("run", "--resume", site.run_dir().name, "--from", "second")
    follow.types(step)


def test_a_job_of_other_stages_is_begun_anew(site: Site, follow: Follow) -> None:
    site.job(second=FAILS_ONCE)
    assert site.run().code == 1
    site.job()
    edit(site, 'name = "second"', 'name = "third"')
    step = follow("run", "--resume", site.run_dir().name, "--force")
    follow.types(step)


def test_a_stage_that_there_is(site: Site, follow: Follow) -> None:
    site.job()
    step = follow(*AGAIN, "--from", "secnd", "--dry-run")
    follow.instead(step, "secnd", step.choices()[0])


def test_the_run_that_has_the_disk_is_ended(site: Site, follow: Follow) -> None:
    site.job(second=GOES_ON)
    site.detach()
    wait_for(lambda: site.states() == ["passed", "running"])
    site.job()
    step = follow(*AGAIN)
    follow.types(step, 1)
    follow.again(step)


def test_a_run_that_is_to_be_removed_is_ended_first(site: Site, follow: Follow) -> None:
    site.job(second=GOES_ON)
    run = site.detach()
    wait_for(lambda: site.states() == ["passed", "running"])
    step = follow("runs", "rm", run, "--yes")
    follow.types(step)
    follow.again(step)
    assert site.runs() == []


def test_a_run_of_another_user_is_removed_by_who_may(site: Site, follow: Follow) -> None:
    """A folder that takes no change, whoever asks, is what another user's is for a user who is not root."""
    site.job()
    assert site.run().code == 0
    runs = site.run_dir().parent
    subprocess.run(("chattr", "+i", str(runs)), check=True)
    try:
        step = follow("runs", "rm", site.run_dir().name, "--yes")
        assert "do it as the user whose files they are" in step.text
    finally:
        subprocess.run(("chattr", "-i", str(runs)), check=True)
    follow.again(step)
    assert site.runs() == []


def test_a_service_that_is_slow_gets_more_time(site: Site, follow: Follow) -> None:
    port = free_port()
    site.folder.job("two", _with_service(f"import time; time.sleep(3); {SERVES}", port))
    step = follow(*AGAIN)
    key = _key(step.text)
    assert key == "start_s"
    edit(site, f"{key} = 1", f"{key} = 60")
    follow.again(step)


def _with_service(program: str, port: int) -> str:
    service = f"""[ports]
http = {port}
[[services]]
name = "server"
title = "answers"
command = ["python3", "-c", "{program}", "{{port.http}}"]
ports = ["http"]
listens = ["{{port.http}}"]
start_s = 1
ready = {{ url = "http://127.0.0.1:{{port.http}}" }}
"""
    job = JOB.replace("FIRST", FIRST).replace("SECOND", SECOND)
    with_it = job.replace('name = "first"', 'name = "first"\nservices = ["server"]')
    return with_it.replace("[[stages]]", f"{service}[[stages]]", 1)


def _key(text: str) -> str:
    found = re.search(r"raise (?:limits\.)?([a-z_]+_s)", text)
    assert found, text
    return found[1]


@pytest.mark.parametrize(("limit", "lower"), [("total_s = 60", "total_s = 2"), ("silence_s = 30", "silence_s = 2")])
def test_what_was_no_hang_gets_more_time(site: Site, follow: Follow, limit: str, lower: str) -> None:
    site.job(first=f"sleep 4; {FIRST}")
    edit(site, limit, lower)
    step = follow(*AGAIN)
    edit(site, f"{_key(step.text)} = 2", f"{_key(step.text)} = 50")
    follow.again(step)


def test_a_listener_that_others_may_reach_is_declared(site: Site, follow: Follow) -> None:
    port = free_port()
    opens = f"import socket, time; s = socket.create_server(('0.0.0.0', {port})); time.sleep(3)"
    site.job(first=f'python3 -c \\"{opens}\\"; {FIRST}')
    step = follow(*AGAIN)
    found = re.search(r"listens = \[.*?\]", step.text)
    assert found
    edit(site, 'name = "first"', f'name = "first"\n{found[0]}')
    follow.again(step)


def test_a_port_that_is_taken_is_moved_with_the_others(site: Site, follow: Follow) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        site.folder.job("two", _with_service(SERVES, port).replace("start_s = 1", "start_s = 60"))
        step = follow(*AGAIN)
        found = re.search(r"(--shift-ports) (\d+)", step.text)
        assert found, step.text
        follow.changed(step, [*AGAIN, *found.groups()], 0)
    run = site.run_dir()
    plan = json.loads((run / "plan.json").read_text())
    assert plan["stages"][0]["services"][0]["ports"] == {"http": port + 100}
    assert site("run", "--resume", run.name, "--from", "first").code == 0  # where it was
    assert json.loads((run / "plan.json").read_text())["shift_ports"] == 100


def test_the_log_of_a_stage_says_how_far_it_came(site: Site, follow: Follow) -> None:
    site.job(first="echo one > {run}/made-1; echo no more data")
    step = follow(*AGAIN)
    assert "no more data" in site("logs").out
    site.job()
    follow.again(step)


def test_what_a_stage_needs_is_written_again(site: Site, follow: Follow) -> None:
    site.job(
        first=f"{FIRST}; [ {{attempt}} = 2 ] || rm -f {{run}}/weights; [ {{attempt}} = 1 ] || touch {{run}}/weights"
    )
    edit(site, 'name = "second"', 'name = "second"\nneeds = [{ path = "{run}/weights", min_bytes = 0 }]')
    step = follow(*AGAIN)
    follow.changed(step, ["run", "--resume", site.run_dir().name, "--from", "first"], 0)


def test_a_request_is_sent_by_hand(site: Site, follow: Follow) -> None:
    port = free_port()
    job = _with_service(SERVES, port).replace("start_s = 1", "start_s = 60")
    site.folder.job(
        "two", job + f'probes = [{{ url = "http://127.0.0.1:{port}/nosuch", status = 200, within_s = 0.5 }}]\n'
    )
    edit(site, 'name = "second"', 'name = "second"\nservices = ["server"]')
    step = follow(*AGAIN)
    by_hand = f"python3 -c 'import urllib.request as u; u.urlopen(\\\"http://127.0.0.1:{port}/nosuch\\\")' 2>&1"
    edit(site, SECOND, f"{by_hand}; {SECOND}")
    assert site.run().code == 1
    assert "HTTP Error 404: File not found" in site("logs").out
    edit(site, '/nosuch", status', '/", status')
    follow.again(step)


def test_a_run_that_was_lost_is_resumed(site: Site, follow: Follow) -> None:
    site.job(second=f"[ {{attempt}} = 2 ] || sleep 60; {SECOND}")
    site.detach()
    wait_for(lambda: site.states() == ["passed", "running"])
    site.close()
    site.wait_for_end()
    step = follow("attach", site.run_dir().name)
    follow.types(step)


def test_a_run_that_failed_is_looked_at(site: Site, follow: Follow) -> None:
    """Whatever ended it, and though nothing is known of that."""
    site.job(second="echo these are my last words; exit 3")
    step = follow(*AGAIN)
    assert step.said.err.splitlines()[-1].startswith("next: ")
    page = follow.types(step)
    assert "these are my last words" in Path(page.out.strip()).read_text()
    assert "these are my last words" in follow.types(step, 1).out


def test_a_run_that_was_stopped_is_taken_up_again(site: Site, follow: Follow) -> None:
    site.job(second=f"[ {{attempt}} = 2 ] || sleep 60; {SECOND}")
    site.detach()
    wait_for(lambda: site.states() == ["passed", "running"])
    assert site("stop").code == 0
    step = follow("attach", site.run_dir().name)
    follow.types(step)
    assert site.states() == ["passed", "passed"]


def test_a_run_of_another_project_is_resumed_there(site: Site, follow: Follow, tmp_path: Path) -> None:
    site.job(second=FAILS_ONCE)
    assert site.run().code == 1
    (tmp_path / "elsewhere").mkdir()
    step = follow("run", "--resume", site.run_dir().name, "--project", str(tmp_path / "elsewhere"), "--dry-run")
    assert "is of another project, which has the job 'two'" in step.said.err
    follow.types(step)
    assert site.states() == ["passed", "passed"]
