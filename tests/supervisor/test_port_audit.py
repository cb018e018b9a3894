"""What a stage listens on beside what its job declares ends it, whichever process of the run it is."""

from __future__ import annotations

import re

import pytest
from supervised import SERVER, Bench, free_port, line_rule, python, service

LISTEN = """
import os, socket, sys, time
where, port, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if how == "orphan" and os.fork():
    time.sleep(5)
    os._exit(0)
if how == "orphan":
    os.setsid()
server = socket.create_server((where, port), family=socket.AF_INET6 if ":" in where else socket.AF_INET)
print("listens", server.getsockname()[1], flush=True)
time.sleep(5 if how == "own" else 60)
"""
OPEN = SERVER.replace('"127.0.0.1"', '"0.0.0.0"')


@pytest.mark.parametrize("how", ["own", "orphan"])
@pytest.mark.parametrize("where", ["0.0.0.0", "::"])
def test_a_planted_listener_ends_the_stage(bench: Bench, where: str, how: str) -> None:
    port = free_port()
    bench.stage("one", python(LISTEN, where, str(port), how))
    code = bench.run()
    assert code == 1
    cause = bench.cause()
    assert cause.kind == "listens"
    address = re.escape(f"[{where}]:{port}" if ":" in where else f"{where}:{port}")
    assert re.fullmatch(
        rf"\S+ \(pid \d+\) of stage one listens on {address}, which the job does not declare", cause.what
    ), cause.what
    assert cause.next_step == (
        f'have it listen on 127.0.0.1; if others are to reach it: listens = ["{port}"] of stage one in the job'
    )
    rule = next(rule for rule in bench.state().stages[0].gate if rule.kind == "listens")
    assert rule.state == "broken"
    assert "listens on" in rule.seen


@pytest.mark.parametrize("declared", ["{port}", "1024-65535", "ephemeral"])
def test_a_declared_listener_is_left_alone(bench: Bench, declared: str) -> None:
    port = 0 if declared == "ephemeral" else free_port()
    words = declared.replace("{port}", str(port))
    bench.stage("one", python(LISTEN, "0.0.0.0", str(port), "own"), listens=(words,), require=(line_rule("listens"),))
    assert bench.run() == 0
    assert [rule.state for rule in bench.state().stages[0].gate if rule.kind == "listens"] == ["held"]


def test_a_service_is_for_this_machine_alone_unless_it_says_so(bench: Bench) -> None:
    port = free_port()
    server = service("reward", port, python(OPEN, str(port)))
    bench.stage("one", python("import time; time.sleep(5)"), services=(server,))
    assert bench.run() == 1
    cause = bench.cause()
    assert f"of service reward listens on 0.0.0.0:{port}" in cause.what
