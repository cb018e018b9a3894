"""The page that follows a run: created again when the record grew, told to this machine alone, changing nothing."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlbox.errors import SpecError
from rlbox.report.live import LivePageServer

pytestmark = pytest.mark.allow("sockets")


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LivePageServer]:
    """A run with a record, and its page, which says how often it was made."""
    (tmp_path / "events.jsonl").write_text("{}\n")
    made: list[int] = []

    def page() -> str:
        made.append(0)
        return f"<p>made {len(made)} 次"

    with LivePageServer(tmp_path, page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def ask(live: LivePageServer, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=10)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read().decode()


def test_it_is_made_when_the_record_grew(live: LivePageServer, tmp_path: Path) -> None:
    assert ask(live)[2] == ask(live, "/page")[2] == "<p>made 1 次"
    tag = ask(live)[1]["ETag"]
    assert ask(live, If_None_Match=tag)[0] == 304
    (tmp_path / "resources.jsonl").write_text("{}\n")
    status, headers, text = ask(live, If_None_Match=tag)
    assert (status, text) == (200, "<p>made 2 次")
    assert headers["ETag"] != tag
    assert headers["Cache-Control"] == "no-store"


def test_a_page_that_a_browser_was_led_to_gets_nothing(live: LivePageServer) -> None:
    """As by a name of somebody else's that leads to 127.0.0.1."""
    assert ask(live, Host=f"evil.example:{live.port}")[0] == 421
    assert ask(live, Host="127.0.0.1")[0] == 421
    assert ask(live, Host=f"localhost:{live.port}")[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/", 501),
        ("DELETE", "/", 501),
        ("GET", "/other", 404),
        ("GET", "/../run.json", 404),
        ("GET", "/page/x", 404),
    ],
)
def test_nothing_else_is_answered_and_only_here(live: LivePageServer, method: str, path: str, status: int) -> None:
    assert ask(live, path, method=method)[0] == status
    assert live.server_address[0] == "127.0.0.1"


def test_a_record_that_cannot_be_read_now_is_asked_for_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_text("{")
    broken = [SpecError("run.json cannot be read")]

    def page() -> str:
        if broken:
            raise broken.pop()
        return "whole"

    with LivePageServer(tmp_path, page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert ask(server)[0] == 503
        assert ask(server)[::2] == (200, "whole")
        server.shutdown()
    assert capfd.readouterr().err == ""
