"""A mirror of git repositories on loopback that answers under a public mirror's own name and path, over TLS."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseServer, StreamRequestHandler, ThreadingTCPServer
from urllib.parse import urlsplit


@dataclass(frozen=True, kw_only=True)
class GitMirror:
    """A running mirror; `env` makes git and rlbox find and trust it, `asked` are the paths that were asked for."""

    env: Mapping[str, str]
    asked: list[str] = field(default_factory=list)


@contextmanager
def git_mirror(host: str, repositories: Mapping[str, Path], folder: Path) -> Iterator[GitMirror]:
    """Serve bare repositories at `https://HOST/PATH` on loopback.

    Parameters
    ----------
    repositories
        Path of the address (`github.com/OWNER/NAME`) to the git directory.
    folder
        Where the certificate, the links to the repositories and git's settings are written.
    """
    for path, repository in repositories.items():
        (folder / "root" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "root" / path).symlink_to(repository)
    certificate, key = _certificate(host, folder)
    asked: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(folder / "root", asked))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    tunnel = ThreadingTCPServer(("127.0.0.1", 0), _tunnel(host, server.server_port))
    with ExitStack() as running:
        for each in (server, tunnel):
            each.daemon_threads = True
            running.enter_context(_served(each))
        yield GitMirror(env=_settings(tunnel.server_address[1], folder, certificate), asked=asked)


@contextmanager
def _served(server: BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _certificate(host: str, folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "mirror.crt", folder / "mirror.key"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={host}"]
    words += ["-addext", f"subjectAltName=DNS:{host}", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(words, check=True, capture_output=True)
    return certificate, key


def _tunnel(host: str, port: int) -> type[StreamRequestHandler]:
    """A proxy that leads to the mirror whoever asks for `host`; git before 2.37 cannot be told a name's address."""

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            asked = self.rfile.readline().decode()
            while self.rfile.readline().strip():
                pass
            if not asked.startswith(f"CONNECT {host}:443 "):
                self.wfile.write(b"HTTP/1.1 403 Forbidden\r\n\r\n")
                return
            with socket.create_connection(("127.0.0.1", port)) as mirror:
                self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
                back = threading.Thread(target=_pump, args=(mirror, self.connection))
                back.start()
                _pump(self.connection, mirror)
                back.join()

    return Handler


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        with source.makefile("rb", buffering=0) as read, sink.makefile("wb", buffering=0) as write:
            shutil.copyfileobj(read, write)
        sink.shutdown(socket.SHUT_WR)
    except OSError:  # the other end hung up first
        return


def _settings(proxy: int, folder: Path, certificate: Path) -> dict[str, str]:
    """Git asks through the tunnel; rlbox trusts what this machine trusts and the mirror's certificate."""
    bundle = folder / "bundle.crt"
    here = os.environ.get("RLBOX_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    bundle.write_text((Path(here).read_text() if here else "") + certificate.read_text())
    settings = folder / "gitconfig"
    settings.write_text(f"[http]\n\tproxy = http://127.0.0.1:{proxy}\n")
    return {"GIT_CONFIG_GLOBAL": str(settings), "RLBOX_CA_BUNDLE": str(bundle), "GIT_SSL_CAINFO": str(bundle)}


def _handler(root: Path, asked: list[str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def log_message(self, *words: object) -> None:
            pass

        def _answer(self) -> None:
            asked.append(self.path)
            size = int(self.headers.get("Content-Length") or 0)
            if self.headers.get("Transfer-Encoding", "") == "chunked":
                body = self._chunks()
            else:
                body = self.rfile.read(size)
            done = subprocess.run(
                ["git", "http-backend"], input=body, env=self._environment(len(body)), capture_output=True, check=False
            )
            head, _, answer = done.stdout.partition(b"\r\n\r\n")
            lines = dict(line.split(": ", 1) for line in head.decode().splitlines())
            self.send_response(int(lines.pop("Status", "200").split()[0]))
            for name, value in {**lines, "Content-Length": str(len(answer))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        def _chunks(self) -> bytes:
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            return body

        def _environment(self, length: int) -> dict[str, str]:
            parts = urlsplit(self.path)
            return {
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_CONFIG_COUNT": "2",
                "GIT_CONFIG_KEY_0": "safe.directory",
                "GIT_CONFIG_VALUE_0": "*",
                "GIT_CONFIG_KEY_1": "uploadpack.allowAnySHA1InWant",
                "GIT_CONFIG_VALUE_1": "true",
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                "REQUEST_METHOD": self.command,
                "PATH_INFO": parts.path,
                "QUERY_STRING": parts.query,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(length),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "REMOTE_ADDR": "127.0.0.1",
            }

    return Handler
