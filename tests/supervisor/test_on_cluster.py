"""A run on a cluster: its nodes are real sockets of this machine, its jobs API is that of `test_ray_stage`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from supervised import Bench, free_port, line_rule, python, wait_for
from test_ray_stage import HEAD

from rlbox.job.plan import RayJobPlan, RayNodeAddress, RunCluster

NODE = "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(600)"
NEXT = "rlbox cluster up pair brings back what died, rlbox run --resume {} --place cluster --target pair goes on"


@contextmanager
def nodes(bench: Bench, *names: str) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Put the run on a cluster whose nodes take connections while the block runs."""
    ports = {name: free_port() for name in names}
    found = {name: subprocess.Popen([sys.executable, "-c", NODE, str(port)]) for name, port in ports.items()}
    for port in ports.values():
        wait_for(lambda port=port: takes(port))
    members = tuple(RayNodeAddress(name=name, address="127.0.0.1", port=port) for name, port in ports.items())
    options = "--place cluster --target pair"
    bench.cluster = RunCluster(name="pair", closed="token", nodes=members, words="pair", options=options)
    try:
        yield found
    finally:
        for one in found.values():
            one.kill()
            one.wait()


def takes(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def test_a_node_that_ends_stops_the_run(bench: Bench) -> None:
    bench.stage("train", python("import time; print('step 1', flush=True); time.sleep(600)"))
    with nodes(bench, "a", "b") as running:
        bench.start()
        wait_for(lambda: (bench.run_dir / "stages/1-train/stage.log").exists() and bench.log("1-train/stage.log"))
        running["b"].kill()
        assert bench.finish()[0] == 5
    cause, port = bench.cause(), bench.cluster.nodes[1].port if bench.cluster else 0
    assert cause.kind == "node"
    seen = f"its Ray has ended, nothing takes connections at 127.0.0.1:{port} any more"
    assert cause.what == f"node b of cluster pair is gone: {seen}"
    assert cause.next_step == NEXT.format(bench.run_id)


def test_what_fails_of_a_node_that_is_gone_did_not_fail_first(bench: Bench) -> None:
    with nodes(bench, "a", "b") as running:
        pid = running["b"].pid
        bench.stage("train", python(f"import os; os.kill({pid}, {signal.SIGKILL.value}); raise SystemExit(1)"))
        assert bench.run() == 5
    assert bench.cause().what.startswith("node b of cluster pair is gone: its Ray has ended")
    assert bench.cause().what.endswith("; then stage train ended with exit code 1")


def test_what_fails_by_itself_is_told_as_ever(bench: Bench) -> None:
    bench.stage("train", python("raise SystemExit(1)"))
    with nodes(bench, "a", "b"):
        assert bench.run() == 1
    assert bench.cause().what == "stage train ended with exit code 1"


def test_a_job_gets_its_secrets_and_they_are_left_nowhere(bench: Bench, tmp_path: Path) -> None:
    """The head runs already, so that its environment holds no secret; it says its session by a path of its own."""
    port, folder = free_port(), tmp_path / "ray"
    (folder / "session_1/logs").mkdir(parents=True)
    os.symlink("/tmp/ray/session_1", folder / "session_latest")
    code = HEAD.replace('"exec " + ', "").replace('"session_latest"', '"session_1"')
    head = subprocess.Popen([*python(code, str(port), str(folder), "")])
    wait_for(lambda: takes(port))
    secret = "qX7vR2pL9sKd4TzW"
    bench.secrets = {"API_KEY": secret}
    show = "import os; print('has', len(os.environ['API_KEY']), os.environ['API_KEY'])"
    ray = RayJobPlan(dashboard=f"http://127.0.0.1:{port}", service="", temp_dir=str(folder), submission_id="run-train")
    bench.stage("train", python(show), ray=ray, require=(line_rule("^has 16"),), secrets=("API_KEY",))
    try:
        with nodes(bench, "a"):
            assert bench.run() == 0
    finally:
        head.kill()
        head.wait()
    assert bench.log("1-train/stage.log") == "has 16 ***\n"
    held = [path for path in bench.run_dir.rglob("*") if path.is_file() and secret in path.read_text(errors="replace")]
    assert held == []
