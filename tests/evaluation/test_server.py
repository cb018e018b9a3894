"""The inference server of an export: started, asked, and gone with the block, however that ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from freeport import free_port
from playbox import Player, playing

from rlbox.evaluation.model_server import (
    InferenceEngineOptions,
    ModelServerError,
    MultiServerModelClient,
    ServerCommand,
    build_vllm_argv,
    choose_gpus_and_build_serve_function,
    parse_setting_name_and_str_or_bool,
    serve_model,
)
from rlbox.evaluation.suites import Suite
from rlbox.system.http import create_loopback_client

STUB = """
import json, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        rows = [{"id": name} for name in sys.argv[2:]]
        body = json.dumps({"data": rows} if self.path == "/v1/models" else {"version": "1"}).encode()
        self.send_response(200); self.end_headers(); self.wfile.write(body)
    def log_message(self, *words): pass
print(child.pid, flush=True)
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def engine(*models: str, timeout_s: float = 60.0, code: str = STUB) -> ServerCommand:
    port = free_port()
    argv = (sys.executable, "-c", code, str(port), *models)
    return ServerCommand(argv=argv, url=f"http://127.0.0.1:{port}", start_timeout_s=timeout_s)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_the_server_and_its_children_end_with_the_block(tmp_path: Path) -> None:
    with contextlib.suppress(KeyError), serve_model([engine("m")], tmp_path, create_loopback_client(10)) as model:
        assert model.model.engine_facts["version"] == "1"
        child = int((tmp_path / "server.log").read_text().splitlines()[0])
        assert not gone(child)
        raise KeyError
    assert gone(child)


def test_the_server_ends_when_the_evaluation_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; sys.path[:0] = sys.argv[1:3]\n"
        "from pathlib import Path\n"
        "from test_server import engine, serve_model, create_loopback_client\n"
        "with serve_model([engine('m')], Path(sys.argv[3]), create_loopback_client(10)) as model:\n"
        "    print(model.urls[0], flush=True)\n    time.sleep(60)\n"
    )
    argv = (sys.executable, "-c", code, *(str(folder) for folder in Path(__file__).parents[:2]), str(tmp_path))
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert MultiServerModelClient([url], create_loopback_client(10)).model.name == "m"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    child = int((tmp_path / "server.log").read_text().splitlines()[0])
    try:
        for _ in range(300):
            try:
                MultiServerModelClient([url], create_loopback_client(1))
            except ModelServerError:
                break
            time.sleep(0.1)
        else:
            raise AssertionError("the server outlived the evaluation")
    finally:
        os.kill(child, signal.SIGKILL)  # the stub does not take its child along; vLLM's engine ends with its server
        process.stdout.close()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (engine(code="raise SystemExit(3)"), r"ended with status 3; read .*log"),
        (engine(code="import time; time.sleep(60)", timeout_s=0.1), r"was not ready after 0.1 s; read .*log"),
        (engine("one", "two", timeout_s=5.0), "was not ready"),  # which of both models would answer?
    ],
)
def test_a_server_that_serves_nothing_is_reported(tmp_path: Path, command: ServerCommand, message: str) -> None:
    http = create_loopback_client(10)
    with pytest.raises(ModelServerError, match=message), serve_model([command], tmp_path, http):
        pass


def test_the_command_of_vllm() -> None:
    settings = dict(
        map(
            parse_setting_name_and_str_or_bool,
            ("tensor_parallel_size=2", "enforce_eager=true", "trust_remote_code=false"),
        )
    )
    assert " ".join(build_vllm_argv("/opt/python", Path("/e"), 1, settings)) == (
        "/opt/python -m vllm.entrypoints.openai.api_server --model /e --served-model-name judged --host 127.0.0.1 "
        "--port 1 --generation-config vllm --enforce-eager --tensor-parallel-size 2"
    )


def test_several_servers_share_the_questions(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        players = [stack.enter_context(playing(Player(lambda ask, number: "same"))) for _ in range(3)]
        model = MultiServerModelClient([player.url for player in players], create_loopback_client(10))
        with ThreadPoolExecutor(6) as askers:
            decoding = Suite(name="x", title="x").decoding
            answers = list(
                askers.map(lambda number: model.generate(model.tokenize_if_supported("a"), decoding, number), range(60))
            )
    assert {answer.text for answer in answers} == {"same"}
    assert all(sum(player.asked.values()) >= 10 for player in players)


def test_several_servers_of_different_versions_are_refused(tmp_path: Path) -> None:
    first, second = Player(lambda ask, number: ""), Player(lambda ask, number: "")
    second.version = "0.0.2"
    with playing(first), playing(second), pytest.raises(ModelServerError, match="is another engine than"):
        MultiServerModelClient([first.url, second.url], create_loopback_client(10))


def test_one_of_several_servers_that_does_not_start_ends_all(tmp_path: Path) -> None:
    commands, http = [engine("m"), engine(code="raise SystemExit(3)")], create_loopback_client(10)
    with pytest.raises(ModelServerError, match="ended with status 3"), serve_model(commands, tmp_path, http):
        pass
    assert gone(int((tmp_path / "server.log").read_text().splitlines()[0]))


def test_a_server_that_is_up_is_left_up(tmp_path: Path) -> None:
    http = create_loopback_client(10)
    with serve_model([engine("m")], tmp_path, http) as model:
        with choose_gpus_and_build_serve_function(InferenceEngineOptions(url=model.urls[0]), http, print)(
            Path("/e"), tmp_path
        ) as other:
            assert other.urls == model.urls
        assert MultiServerModelClient(model.urls, http).model.name == "m"


def test_a_connection_that_is_cut_once_is_asked_again() -> None:
    with playing(Player(lambda ask, number: "")) as player:
        model = MultiServerModelClient([player.url], create_loopback_client(10))
        player.cuts = 1
        assert model.tokenize_if_supported("a").token_ids_or_empty == (97,)
        player.cuts = 2
        with pytest.raises(ModelServerError, match="/tokenize: "):
            model.tokenize_if_supported("b")
        assert player.cuts == 0
