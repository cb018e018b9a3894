"""Run hostile programs against a server of their own, and say what fell: `campaign.py [--sample N] [SERVER OPTION...]`.

Beside the server lives what a program may want: a secret in its environment, a data disk with a checkpoint, a
bystander, listeners. What counts is what is seen from here: no cheat accepted, no deed done, nothing changed, no
connection, nobody signalled, nothing alive, and a server that goes on. Standard library only: it runs in bare
containers, too. Prints JSON; exit status 1 when something fell.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hostile import LEFT, Attack, attacks

GOOD = "def f(x):\n    return x * 2"
GOOD_TESTS = "def check(candidate):\n    assert candidate(21) == 42\ncheck(f)"
SEEN = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/", "/usr", os.path.dirname(os.__file__))


class Server:
    """A sandbox with a secret in its environment; `files`: how many it may have open, 0: as many as we."""

    def __init__(self, scratch: Path, options: list[str], files: int = 0) -> None:
        words = ["prlimit", f"--nofile={files}:{files}"] if files else []
        words += [sys.executable, "-m", "rlbox.sandbox", "serve", "--port", "0", "--scratch", str(scratch), *options]
        environment = {**os.environ, "HF_TOKEN": "hunter2"}
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment, cwd="/")
        assert self.process.stdout
        self.strength = json.loads(self.process.stdout.readline())
        told = self.process.stdout.readline()
        self.port = int(told.rpartition(":")[2])

    def ask(self, path: str, body: dict[str, Any], wait_s: float = 600) -> dict[str, Any]:
        """Return the answer to a request; one that is refused is an answer with `detail`."""
        words = json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", words)
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(request, timeout=wait_s) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return {"status": "Refused", **json.load(error)}

    def stop(self) -> None:
        """End it as a supervisor does."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


class Arena:
    """What lives beside the sandbox, and how it was before."""

    def __init__(self, folder: Path) -> None:
        self.data, self.scratch = folder / "data", folder / "scratch"
        self.canary = self.data / "checkpoint"
        for path in (self.data, self.scratch):
            path.mkdir()
        self.canary.write_text("canary: weights")
        self.bystander = subprocess.Popen(["sleep", "100000"], start_new_session=True)
        self.heard: list[str] = []
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(self.tcp.getsockname())
        self.unix, self.abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        self.unix.bind(str(folder / "unix"))
        self.abstract.bind(f"\0{folder.name}")
        self.datagrams = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
        for listener, address in zip(self.datagrams, (str(folder / "unix"), f"\0{folder.name}"), strict=True):
            listener.bind(f"{address}.datagrams")
        for listener in (self.tcp, self.unix, self.abstract, self.udp, *self.datagrams):
            if listener.type == socket.SOCK_STREAM:
                listener.listen()
            threading.Thread(target=self._hear, args=(listener,), daemon=True).start()
        self.words = {"DATA": str(self.data), "CANARY": str(self.canary), "BYSTANDER": str(self.bystander.pid)}
        self.words |= {"TCP": str(self.tcp.getsockname()[1]), "UNIX": str(folder / "unix"), "LEFT": LEFT}
        self.words |= {
            "ABSTRACT": folder.name,
            "NAP": f"{os.getpid()}{random.randrange(1000, 10000)}",
            "SCRATCH": str(self.scratch),
        }
        self.before = self.state()

    def _hear(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.heard.append(str(listener.accept() if listener.type == socket.SOCK_STREAM else listener.recv(100)))

    def state(self) -> dict[str, Any]:
        """Return what must stay as it is."""
        facts = {str(path): os.stat(path) for path in (self.canary, self.data, Path(os.__file__))}
        found: dict[str, Any] = {
            name: (one.st_ino, one.st_mode, one.st_uid, one.st_size, one.st_mtime_ns, one.st_ctime_ns, one.st_nlink)
            for name, one in facts.items()
        }
        found["canary"] = self.canary.read_text()
        found["bystander"] = self.bystander.poll() is None and goes_on(self.bystander.pid)
        found["left"] = [f"{top}/{name}" for top in SEEN for name in listing(top) if LEFT in name]
        for kind in ("shm", "sem", "msg"):
            with contextlib.suppress(OSError):
                found[kind] = Path(f"/proc/sysvipc/{kind}").read_text().count("\n")
        return found

    def close(self) -> None:
        """Take it away."""
        for listener in (self.tcp, self.udp, self.unix, self.abstract, *self.datagrams):
            listener.close()
        self.bystander.kill()
        self.bystander.wait()


def listing(folder: str) -> list[str]:
    """Return the names in a folder, none when there is none."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def goes_on(pid: int) -> bool:
    """Return whether a process is neither stopped nor gone."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "TtZX"


def living(scratch: Path, nap: str) -> Iterator[str]:
    """Yield processes that programs of this sandbox left: by working folder, environment or the arena's own words."""
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            told = Path(f"/proc/{name}/environ").read_bytes() + b"\0" + os.fsencode(os.readlink(f"/proc/{name}/cwd"))
            command = Path(f"/proc/{name}/cmdline").read_bytes()
            if b"serve" not in command and (str(scratch).encode() in told or nap.encode() in command):
                yield f"{name} {command!r}"


def escaped(attack: Attack, answer: dict[str, Any]) -> str:
    """Return how an attack fell, or nothing."""
    if attack.path == "/check":
        return "accepted" if answer.get("verdict") == "accepted" or answer["status"] == "Success" else ""
    result = answer.get("run_result") or {}
    if "ESCAPED" in (result.get("stdout") or "") or answer.get("files"):
        return "escaped"
    return "something outlived it" if answer.get("rlbox", {}).get("alive") else ""


def filled(value: Any, words: dict[str, str]) -> Any:
    """Return a request with the words of the arena in it."""
    for name, word in words.items() if isinstance(value, str) else ():
        value = value.replace(f"{{{name}}}", word)
    if isinstance(value, list):
        return [filled(one, words) for one in value]
    if isinstance(value, dict):
        return {filled(key, words): filled(one, words) for key, one in value.items()}
    return value


def run(chosen: list[Attack], options: list[str], at_once: int) -> dict[str, Any]:
    """Run the attacks; return what fell, with figures."""
    folder = Path(tempfile.mkdtemp(prefix="attack-", dir=os.environ.get("RLBOX_ATTACK_FOLDER")))
    arena = Arena(folder)
    server = Server(arena.scratch, options)
    words = {**arena.words, "PORT": str(server.port), "SERVER": str(server.process.pid)}
    fell, began = [], time.monotonic()

    def one(attack: Attack) -> tuple[Attack, dict[str, Any], float]:
        began = time.monotonic()
        body = filled({"code": attack.code, **attack.more}, words)
        try:
            answer = server.ask(attack.path, body)
        except OSError as error:
            answer = {"status": f"no answer: {error}"}
        return attack, answer, time.monotonic() - began

    with ThreadPoolExecutor(at_once) as pool:
        done = list(pool.map(one, chosen))
    for attack, answer, _ in done:
        if how := escaped(attack, answer) or (answer["status"] if answer["status"].startswith("no answer") else ""):
            fell.append({"attack": attack.name, "how": how, "answer": answer})
    good = server.ask("/run_code", {"code": "print(1 + 1)"})
    checked = server.ask("/check", {"code": GOOD, "tests": GOOD_TESTS})
    if (good["status"], checked.get("verdict")) != ("Success", "accepted"):
        fell.append({"attack": "all", "how": "the server does not go on", "answer": [good, checked]})
    after = arena.state()
    fell += [
        {"attack": "all", "how": f"{key}: {arena.before[key]} -> {after[key]}"}
        for key in after
        if after[key] != arena.before[key]
    ]
    fell += [{"attack": "all", "how": f"connected: {who}"} for who in arena.heard]
    fell += [{"attack": "all", "how": f"alive: {who}"} for who in living(arena.scratch, arena.words["NAP"])]
    left = [str(path) for path in arena.scratch.glob("*/*")]
    fell += [{"attack": "all", "how": f"left in the scratch folder: {left}"}] if left else []
    server.stop()
    fell += [{"attack": "all", "how": "the server left its folder"}] if list(arena.scratch.iterdir()) else []
    arena.close()
    shutil.rmtree(folder)
    slowest = max(done, key=lambda row: row[2])
    verdicts = {
        attack.name: str(answer.get("verdict") or (answer.get("rlbox") or {}).get("limit") or answer["status"])
        for attack, answer, _ in done
    }
    broken = [
        {"attack": attack.name, "says": answer["message"]}
        for attack, answer, _ in done
        if answer["status"] == "SandboxError"
    ]
    return {
        "strength": server.strength["strength"],
        "uid": os.getuid(),
        "attacks": len(done),
        "fell": fell,
        "outcomes": dict(Counter(verdicts.values())),
        "verdicts": verdicts,
        "broken": broken,
        "took_s": round(time.monotonic() - began, 1),
        "slowest": [slowest[0].name, round(slowest[2], 1)],
    }


def main() -> int:
    """Run all, or a sample that is the same for one seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--only", default="")
    parser.add_argument("--verdicts", action="store_true", help="also print the verdict on every program")
    args, options = parser.parse_known_args()
    chosen = [attack for attack in attacks() if args.only in attack.name]
    if args.sample:
        chosen = random.Random(args.seed).sample([attack for attack in chosen if not attack.slow], args.sample)
    found = run(chosen, options, args.at_once)
    if not args.verdicts:
        del found["verdicts"]
    print(json.dumps(found, indent=1))
    return 1 if found["fell"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
