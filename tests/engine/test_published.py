"""Published ports: the users of the engine's machine reach them at its loopback, and nobody else anywhere."""

from __future__ import annotations

import dataclasses
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from enginebox import Box, containers, docker, wait_until

WEB, PLAIN = 21777, 21778
JOB = f"""
title = "serves, and waits"
target = "tiny"
[ports]
web = {WEB}
plain = {PLAIN}
[[services]]
name = "server"
title = "answers everybody"
command = ["python3", "{{job}}/serve/server.py", "{{port.web}}", "{{port.plain}}"]
ports = ["web", "plain"]
publish = ["web"]
[services.ready]
url = "http://127.0.0.1:{{port.web}}/"
[[stages]]
name = "wait"
title = "waits"
services = ["server"]
command = ["python3", "{{job}}/serve/wait.py"]
limits = {{ total_s = 120, silence_s = 60 }}
"""
SERVER = """
import http.server, os, sys, threading
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(os.uname().nodename.encode())
    do_POST = do_GET
servers = [http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Answer) for port in sys.argv[1:]]
for server in servers[1:]:
    threading.Thread(target=server.serve_forever, daemon=True).start()
servers[0].serve_forever()
"""
WAIT = """
import os, time
print("waits", flush=True)
while not os.path.exists("/data/go"):
    time.sleep(0.05)
"""
ASK = """
import sys, urllib.request
for place in sys.argv[1:]:
    try:
        print(place, urllib.request.urlopen(f"http://{place}/", timeout=3).status)
    except OSError as error:
        print(place, "refused")
"""
TAKEN = f"not published: port web, for 127.0.0.1:{WEB} is taken on the engine's machine"


def serve(box: Box) -> Box:
    box.job("serve", JOB)
    folder = box.project / "jobs/serve"
    folder.mkdir(exist_ok=True)
    (folder / "server.py").write_text(SERVER)
    (folder / "wait.py").write_text(WAIT)
    return box


def waits(box: Box) -> bool:
    return any("waits" in log.read_text() for log in box.data.glob("runs/*/stages/1-wait/stage.log"))


def container(box: Box) -> str:
    (name,) = containers(box.data)
    return name


def answer(port: int) -> str:
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10).read().decode()
    except OSError:
        return "refused"


def end(box: Box, process: subprocess.Popen[str]) -> str:
    (box.data / "go").touch()
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return err


@pytest.fixture
def neighbour() -> Iterator[Callable[..., dict[str, str]]]:
    """Another machine's place: a network namespace that sends all it has through this machine, and asks from there."""
    if os.geteuid() or not all(map(shutil.which, ("ip", "nsenter", "unshare"))):
        pytest.skip("network namespaces need root, iproute2 and util-linux")
    name = f"rlbox{os.getpid()}"
    words = (
        f"netns add {name}",
        f"link add {name}a type veth peer name {name}b netns {name}",
        f"address add 10.231.78.1/30 dev {name}a",
        f"link set {name}a up",
        f"-n {name} address add 10.231.78.2/30 dev {name}b",
        f"-n {name} link set {name}b up",
        f"-n {name} link set lo up",
        f"-n {name} route add default via 10.231.78.1",
    )

    def ask(*places: str) -> dict[str, str]:
        argv = ["ip", "netns", "exec", name, sys.executable, "-c", ASK, *places]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
        return dict(line.split() for line in done.stdout.splitlines())

    try:
        for line in words:
            subprocess.run(["ip", *line.split()], check=True, capture_output=True)
        yield ask
    finally:
        subprocess.run(["ip", "link", "delete", f"{name}a"], capture_output=True)
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)


@contextmanager
def within_reach() -> Iterator[str]:
    """A server of this machine that the neighbour reaches."""
    with http.server.ThreadingHTTPServer(("10.231.78.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"10.231.78.1:{server.server_port}"
        server.shutdown()


def listening(port: int) -> set[str]:
    done = subprocess.run(["ss", "-Hltn"], capture_output=True, text=True, check=True)
    return {line.split()[3] for line in done.stdout.splitlines() if line.split()[3].endswith(f":{port}")}


def test_a_published_port_is_reached_from_the_machine_alone(
    tiny: Box, neighbour: Callable[..., dict[str, str]]
) -> None:
    process = serve(tiny).start("run", "serve")
    wait_until(lambda: process.poll() is not None or waits(tiny), "the service", 60)
    facts = json.loads(docker("inspect", container(tiny)))[0]
    (network,) = facts["NetworkSettings"]["Networks"].values()
    assert facts["HostConfig"]["PortBindings"] == {f"{WEB}/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(WEB)}]}
    assert answer(WEB) == facts["Config"]["Hostname"]
    assert answer(PLAIN) == "refused"
    addresses = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=True).stdout.split()
    hosts = {network["IPAddress"], *(address for address in addresses if ":" not in address)}
    assert "10.231.78.1" in hosts
    places = [f"{host}:{port}" for host in sorted(hosts) for port in (WEB, PLAIN)]
    with within_reach() as control:
        assert neighbour(control) == {control: "200"}
    told = neighbour(*places)
    assert told == dict.fromkeys(places, "refused")
    assert listening(WEB) == {f"127.0.0.1:{WEB}"}
    err = end(tiny, process)
    assert f"port web is published: 127.0.0.1:{WEB}" in err
    assert answer(WEB) == "refused"


def test_two_runs_at_once(tiny: Box, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    boxes = [serve(tiny), dataclasses.replace(tiny, data=tmp_path / "other")]
    processes = [box.start("run", "serve") for box in boxes]
    for box, process in zip(boxes, processes, strict=True):
        wait_until(lambda box=box, process=process: process.poll() is not None or waits(box), "the service", 90)
    names = {docker("inspect", "--format={{.Config.Hostname}}", container(box)).strip() for box in boxes}
    assert answer(WEB) in names
    told = [end(box, process) for box, process in zip(boxes, processes, strict=True)]
    assert sorted(TAKEN in err for err in told) == [False, True]
    assert sorted(len(box.state()["notes"]) for box in boxes) == [0, 1]
