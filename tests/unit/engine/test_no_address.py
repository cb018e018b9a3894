"""A registry that names what is no address: a plain error, wherever it stands."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rlbox.engine.registry_client import Descriptor, Registry
from rlbox.errors import RegistryError

pytestmark = pytest.mark.allow("sockets")

NONE = "http://[::1"
CHALLENGE = {"WWW-Authenticate": f'Bearer realm="{NONE}",service="x"'}
ANSWERS = {"realm": (401, CHALLENGE), "redirect": (307, {"Location": NONE}), "upload": (202, {"Location": NONE})}


@pytest.fixture
def registry(request: pytest.FixtureRequest) -> Iterator[Registry]:
    status, headers = ANSWERS[request.param]

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404 if self.command == "HEAD" and status == 202 else status)
            for name, value in {**headers, "Content-Length": "0"}.items():
                self.send_header(name, value)
            self.end_headers()

        do_HEAD = do_POST = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Registry(f"127.0.0.1:{server.server_port}", write=True, pause=lambda _: None)
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("registry", ["realm", "redirect"], indirect=True)
def test_it_is_refused_where_it_asks_or_leads(registry: Registry) -> None:
    with pytest.raises(RegistryError, match="Invalid IPv6 URL"):
        registry.get_manifest("a/b", "latest")


@pytest.mark.parametrize("registry", ["upload"], indirect=True)
def test_it_is_refused_where_it_takes_an_upload(registry: Registry) -> None:
    with pytest.raises(RegistryError, match="names an address that is none"):
        registry.put_blob("a/b", Descriptor(media_type="x", digest="sha256:" + "0" * 64, size=1), b"x")
