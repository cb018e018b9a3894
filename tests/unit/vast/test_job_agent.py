"""vast/keeper: what is told of a run, and when the machine is stopped. The rest is tried on a real instance."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from fakes import CHECKOUT

from rlbox.errors import WorkFailed
from rlbox.vast import job_agent as keeper
from rlbox.vast.remote_job import JOB_FILE, REFUSED_FILE, RUN_FILE, RemoteJob

pytestmark = pytest.mark.allow("processes", "sockets")
FACTS = {"event": "ended", "run": "sft-1", "state": "passed", "exit_code": 0}


@pytest.fixture
def hook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    told: list[dict[str, Any]] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *words: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/x", told
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_address_gets_json(hook: tuple[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch) -> None:
    url, told = hook
    monkeypatch.setenv("CONTAINER_ID", "4711")
    keeper._notify(RemoteJob(job="sft", disk="/d", notify=url), FACTS)
    assert told == [{"instance": "4711", **FACTS}]


def test_nobody_listens_and_nothing_ends(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlbox.system.http.retry_delay_s", lambda *words: 0.0)
    keeper._notify(RemoteJob(job="sft", disk="/d", notify="http://127.0.0.1:9/x"), FACTS)
    assert "nobody answers the notice" in capsys.readouterr().out


def test_a_command_gets_variables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f'echo "$RLBOX_EVENT $RLBOX_STATE $RLBOX_EXIT_CODE" >{tmp_path}/told; exit 3'
    keeper._notify(RemoteJob(job="sft", disk="/d", notify=text), FACTS)
    assert (tmp_path / "told").read_text() == "ended passed 0\n"
    assert "notice: exit code 3" in capsys.readouterr().out


def test_a_command_that_does_not_end(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(keeper, "_NOTICE_S", 0.1)
    keeper._notify(RemoteJob(job="sft", disk="/d", notify="exec sleep 60"), FACTS)
    assert "did not end within 0.1 s" in capsys.readouterr().out


@pytest.mark.parametrize(("ran", "stops"), [(False, 0), (True, 1)])
def test_a_job_that_never_ran_leaves_the_machine_to_who_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: bool, stops: int
) -> None:
    (tmp_path / JOB_FILE).write_text(RemoteJob(job="sft", disk=str(tmp_path), then="stop").text())
    if ran:
        (tmp_path / RUN_FILE).write_text("sft-1\n")
    stopped: list[int] = []
    monkeypatch.setenv("CONTAINER_ID", "4711")
    monkeypatch.setattr(keeper, "set_instance_state", lambda number, state, key: stopped.append(number))

    def refuse(*words: str) -> None:
        raise WorkFailed("no room")

    monkeypatch.setattr(keeper, "_rlbox", refuse)
    assert keeper.run_agent(tmp_path) == 1
    assert stopped == [4711] * stops
    assert (tmp_path / REFUSED_FILE).exists() != ran


def test_one_keeps(tmp_path: Path) -> None:
    handle = keeper.open_and_lock_file(tmp_path / "lock", create=True)
    assert handle is not None
    assert keeper.run_agent(tmp_path) == 0


def test_a_torn_line_of_events_waits(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"event": "run"}\n{"event": "stal')
    assert [row["event"] for row in keeper.read_events(tmp_path)] == ["run"]


@pytest.mark.allow("processes")
def test_what_rlbox_refuses_there_is_told_with_its_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    with pytest.raises(WorkFailed) as refused:
        keeper._rlbox("run", "nosuch", "--place", "here", "--project", str(tmp_path))
    assert refused.value.what.startswith("rlbox run nosuch: unknown job 'nosuch'")
    assert refused.value.next_step
