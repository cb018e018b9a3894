"""A stranger on the machine of a run: tries each port that listens in its container, from another namespace."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from enginebox import docker

# Tells each deed that was done. Ray's pages of metrics answer whatever is asked, and do nothing.
_ATTACK = """
import http.client, json, os, sys
host, *ports = sys.argv[1:]
os.environ["RAY_AUTH_MODE"] = "disabled"
deeds = {
    "/api/jobs/": {"entrypoint": "touch /data/planted"},
    "/api/job_agent/jobs/": {"entrypoint": "touch /data/planted"},
    "/collective_rpc": {"method": "sleep", "args": [], "kwargs": {}},
    "/run_code": {"code": "open('/data/planted', 'w')", "language": "python"},
    "/get_or_create_runtime_env": {},
}
done, refused = [], {}
for port in ports:
    for path, body in deeds.items():
        try:
            ask = http.client.HTTPConnection(host, int(port), timeout=5)
            ask.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = ask.getresponse()
            text = answer.read(200)
            if answer.status < 300 and not text.startswith(b"# HELP"):
                done.append(f"POST {port}{path}: {answer.status} {text[:80]!r}")
            refused.setdefault(port, answer.status)
        except (OSError, http.client.HTTPException) as error:
            refused.setdefault(port, type(error).__name__)
            if isinstance(error, (ConnectionRefusedError, TimeoutError)):
                break
from ray._raylet import GcsClient
for port in ports:
    if refused.get(port) in ("ConnectionRefusedError", "TimeoutError", 401):
        continue
    try:
        GcsClient(address=f"{host}:{port}").internal_kv_put(b"planted", b"1", True, b"fun", timeout=5)
        done.append(f"KV write {port}")
    except Exception as error:
        refused[port] = f"{refused.get(port)}, {type(error).__name__}"
print(json.dumps({"done": done, "refused": refused}))
"""


def listening(container: str) -> dict[int, bool]:
    """Return the ports that listen in a container, each with whether others than itself could reach it."""
    pid = docker("inspect", "--format={{.State.Pid}}", container).strip()
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
    words = ["docker", "run", "--rm", f"--network={network}", "--entrypoint=/opt/venv/bin/python", image, "-c", _ATTACK]
    ports = [str(port) for port in listening(container)]
    done = subprocess.run([*words, host, *ports], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.strip().splitlines()[-1])
    return told["done"], told["refused"]
