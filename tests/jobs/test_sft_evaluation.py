"""The evaluation of `sft`: a fake vLLM, a real sandbox, checkpoints as verl leaves them, the rule for the best."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sft import choose, eval_config, evaluate, results, tiny
from sft.checkpoints import find_checkpoints
from sft.judge import Sandbox, code_of, judge, same_output
from sft.problems import ProblemError, load_set, read_problem
from sft.server import ServerError, serve, served_model

from rlbox.logs.bars import ProgressBar, read_bar

CLEVER = "Here it is:\n```python\nimport sys\n{body}\n```\n"


def answering(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join(5)
    server.server_close()


class FakeVllm(BaseHTTPRequestHandler):
    """Solves what it is asked, by the number in the task; the requests are kept."""

    models = ("policy",)
    asked: ClassVar[list[dict[str, Any]]] = []

    def do_GET(self) -> None:
        self._send({"data": [{"id": name} for name in self.models]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).asked.append(body)
        ask = body["messages"][0]["content"]
        number = int(ask.split("plus")[1].split(".")[0]) if "plus" in ask else int(ask.split("adds")[1].split(".")[0])
        solved = f"print(int(input()) + {number})" if "Read x" in ask else f"def add(x):\n    return x + {number}"
        message = {"role": "assistant", "content": CLEVER.format(body=solved)}
        self._send({"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"completion_tokens": 9}})

    def _send(self, content: Any) -> None:
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words: Any) -> None:
        """Say nothing."""


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(FakeVllm, "asked", [])
    yield from answering(FakeVllm)


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    scratch = str(tmp_path_factory.mktemp("scratch"))
    words = (sys.executable, "-m", "rlbox.sandbox", "serve", "--port", "0", "--scratch", scratch)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        *_, last = server.stdout.readline(), server.stdout.readline()
        yield f"http://127.0.0.1:{int(last.rpartition(':')[2])}"
        server.terminate()


def test_a_cheat_is_not_accepted(sandbox: str) -> None:
    """Each of these was, where tests ran behind the answer in one program."""
    head, tests = 'def f(x):\n    """Double."""\n', "def check(c):\n    assert c(2) == 4\n"
    task = {"task_id": "h", "prompt": head, "test": tests, "entry_point": "f"}
    for code in (
        "raise SystemExit(0)",
        "import os\nos._exit(0)",
        "def f(x):\n    import os\n    os._exit(0)",
        "class Y(int):\n    __eq__ = lambda *a: True\ndef f(x):\n    return Y()",
        "def check(c): pass\ndef f(x): return 0",
    ):
        assert not judge(read_problem(task), f"```python\n{code}\n```", Sandbox(sandbox)).accepted
    assert judge(read_problem(task), "```python\ndef f(x):\n    return x * 2\n```", Sandbox(sandbox)).accepted


def checkpoint(folder: Path, step: int) -> Path:
    export = folder / f"global_step_{step}" / "huggingface"
    export.mkdir(parents=True)
    (export / "config.json").write_text("{}")
    (export / "tokenizer.json").write_text("{}")
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (export / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0\0\0\0")
    return export


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a space in its name, as the seed's, with problem sets and four checkpoints."""
    folder = tmp_path / "phase_1_ SFT"
    tiny.write_problems(folder / "raw", each=1)
    for step in (100, 200, 300, 378):
        checkpoint(folder / "checkpoints", step)
    return folder


def run(project: Path, vllm: str, sandbox: str, monkeypatch: pytest.MonkeyPatch, *more: str) -> int | str | None:
    words = [
        "--checkpoints",
        str(project / "checkpoints"),
        "--out",
        str(project / "out"),
        "--raw",
        str(project / "raw"),
    ]
    words += ["--manifests", str(project / "manifests"), "--sandbox-url", sandbox, "--vllm-url", vllm]
    words += ["--any-size", "true", "--concurrency", "4", *more]
    monkeypatch.setattr(sys, "argv", ["evaluate", *words])
    try:
        evaluate.main()
    except SystemExit as ended:
        return ended.code
    return 0


def test_every_checkpoint_is_judged_with_the_seeds_parameters(
    project: Path, vllm: str, sandbox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(project, vllm, sandbox, monkeypatch) == 0
    history = results.read_history(project / "out")
    assert [(row["step"], row["tier"]) for row in history] == [(100, 1), (200, 1), (300, 1), (378, 3)]
    assert all(score["accepted_at_1"] == 1.0 for row in history for score in row["scores"].values())
    assert {(a["temperature"], a["top_p"], a["max_tokens"]) for a in FakeVllm.asked} == {(0.0, 1.0, 2048)}
    step = project / "out/step_378"
    assert {"metrics.json", "summary.json", "eval_info.json", "run_info.json", "qa_logs", "per_problem"} <= {
        path.name for path in step.iterdir()
    }
    assert json.loads((step / "metrics.json").read_text())["humaneval/accepted_at_1"] == 1.0
    assert json.loads((step / "eval_info.json").read_text())["parameters"]["run_timeout"] == 30


def test_what_is_done_is_not_asked_again_and_one_bad_checkpoint_stops_nothing(
    project: Path, vllm: str, sandbox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "checkpoints/global_step_200/huggingface/config.json").unlink()
    code = run(project, vllm, sandbox, monkeypatch, "--final-tier", "1")
    assert "step 200: incomplete checkpoint" in str(code)
    assert [row["step"] for row in results.read_history(project / "out")] == [100, 300, 378]
    before = len(FakeVllm.asked)
    results.problem_file(project / "out/step_300", "mbpp_reg", "0").unlink()
    run(project, vllm, sandbox, monkeypatch, "--final-tier", "1")
    assert len(FakeVllm.asked) == before + 1


def test_it_is_told_how_far_a_set_is(capsys: pytest.CaptureFixture[str]) -> None:
    """In a line that the live view makes a bar of; not more often than every ten seconds."""
    seconds = iter([0.0, 5.0, 10.0, 12.0, 20.0])
    rows = [{"id": str(number)} for number in range(4)]
    assert list(evaluate.counted(iter(rows), "Evaluating step 40 humaneval", 4, lambda: next(seconds))) == rows
    told = capsys.readouterr().out
    assert told == "Evaluating step 40 humaneval: 50%| | 2/4 [0:00:10<0:00:10]\n"
    assert read_bar(told) == ProgressBar(label="Evaluating step 40 humaneval", done=2, total=4, left_s=10)


def test_one_checkpoint_alone(project: Path, vllm: str, sandbox: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(project, vllm, sandbox, monkeypatch, "--only", "200") == 0
    assert [(row["step"], row["tier"]) for row in results.read_history(project / "out")] == [(200, 1)]
    assert "no global_step_250" in str(run(project, vllm, sandbox, monkeypatch, "--only", "250"))


def test_a_dead_sandbox_is_said_before_anything_is_asked(
    project: Path, vllm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "runs nothing" in str(run(project, vllm, "http://127.0.0.1:9", monkeypatch))
    assert FakeVllm.asked == []


def test_two_served_models_are_refused(vllm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert served_model(vllm) == "policy"
    monkeypatch.setattr(FakeVllm, "models", ("one", "two"))
    with pytest.raises(ServerError, match="serves 2 models"):
        served_model(vllm)


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("print(int(input()) + 1)", "accepted"),
        ("print(2)", "wrong"),
        ("print(int(input()) + 1); raise SystemExit(3)", "failed"),
        ("x = bytearray(1536 << 20)", "failed"),  # 1 GB is the limit
        ("import os\nif os.fork() == 0:\n    import time; time.sleep(60)\nprint(int(input()) + 1)", "accepted"),
        ("", "no-code"),
    ],
)
def test_verdicts(sandbox: str, code: str, outcome: str) -> None:
    task = {"name": "a", "description": "", "public_tests": {"input": ["1\n", "2\n"], "output": ["2\n", "3"]}}
    answer = f"```python\n{code}\n```" if code else "I do not know."
    assert judge(read_problem(task), answer, Sandbox(sandbox)).outcome == outcome


def test_a_program_that_never_ends_is_ended(sandbox: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert eval_config.RUN_TIMEOUT_S == 30
    monkeypatch.setattr(eval_config, "RUN_TIMEOUT_S", 0.5)
    task = read_problem({"name": "a", "description": "", "public_tests": {"input": [""], "output": [""]}})
    assert judge(task, "```python\nwhile True: pass\n```", Sandbox(sandbox)).outcome == "timeout"


def test_code_and_outputs() -> None:
    assert code_of("a\n```python\nx = 1\n```\nb\n```\ny = 1\nz = 2\n```") == "y = 1\nz = 2"
    assert code_of("```python\nx = 1") == "x = 1"  # cut
    assert code_of("def f():\n    pass")
    assert not code_of("no idea")
    assert same_output("1 2 \n\n3\n", "1 2\n3")
    assert not same_output("12", "1 2")


def test_sets_have_the_seeds_sizes(tmp_path: Path) -> None:
    totals = [sum(eval_config.SETS[name][1] for name in eval_config.TIERS[tier]) for tier in (1, 2, 3)]
    assert totals == [317, 817, 1146]
    tiny.write_problems(tmp_path, each=2)
    with pytest.raises(ProblemError, match="2 problems, mbpp_reg has 200"):
        load_set("mbpp_reg", tmp_path, tmp_path)
    (tmp_path / "mbpp_reg.json").write_text("[1]")
    assert [problem.id for problem in load_set("mbpp_reg", tmp_path, tmp_path, any_size=True)] == ["1"]


def test_checkpoints_are_found_by_number(tmp_path: Path) -> None:
    for step in (1000, 200, 30):
        checkpoint(tmp_path, step)
    export = checkpoint(tmp_path, 400)
    (export / "model.safetensors").write_bytes((export / "model.safetensors").read_bytes()[:-1])
    found = find_checkpoints(tmp_path)
    assert [item.step for item in found] == [30, 200, 400, 1000]
    assert [item.step for item in found if item.missing] == [400]


def row(step: int, success: float, accepted: float, humaneval: float | None = None) -> dict[str, Any]:
    scores = {"codecontests_valid": {"exec_success_rate": success, "accepted_at_1": accepted}}
    if humaneval is not None:
        scores["humaneval"] = {"accepted_at_1": humaneval}
    return {"step": step, "tier": 1, "config": eval_config.digest(), "scores": scores}


def test_the_best_checkpoint() -> None:
    clear = [row(100, 0.5, 0.3), row(200, 0.8, 0.1), row(300, 0.6, 0.2)]
    assert choose.best_of(clear, 0.01)["step"] == 200
    tie = [row(100, 0.80, 0.1), row(200, 0.795, 0.2), row(300, 0.795, 0.2)]
    assert choose.best_of(tie, 0.01)["step"] == 200
    with pytest.raises(ValueError, match="no checkpoint was judged"):
        choose.best_of([], 0.01)


def test_the_comparison_with_the_baseline() -> None:
    verdicts = dict(line[::-1] for line in choose.compare(row(1, 1, 0.15, 0.30), row(0, 1, 0.10, 0.40)))
    assert verdicts == {
        "codecontests_valid accepted@1: 10.00% -> 15.00% (+5.0 pp, +10 pp wanted)": "below",
        "humaneval accepted@1: 40.00% -> 30.00% (-10.0 pp, no regression wanted)": "below",
        "mbpp_reg accepted@1: this checkpoint was not judged on it": "unknown",
    }


def test_the_table_says_what_was_not_measured() -> None:
    assert results.table([row(100, 0.5, 0.25)]).splitlines()[-1].split() == [
        *("100", "|", "50.00%", "|", "25.00%", "|", "N/A", "|", "N/A")
    ]


STUB = """
import json, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(json.dumps({"data": [{"id": "m"}]}).encode())
print(child.pid, flush=True)
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class StubEngine:
    """What `serve` needs of an engine."""

    max_model_len, start_s = 6144, 20.0

    def __init__(self, port: int) -> None:
        self.port = port

    def argv(self, export: Path) -> tuple[str, ...]:
        return (sys.executable, "-c", STUB, str(self.port))


def free_port() -> int:
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.server_close()
    return server.server_port


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_the_server_and_its_children_end_with_the_block(tmp_path: Path) -> None:
    with serve(StubEngine(free_port()), tmp_path, tmp_path / "log") as url:  # type: ignore[arg-type]
        assert served_model(url) == "m"
    assert gone(int((tmp_path / "log").read_text().splitlines()[0]))


def test_the_server_ends_when_the_evaluation_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path[:0] = sys.argv[1:3]\n"
        "from test_sft_evaluation import StubEngine, free_port\nfrom sft.server import serve\n"
        "from pathlib import Path\nimport time\n"
        "with serve(StubEngine(free_port()), Path(), Path(sys.argv[3])) as url:\n"
        "    print(url, flush=True)\n    time.sleep(60)\n"
    )
    here = Path(__file__).parent
    argv = (sys.executable, "-c", code, str(here), str(here.parents[1] / "jobs"), str(tmp_path / "log"))
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert served_model(url) == "m"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    child = int((tmp_path / "log").read_text().splitlines()[0])
    for _ in range(100):
        try:
            served_model(url)
        except ServerError:
            break
        time.sleep(0.1)
    else:
        raise AssertionError("the server outlived the evaluation")
    os.kill(child, signal.SIGKILL)  # the stub does not take its children along; vLLM's engine ends with its server
    process.stdout.close()
