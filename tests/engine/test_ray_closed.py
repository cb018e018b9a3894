"""The head of `smoke` in the shipped image, while a stranger on its machine tries every port that listens."""

from __future__ import annotations

import re

import pytest
from attackbox import attack, listening
from enginebox import CHECKOUT, Box, unsized, wait_until
from fakes import load_cases
from projectbox import own

CASES = load_cases("engine", "test_ray_closed")

# What answers everybody who reaches it, as vLLM's development server, a reward server and a sandbox do.
STAND_IN = """
import http.server
class Answer(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")
    do_GET = do_POST
http.server.ThreadingHTTPServer(("127.0.0.1", 21432), Answer).serve_forever()
"""
WAIT = """
import os, ray, time
ray.init("auto")
print("sum", ray.get(ray.remote(lambda: 42).remote()), flush=True)
while not os.path.exists("/data/go"):
    time.sleep(0.1)
"""
STAGE = CASES["STAGE"]
LOOPBACK, TOKEN = ("21432",), ("21434", "21438", "21440")  # the dashboard is published


def head_job() -> str:
    """The job `smoke` with its head alone, and a stage that waits."""
    text = unsized((CHECKOUT / "jobs/smoke.toml").read_text())
    parts = {name: text.index(f'[[services]]\nname = "{name}"') for name in ("reward", "ray")}
    return text[: parts["reward"]] + re.split(r"\n\[\[stages\]\]", text[parts["ray"] :])[0] + STAGE


@pytest.mark.slow
def test_no_stranger_gives_commands(local: Box) -> None:
    local.job("head", head_job())
    folder = local.project / "jobs/head"
    folder.mkdir()
    (folder / "stand_in.py").write_text(STAND_IN)
    (folder / "wait.py").write_text(WAIT)
    process = local.start("run", "head")
    log = lambda: next(iter((local.data / "runs").glob("*/stages/1-wait/stage.log")), None)  # noqa: E731
    wait_until(lambda: process.poll() is not None or (log() and "sum 42" in log().read_text()), "Ray's work", 300)
    name = f"rlbox-{local.runs()[-1].name}"
    wait_until(lambda: process.poll() is not None or 21438 in listening(name), "Ray's agent", 60)
    ports = listening(name)
    done, refused = attack(name, own("local"))
    (local.data / "go").touch()
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert done == [], refused
    assert {refused[port] for port in LOOPBACK} == {"ConnectionRefusedError"}
    assert {refused[port] for port in TOKEN} == {401}
    assert refused["21433"].endswith("AuthenticationError"), refused
    assert not any(ports[int(port)] for port in LOOPBACK)
    assert not (local.data / "planted").exists()
