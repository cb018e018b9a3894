"""A server on loopback that speaks the Hugging Face Hub's API as far as huggingface_hub and rlbox ask it.

Model and data set info, the tree with LFS checksums, and files with ranges, redirects and the hub's headers. It can be
gated, slow, busy, or lie about the bytes, and it counts the bytes of files that it sent.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

LFS_BYTES = 1024
"""Files of this size or more are in LFS."""


def make_files(total: int, shard: int, seed: int = 1) -> dict[str, bytes]:
    """Return a model of about `total` bytes: shards, and small files next to them."""
    source = random.Random(seed)
    count = total // shard
    files = {f"model-{n + 1:05}-of-{count:05}.safetensors": source.randbytes(shard) for n in range(count)}
    return {**files, "config.json": b'{"model_type": "qwen2"}', "README.md": b"# tiny\n", "sub/empty.txt": b""}


def commit_of(files: Mapping[str, bytes]) -> str:
    rows = "".join(f"{path} {hashlib.sha1(data).hexdigest()}\n" for path, data in sorted(files.items()))
    return hashlib.sha1(rows.encode()).hexdigest()


@dataclass
class Repo:
    """Commits with their files; `main` is the newest."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    main: str = ""
    gated: bool = False

    def push(self, files: Mapping[str, bytes]) -> str:
        self.main = commit_of(files)
        self.commits[self.main] = dict(files)
        return self.main


class Hub(ThreadingHTTPServer):
    """Repositories by `models/NAME` or `datasets/NAME`."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, repos: Mapping[str, Repo], token: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.repos, self.token = dict(repos), token
        self.lies = False
        self.busy = 0  # requests that are answered 429 first
        self.block, self.pause_s = 1 << 16, 0.0
        self.sent = 0
        self.asked: list[str] = []
        self.tokens: list[str] = []
        self.counting = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are killed are part of the tests."""


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def do_GET(self) -> None:
        hub, path = self.server, unquote(urlsplit(self.path).path)
        hub.asked.append(path)
        hub.tokens.append(self.headers.get("Authorization", ""))
        if hub.busy:
            hub.busy -= 1
            self.answer(429, **{"Retry-After": "0"})
        elif cdn := re.fullmatch(r"/cdn/(.+?)@([0-9a-f]{40})/(.+)", path):
            self.send_file(hub.repos[cdn[1]].commits[cdn[2]][cdn[3]])
        elif scope := re.fullmatch(r"/api/v1/(models/.+?)/repo(/files)?", path):
            self.answer_as_modelscope(hub.repos[scope[1]], bool(scope[2]))
        elif info := re.fullmatch(r"/api/(models|datasets)/(.+?)/(revision|tree)/([^/]+)", path):
            self.answer_as_hub(f"{info[1]}/{info[2]}", info[4], info[3], "")
        elif file := re.fullmatch(r"/(datasets/)?(.+?)/resolve/([^/]+)/(.+)", path):
            self.answer_as_hub(f"{file[1] or 'models/'}{file[2]}", file[3], "file", file[4])
        else:
            self.answer(404)

    def do_CONNECT(self) -> None:
        self.server.asked.append(f"CONNECT {self.path}")
        self.answer(502)

    def answer_as_hub(self, name: str, revision: str, what: str, path: str) -> None:
        repo = self.server.repos.get(name)
        if repo is None or (repo.gated and self.headers.get("Authorization") != f"Bearer {self.server.token}"):
            code = "GatedRepo" if repo else "RepoNotFound"
            return self.answer(401, **{"X-Error-Code": code, "X-Error-Message": f"Access to {name} is restricted."})
        commit = repo.main if revision == "main" else revision
        files = repo.commits.get(commit)
        if files is None or (path and path not in files):
            return self.answer(404, **{"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})
        if what == "revision":
            facts = {"id": name.partition("/")[2], "sha": commit, "private": False, "gated": repo.gated, "siblings": []}
            return self.send_json({"_id": "1", **facts})
        if what == "tree":
            return self.send_json(_tree(files))
        data = files[path]
        if len(data) < LFS_BYTES:
            return self.send_file(data, **{"X-Repo-Commit": commit})
        linked = {"X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Linked-Size": str(len(data))}
        return self.answer(302, Location=f"/cdn/{name}@{commit}/{path}", **{"X-Repo-Commit": commit, **linked})

    def answer_as_modelscope(self, repo: Repo, lists: bool) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        files = repo.commits[repo.main if asked["Revision"] == ["master"] else asked["Revision"][0]]
        if not lists:
            return self.send_file(files[asked["FilePath"][0]])
        rows: list[dict[str, Any]] = [{"Type": "tree", "Path": "sub", "Size": 0}]
        for number, (path, data) in enumerate(files.items()):
            sha256 = hashlib.sha256(data).hexdigest()
            revision = repo.main if number == 1 else "0" * 40
            row = {"Type": "blob", "Path": path, "Size": len(data), "Sha256": sha256, "Revision": revision}
            rows.append({**row, "CommittedDate": 1_700_000_000 + (number == 1)})
        return self.send_json({"Code": 200, "Data": {"Files": rows}})

    def send_json(self, value: Any) -> None:
        self.answer(200, json.dumps(value).encode(), **{"Content-Type": "application/json"})

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def send_file(self, data: bytes, **headers: str) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(asked[1]) if asked else 0
        if self.server.lies:
            data = bytes(byte ^ 1 for byte in data[:1]) + data[1:]
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)  # what is counted as sent has arrived
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        for name, value in {"Content-Length": str(len(data) - start), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        for at in range(start, len(data), self.server.block):
            block = data[at : at + self.server.block]
            self.wfile.write(block)
            with self.server.counting:
                self.server.sent += len(block)
            time.sleep(self.server.pause_s)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def _tree(files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "sub"}]
    for path, data in files.items():
        row = {"type": "file", "oid": hashlib.sha1(data).hexdigest(), "size": len(data), "path": path}
        if len(data) >= LFS_BYTES:
            row["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
        rows.append(row)
    return rows


@contextmanager
def serving_hub(repos: Mapping[str, Repo], token: str = "") -> Iterator[Hub]:
    with Hub(repos, token) as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
