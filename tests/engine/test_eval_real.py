"""`rlbox eval` with the real vLLM of the target `local`: killed anywhere, and judged twice in other batches and orders.

RLBOX_EVAL_KILLS=100 takes a hundred kills. `RLBOX_EVAL_IMAGE` names an image of the target that is
there already, in the place of one that is built.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from enginebox import CHECKOUT, docker

from rlbox.evaluation.result import ACCEPTED
from rlbox.evaluation.result_files import read_summary
from rlbox.evaluation.sandbox_client import start_sandbox
from rlbox.evaluation.scores import compute_paired_difference

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("RLBOX_EVAL_KILLS", "4"))
PROGRAMS = CHECKOUT / "tests/evaluation/programs"
PROBLEMS, SEED = 96, 11
Ask = tuple[str, int | None]


@pytest.fixture(scope="module")
def site(eval_image: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that was trained there and then, and two suites of sums: greedy, and drawn with seeds."""
    folder = tmp_path_factory.mktemp("site")
    folder.chmod(0o755)
    mounts = (f"--volume={PROGRAMS}:/programs:ro", f"--volume={folder}:/out")
    words = ("run", "--rm", "--label=rlbox.test=eval", "--network=none", *mounts, "--entrypoint=/opt/venv/bin/python")
    done = subprocess.run(
        ["docker", *words, eval_image, "/programs/small_model.py", "/out/model", "400"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (folder / "problems").mkdir()
    (folder / "suites").mkdir()
    rows = []
    for number in range(PROBLEMS):
        one, other = number % 24, number // 24
        statement = f"Write a program that prints {one} plus {other}."
        tests = {"input": [""], "output": [f"{one + other}\n"]}
        rows.append(json.dumps({"name": f"sum-{one}-{other}", "description": statement, "public_tests": tests}))
    (folder / "problems/sums.jsonl").write_text("\n".join(rows))
    suite = 'title = "sums"\nfile = "sums.jsonl"\nask_program = "{statement}"\n[decoding]\nmax_tokens = 96\n'
    (folder / "suites/sums.toml").write_text(suite)
    (folder / "suites/drawn.toml").write_text(f"{suite}temperature = 0.8\nsamples = 2\nseed = {SEED}\n")
    return folder


@pytest.fixture(scope="module")
def sandbox() -> Iterator[str]:
    with start_sandbox("", 10, 1024) as url:
        yield url


class Counting:
    """Stands before vLLM and counts what it is asked, by message and seed; `times` are those of all questions."""

    def __init__(self, url: str) -> None:
        self.behind, self.asked, self.url = url, Counter[Ask](), ""
        self.times: list[float] = []
        self._messages: dict[tuple[int, ...], str] = {}
        self._lock = threading.Lock()

    def pass_on(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Ask vLLM and return its answer."""
        sent = json.loads(body) if body else {}
        if path == "/v1/completions":
            with self._lock:
                self.asked[self._messages[tuple(sent["prompt"])], sent.get("seed")] += 1
                self.times.append(time.monotonic())
        request = urllib.request.Request(
            self.behind + path, body or None, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        if path == "/tokenize":
            with self._lock:
                self._messages[tuple(json.loads(text)["tokens"])] = sent["messages"][0]["content"]
        return status, text


@contextlib.contextmanager
def counted(url: str) -> Iterator[Counting]:
    """Yield what counts, at an address of its own, while the block runs."""
    counting = Counting(url)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, text = counting.pass_on(self.command, self.path, body)
            with contextlib.suppress(OSError):  # who asked was killed
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *words: Any) -> None: ...

        def handle_one_request(self) -> None:
            with contextlib.suppress(OSError):
                super().handle_one_request()
                return
            self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    counting.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield counting
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def vllm(image: str, site: Path, sequences: int) -> Iterator[str]:
    """Yield the address of vLLM in a container, which works on so many sequences at once at most."""
    name = f"rlbox-eval-{os.getpid()}-{sequences}"
    words = (
        "--detach",
        f"--name={name}",
        "--label=rlbox.test=eval",
        "--shm-size=1g",
        "--init",
        "-p",
        "127.0.0.1:0:8000",
    )
    serve = ("-m", "vllm.entrypoints.openai.api_server", "--model", "/out/model", "--served-model-name", "judged")
    # seeded answers: no prompt may be cut in two on the CPU, see jobs/smoke.toml
    limits = ("--max-model-len", "256", "--max-num-seqs", f"{sequences}", "--max-num-batched-tokens", "16384")
    memory = ("--kv-cache-memory-bytes", f"{256 << 20}", "--enforce-eager", "--dtype", "bfloat16")
    entry = ("--entrypoint=/opt/venv/bin/python", f"--volume={site}:/out:ro", image)
    docker("run", *words, *entry, *serve, "--host", "0.0.0.0", *limits, *memory, "--generation-config", "vllm")
    try:
        url = f"http://{docker('port', name, '8000').split()[0]}"
        deadline = time.monotonic() + 900
        while time.monotonic() < deadline:
            running = docker("inspect", "--format={{.State.Running}}", name).strip()
            assert running == "true", docker("logs", "--tail=40", name)
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/v1/models", timeout=5):
                yield url
                return
            time.sleep(1)
        raise AssertionError(f"vLLM was never ready: {docker('logs', '--tail=40', name)}")
    finally:
        docker("rm", "--force", "--volumes", name)


def line(site: Path, url: str, sandbox: str, out: str, at_once: int, *more: str) -> list[str]:
    """Return the command line that judges the model."""
    words = ("eval", "judge", str(site / "model"), "--project", str(site), "--problems", str(site / "problems"))
    asked = ("--url", url, "--sandbox-url", sandbox, "--at-once", f"{at_once}", "--out", str(site / out))
    return [sys.executable, "-m", "rlbox", *words, *asked, "--suite", "sums", "--suite", "drawn", *more]


def judge(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def answers(folder: Path) -> dict[tuple[str, str, int], str]:
    """Return what was answered, by suite, problem and number."""
    rows = [(path.parent.name, json.loads(path.read_text())) for path in folder.rglob("per_problem/*/*.json")]
    return {(suite, row["problem"], row["number"]): row["text"] for suite, row in rows}


def kept(folder: Path) -> set[Ask]:
    """Return what of all questions has an answer that is kept."""
    found = [(path.parent.name, json.loads(path.read_text())) for path in folder.rglob("per_problem/*/*.json")]
    return {(row["ask"], SEED + row["number"] if suite == "drawn" else None) for suite, row in found}


def test_killed_while_vllm_answers(
    eval_image: str, site: Path, sandbox: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No question whose answer was kept is asked again, none is lost, and the result is that of a whole evaluation.

    Every fourth kill may come anywhere in the life of the process, the others while vLLM answers.
    """
    rng, out, whole, amid, anew = random.Random(20), site / "out", 3 * PROBLEMS, 0, 0
    with vllm(eval_image, site, 16) as behind, counted(behind) as counting:
        began = time.monotonic()
        judge(line(site, counting.url, sandbox, "whole", 8))
        life_s, answering_s = time.monotonic() - began, counting.times[-1] - counting.times[0]
        settled: Counter[Ask] = Counter()
        words = line(site, counting.url, sandbox, "out", 8)
        for number in range(KILLS):
            if len(settled) == whole:
                shutil.rmtree(out)
                settled, anew = Counter(), anew + 1
            before, asked = len(settled), len(counting.times)
            process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if number % 4 == 0:
                time.sleep(rng.uniform(0.0, 1.0) * life_s)
            else:
                while len(counting.times) == asked and process.poll() is None:
                    time.sleep(0.01)
                time.sleep(rng.uniform(0.0, 0.5) * answering_s)
            process.send_signal(signal.SIGKILL)
            process.wait()
            there = kept(out)
            assert set(settled) <= there
            assert all(counting.asked[ask] == count for ask, count in settled.items())
            settled = Counter({ask: counting.asked[ask] for ask in there})
            amid += before < len(settled) < whole
        judge(words)
        assert all(counting.asked[ask] == count for ask, count in settled.items())
    one, other = ((site / name / "model/summary.json").read_bytes() for name in ("whole", "out"))
    assert one == other
    told = {suite: row["outcomes"] for suite, row in json.loads(one)["scores"].items()}
    with capsys.disabled():
        print(f"\n{KILLS} kills, {amid} with some answered and not all, {anew} times begun anew; {told}")
    assert amid > 0


def test_the_same_answers_in_other_batches_and_orders(
    eval_image: str, site: Path, sandbox: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every answer is equal; where the engine cannot promise that, the flips are told and decide nothing."""
    backwards = [json.loads(row)["name"] for row in (site / "problems/sums.jsonl").read_text().splitlines()][::-1]
    for name in ("sums", "drawn"):
        (tmp_path / f"{name}.json").write_text(json.dumps(backwards))
    for sequences, at_once, more in ((16, 16, ()), (1, 1, ()), (5, 32, ("--manifests", str(tmp_path)))):
        with vllm(eval_image, site, sequences) as url:
            judge(line(site, url, sandbox, f"seqs{sequences}", at_once, *more))
    first, told = answers(site / "seqs16"), []
    assert len(first) == 3 * PROBLEMS
    result = read_summary(site / "seqs16/model/summary.json")
    for name in ("seqs1", "seqs5"):
        other = answers(site / name)
        assert other.keys() == first.keys()
        flips = [key for key in first if first[key] != other[key]]
        told.append(f"16 sequences at once and {name[4:]}: {len(flips)} of {len(first)} answers differ")
        for suite in {key[0] for key in flips}:
            figures = (
                one.figure(suite, ACCEPTED) for one in (result, read_summary(site / name / "model/summary.json"))
            )
            assert compute_paired_difference(*figures).undecided
    with capsys.disabled():
        print("\n" + "\n".join(told), dict(Counter(row["outcome"] for row in rows(site / "seqs16"))))


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in folder.rglob("per_problem/*/*.json")]
