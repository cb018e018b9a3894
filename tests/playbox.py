"""An inference server that plays given answers, exports that look whole, and rows of problems."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Answers = Callable[[str, int], str]
"""What is answered to a message, and for the how-manieth time."""
HELPER = "def plus(x, y):\n    return x + y\n\n\n"


class Player:
    """What a server was asked; `answers` decides what it says. `tokenizes`: whether it has vLLM's /tokenize."""

    def __init__(self, answers: Answers, *, tokenizes: bool = True, model: str = "judged", root: str = "") -> None:
        self.answers, self.tokenizes, self.model, self.root = answers, tokenizes, model, root
        self.asked: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.url = ""
        self.lock = threading.Lock()
        self.refuses = lambda: False
        self.version, self.context, self.bos = "0.0.1", 4096, False
        self.cuts = 0  # connections that are cut behind the question, as a server does with one that was idle

    def say(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return status and answer."""
        if path == "/tokenize":
            if not self.tokenizes:
                return 404, {"detail": "Not Found"}
            return 200, {"tokens": [2] * self.bos + list(body["messages"][0]["content"].encode())}
        whole = path == "/v1/completions"
        ask = bytes(body["prompt"]).decode() if whole else body["messages"][0]["content"]
        with self.lock:
            self.asked[ask] += 1
            self.bodies.append(body)
            number = self.asked[ask]
        if self.refuses():
            return 500, {"error": "no"}
        text = self.answers(ask, number)
        said = {"text": text} if whole else {"message": {"role": "assistant", "content": text}}
        usage = {"completion_tokens": len(text.split())}
        return 200, {"model": self.model, "choices": [{**said, "finish_reason": "stop"}], "usage": usage}


@contextlib.contextmanager
def playing(player: Player, port: int = 0) -> Iterator[Player]:
    """Answer on loopback, on a port of its own or this one, while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            models = {"data": [{"id": "judged", "root": player.root, "max_model_len": player.context}]}
            self._send(200, models if self.path == "/v1/models" else {"version": player.version})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if player.cuts:
                player.cuts -= 1
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True
                return
            self._send(*player.say(self.path, body))

        def _send(self, status: int, content: Any) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *words: Any) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128  # as many ask at once; of a short queue a busy machine resets connections

    server = Server(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    player.url = f"http://127.0.0.1:{server.server_port}"
    yield player
    server.shutdown()
    server.server_close()


def export(folder: Path, seed: int = 0) -> Path:
    """Lay what an export has: a shard, its configuration, a tokenizer with a chat template."""
    folder.mkdir(parents=True)
    header = json.dumps({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes([seed] * 4))
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    return folder


def adding(count: int) -> list[dict[str, Any]]:
    """Return rows of HumanEval's form: functions that add a number, whose tests know it."""
    return [
        {
            "task_id": f"Add/{number}",
            "prompt": f'{HELPER}def add(x):\n    """Return x plus {number}."""\n',
            "canonical_solution": f"    return plus(x, {number})\n",
            "test": f"def check(f):\n    assert [f(1), f(-1)] == [{number + 1}, {number - 1}]\n",
            "entry_point": "add",
        }
        for number in range(count)
    ]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def judge_argv(site: Path, export: Path, url: str, sandbox_url: str, *more: str, suite: str = "adding") -> list[str]:
    """Return `rlbox eval judge` of an export by a server that is up; problems and suites lie in `site`."""
    argv = ["eval", "judge", str(export), "--project", str(site), "--problems", str(site / "problems")]
    argv += ["--suite", suite, "--out", str(site / "out"), "--url", url, "--sandbox-url", sandbox_url]
    return [*argv, *more]
