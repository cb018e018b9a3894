"""A mirror of git repositories on loopback that answers under a public mirror's own name and path, over TLS."""

from __future__ import annotations

import os
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

ADDRESS = ("127.0.0.1", 443)


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
    mirror = GitMirror(env=_settings(host, folder, certificate))
    server = ThreadingHTTPServer(ADDRESS, _handler(folder / "root", mirror.asked))
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1})
    thread.start()
    try:
        yield mirror
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


def _settings(host: str, folder: Path, certificate: Path) -> dict[str, str]:
    """Git resolves the name to loopback; rlbox trusts what this machine trusts and the mirror's certificate."""
    bundle = folder / "bundle.crt"
    here = os.environ.get("RLBOX_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    bundle.write_text((Path(here).read_text() if here else "") + certificate.read_text())
    settings = folder / "gitconfig"
    settings.write_text(f"[http]\n\tcurloptResolve = {host}:{ADDRESS[1]}:{ADDRESS[0]}\n\tproxy =\n")
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
