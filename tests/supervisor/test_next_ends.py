"""What is advised of a run that did not come to its end as it should is done: disks, records, users, services."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import launched
import pytest
from another_user import MAY_WRITE
from fakes import Said
from following import Follow
from launched import FIRST, JOB, SECOND, Site
from supervised import free_port, wait_for

from rlbox.record.disk_hold import LockOwner, lock_disk

AGAIN = ("run", "two", "--place", "here")
FAILS_ONCE = "[ {attempt} = 2 ] && echo two > {run}/made-2"
SERVER = """
import http.server as h, sys, time
class Answer(h.SimpleHTTPRequestHandler):
    asked = 0
    def do_GET(self):
        Answer.asked += 1
        time.sleep(0 if Answer.asked < 3 else 4)
        self.send_response(200)
        self.end_headers()
    def log_message(self, *words):
        pass
h.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Answer).serve_forever()
"""


@pytest.fixture
def small_disk(site: Site) -> Iterator[Path]:
    """A data disk of few bytes and fewer files."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,nr_inodes=200", "tmpfs", str(site.data)], check=True)
    yield site.data
    subprocess.run(["umount", "-l", str(site.data)], check=True)


def test_a_disk_that_a_stage_filled(site: Site, follow: Follow, small_disk: Path) -> None:
    site.job(first=f"{FIRST}; [ {{attempt}} = 2 ] || head -c 9000000 /dev/zero > {small_disk}/old; sleep 1; ls {{run}}")
    step = follow(*AGAIN)
    (small_disk / "old").unlink()
    site.job()
    follow.again(step)


def test_a_disk_without_room_for_a_run(site: Site, follow: Follow, small_disk: Path, tmp_path: Path) -> None:
    site.job()
    (small_disk / ".rlbox-run.lock").touch()
    old = [small_disk / f"{number}" for number in range(196)]
    for path in old:
        path.touch()
    step = follow(*AGAIN)
    (tmp_path / "another").mkdir()
    follow.again(step, *step.options({"DIR": str(tmp_path / "another")}))
    for path in old:
        path.unlink()
    follow.again(step)


@pytest.mark.parametrize("limit", ["silence_s", "answer_s"])
def test_a_service_that_was_no_hang_gets_more_time(site: Site, follow: Follow, limit: str) -> None:
    port = free_port()
    (site.folder.path / "server.py").write_text(SERVER)
    service = f"""[ports]
http = {port}
[[services]]
name = "server"
title = "answers"
command = ["python3", "{site.folder.path}/server.py", "{{port.http}}"]
ports = ["http"]
start_s = 60
{limit} = 1
ready = {{ url = "http://127.0.0.1:{{port.http}}" }}
"""
    job = JOB.replace("FIRST", f"sleep 4; {FIRST}").replace("SECOND", SECOND)
    job = job.replace('name = "first"', 'name = "first"\nservices = ["server"]')
    site.folder.job("two", job.replace("[[stages]]", f"{service}[[stages]]", 1))
    step = follow(*AGAIN)
    assert step.text.endswith(f"raise {limit} of service server")
    path = site.folder.path / "jobs/two.toml"
    path.write_text(path.read_text().replace(f"{limit} = 1", f"{limit} = 50"))
    follow.again(step)


def test_a_run_that_may_go_on_elsewhere(site: Site, follow: Follow) -> None:
    site.job(second=f"[ {{attempt}} = 2 ] || sleep 60; {SECOND}")
    run = site.detach()
    wait_for(lambda: site.states() == ["passed", "running"])
    plan = site.run_dir() / "plan.json"
    plan.write_text(json.dumps({**json.loads(plan.read_text()), "host": "another-host"}))
    os.kill(site.supervisor().warden, signal.SIGKILL)  # else it would write the end down
    site.close()
    site.wait_for_end()
    step = follow("run", "--resume", run)
    assert "it seems to go on at host another-host" in follow.types(step).err


def test_the_run_of_another_user(site: Site, follow: Follow) -> None:
    site.job(second=f"sleep 600; {SECOND}")
    path = site.folder.path / "jobs/two.toml"
    path.write_text(re.sub(r"_s = \d+", "_s = 900", path.read_text()))
    run = site.detach()
    wait_for(lambda: site.states() == ["passed", "running"])

    def as_another(*words: str) -> Said:
        argv = [*MAY_WRITE, *site.argv(*words)]
        done = subprocess.run(argv, cwd=site.folder.path, env=site.env, capture_output=True, text=True, timeout=120)
        return Said(code=done.returncode, out=done.stdout, err=done.stderr)

    step = follow.step(("stop", run), as_another("stop", run))
    follow.again(step)  # as root
    assert site.state()["state"] == "interrupted"


def test_an_attempt_that_is_begun_twice(site: Site, follow: Follow) -> None:
    site.job(second=FAILS_ONCE)
    assert site.run().code == 1
    words = [sys.executable, "-m", "rlbox.supervise", str(site.run_dir())]
    done = subprocess.run(words, env=site.env, capture_output=True, text=True, timeout=60)
    step = follow.step(words, Said(code=done.returncode, out=done.stdout, err=done.stderr))
    follow.types(step)
    assert site.states() == ["passed", "passed"]


def test_a_run_that_did_not_begin(site: Site, follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    site.job()
    with monkeypatch.context() as broken:
        broken.setattr(launched, "BARE", launched.BARE.replace("words=()", 'words=("false",)'))
        step = follow(*AGAIN)
    assert "did not begin" in step.said.err
    follow.types(step)
    assert site.states() == ["passed", "passed"]


def test_a_run_that_was_stopped_before_it_began(site: Site, follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes while the place is asked for its run."""
    site.job()
    stops = "import signal; here.ReadyHere.start = (lambda real: lambda *w: (signal.raise_signal(2), real(*w))[1])"
    with monkeypatch.context() as pressed:
        text = launched.BARE.replace("sys.exit(", f"{stops}(here.ReadyHere.start)\nsys.exit(")
        pressed.setattr(launched, "BARE", text)
        step = follow(*AGAIN)
    assert step.said.code == 130
    follow.types(step)
    assert site.states() == ["passed", "passed"]


def test_somebody_who_looks_after_runs_is_waited_for(site: Site, follow: Follow) -> None:
    site.job()
    hold = lock_disk(site.data, LockOwner(what="the ends of runs"))
    step = follow(*AGAIN)
    hold.release()
    follow.again(step)


def test_a_disk_that_cannot_lock(site: Site, follow: Follow, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As one of Lustre's that is mounted without -o flock."""
    site.job()
    without = f"""
import rlbox.record.disk_hold as disk
whole = disk.try_lock
def try_lock(handle, **more):
    if os.readlink(f"/proc/self/fd/{{handle}}").startswith({str(site.data)!r}):
        raise OSError(38, "Function not implemented")
    return whole(handle, **more)
disk.try_lock = try_lock
"""
    monkeypatch.setattr(launched, "BARE", launched.BARE.replace("sys.exit(", f"{without}sys.exit("))
    step = follow(*AGAIN)
    (tmp_path / "another").mkdir()
    follow.again(step, *step.options({"DIR": str(tmp_path / "another")}, 0))


def test_secrets_that_nobody_sent(site: Site, follow: Follow) -> None:
    site.job(second=FAILS_ONCE)
    path = site.folder.path / "jobs/two.toml"
    named = 'secrets = ["WANDB_API_KEY"]'
    text = path.read_text().replace('target = "mine"', f'target = "mine"\n{named}')
    path.write_text(text.replace('name = "second"', f'name = "second"\n{named}'))
    site.env["WANDB_API_KEY"] = "planted-0123456789abcdef"
    assert site.run().code == 1
    (site.run_dir() / "supervisor.json").unlink()
    words = [sys.executable, "-m", "rlbox.supervise", str(site.run_dir())]
    done = subprocess.run(words, env=site.env, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    step = follow.step(words, Said(code=done.returncode, out=done.stdout, err=done.stderr))
    follow.types(step, 1, RUN=site.run_dir().name)
    assert site.states() == ["passed", "passed"]
