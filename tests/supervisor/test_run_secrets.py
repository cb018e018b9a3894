"""Secrets of a run: they reach its processes, and are in nothing that is left behind or can be looked at."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest
from supervised import SERVER, Bench, Supervisor, free_port, line_rule, python, service, wait_for
from test_ray_stage import HEAD

from rlbox.job.gate import Ready
from rlbox.job.plan import RayJobPlan
from rlbox.provision.provision import StageEnvironment
from rlbox.record.disk_lock import LockOwner, acquire_disk_lock
from rlbox.record.run_dir import load_plan_file
from rlbox.record.run_store import RunStore
from rlbox.run.backend import open_container_runtime
from rlbox.run.host import HostRunStarter
from rlbox.secrets.handover import encode_secrets_as_json_line
from rlbox.system.run_processes import RunProcesses, StopSignal
from rlbox.values import Secret

TOKEN = "wk+9/pl4nted=Q7zR'x"
PASSWORD = "pl4nted pass/w\u00f6rd-31"
UNDECLARED = "pl4nted-undeclared-55"

# What a careless program does with a secret: its environment, pieces, encodings, a traceback.
CARELESS = f"""
import base64, json, os, sys, time, urllib.parse
token, password = os.environ["WANDB_API_KEY"], os.environ["DB_PASSWORD"]
assert os.environ["WANDB_KEY"] == token
print("begin", flush=True)
for name, value in os.environ.items():
    print(f"{{name}}={{value}}")
sys.stdout.flush()
for character in "in pieces: " + token + "\\n":
    os.write(1, character.encode())
    time.sleep(0.002)
os.write(2, ("half " + token[:7]).encode()); time.sleep(0.1); os.write(2, (token[7:] + "\\n").encode())
print(json.dumps({{"token": token, "password": password}}), ascii(password), repr(token))
print("https://host/?key=" + urllib.parse.quote(token), urllib.parse.quote_plus(password))
print("basic", base64.b64encode(f"user:{{password}}".encode()).decode(), base64.b64encode(token.encode()).decode())
print(token.encode().hex(":"), password.encode().hex().upper(), list(token.encode()))
folded = base64.b64encode(b"user:" + token.encode()).decode()
print("folded", *(folded[n:n + 7] for n in range(0, len(folded), 7)), sep="\\n   ")
print(token[:8] + "\\x1b[1;31m" + token[8:12] + "\\x1b[0m" + token[12:], "wrapped", token[:9] + "\\n    " + token[9:])
print("Authorization: Bearer {UNDECLARED}", "postgres://me:{UNDECLARED}@db/x", flush=True)
os.makedirs("out", exist_ok=True)
time.sleep(0.3)
print("said everything", flush=True)
raise SystemExit(f"RuntimeError: login with {{token}} was refused" if len(sys.argv) > 1 else 0)
"""


def written(value: str) -> list[bytes]:
    """Return a secret in the ways that a search for it should try."""
    data = value.encode()
    forms = {value, quote(value), quote(value, safe=""), base64.b64encode(data).decode(), ascii(value)[1:-1]}
    forms |= {data.hex(), data.hex().upper(), data.hex(":"), str(list(data))[1:-1]}
    return [form.encode() for form in forms]


def leaks(folder: Path) -> list[str]:
    """Return every file below `folder` that holds a planted secret, in any way of writing it."""
    needles = [form for value in (TOKEN, PASSWORD, UNDECLARED) for form in written(value)]
    needles.append(b"pl4nted")  # a piece is enough
    found = []
    for path in folder.rglob("*"):
        names_it = "pl4nted" in path.name
        if names_it or (path.is_file() and any(needle in path.read_bytes() for needle in needles)):
            found.append(str(path.relative_to(folder)))
    return found


def command_lines() -> bytes:
    """Those of all processes that this test started, and of theirs."""
    found = b""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(OSError):
            found += Path("/proc", str(process.pid), "cmdline").read_bytes()
    return found


@pytest.fixture
def planted(bench: Bench) -> Bench:
    bench.secrets = {"WANDB_API_KEY": TOKEN, "WANDB_KEY": TOKEN, "DB_PASSWORD": PASSWORD}
    bench.aliases = (("WANDB_API_KEY", "WANDB_KEY"),)
    return bench


@pytest.mark.parametrize("words", [(), ("fail",)], ids=["passes", "fails"])
def test_a_run_leaves_no_secret_behind(planted: Bench, words: tuple[str, ...], tmp_path: Path) -> None:
    script = tmp_path / "careless.py"
    script.write_text(CARELESS)
    argv = (python("")[0], str(script), *words)
    rules = (line_rule("said everything"), line_rule(r"half \*\*\*$"))
    planted.stage("careless", argv, require=rules, secrets=("WANDB_API_KEY", "DB_PASSWORD"))
    supervisor = planted.start()
    seen = b""
    while supervisor.poll() is None:
        seen += command_lines()
        time.sleep(0.02)
    code, err = planted.finish()
    assert code == (1 if words else 0), err
    log = planted.log("1-careless/stage.log")
    assert "in pieces: ***\n" in log
    assert '{"token": "***", "password": "***"}' in log
    assert "Authorization: Bearer *** postgres://me:***@db/x" in log
    assert leaks(planted.run_dir) == []
    assert b"pl4nted" not in seen
    assert "pl4nted" not in err
    if words:
        assert "***" in planted.cause().line


NAMES = ("DB_PASSWORD", "WANDB_API_KEY", "WANDB_KEY")
HAS = f"import os; print('has', *(name for name in {NAMES} if name in os.environ), flush=True)\n"
NAMED = "print('named', *os.environ['RLBOX_SECRETS'].split(','), flush=True)\n"


def test_each_stage_and_service_has_what_it_names_and_nothing_else(planted: Bench) -> None:
    planted.environment = {"WANDB_API_KEY": TOKEN, "DB_PASSWORD": PASSWORD}  # exported by the user as well
    one, other = free_port(), free_port()
    served = (
        replace(service("server", one, python(HAS + SERVER, str(one))), secrets=("WANDB_KEY",)),
        service("plain", other, python(HAS + SERVER, str(other))),
    )
    planted.stage("database", python(HAS + NAMED), services=served, secrets=("DB_PASSWORD",))
    planted.stage("nothing", python(HAS + NAMED))
    planted.stage("all", python(HAS), secrets=("DB_PASSWORD", "WANDB_API_KEY"))
    assert planted.run() == 0
    assert planted.log("1-database/stage.log") == "has DB_PASSWORD\nnamed DB_PASSWORD\n"
    assert planted.log("1-database/server.log").startswith("has WANDB_API_KEY WANDB_KEY\n")
    assert planted.log("1-database/plain.log").startswith("has\n")
    assert planted.log("2-nothing/stage.log") == "has\nnamed \n"
    assert planted.log("3-all/stage.log") == "has DB_PASSWORD WANDB_API_KEY WANDB_KEY\n"
    assert leaks(planted.run_dir) == []


def test_a_ray_head_has_those_of_the_stage_whose_job_it_takes(planted: Bench, tmp_path: Path) -> None:
    port = free_port()
    head = service("ray", port, python(HAS + HEAD, str(port), str(tmp_path), ""), contains="")
    head = replace(head, ready=Ready(url=f"http://127.0.0.1:{port}/api/jobs/"))
    ray = RayJobPlan(dashboard=f"http://127.0.0.1:{port}", service="ray", temp_dir=str(tmp_path), submission_id="run")
    planted.stage("with", python(HAS), services=(head,), ray=ray, secrets=("DB_PASSWORD",))
    planted.stage("without", python(HAS), services=(head,), ray=replace(ray, submission_id="run-2"))
    assert planted.run() == 0
    assert planted.log("1-with/ray.log").startswith("has DB_PASSWORD\n")
    assert planted.log("1-with/stage.log") == "has DB_PASSWORD\n"
    assert planted.log("2-without/ray.log").startswith("has\n")
    assert planted.log("2-without/stage.log") == "has\n"


def test_the_evidence_names_those_of_the_stage_that_failed(planted: Bench) -> None:
    planted.stage("fails", python("raise SystemExit(1)"), secrets=("DB_PASSWORD",))
    assert planted.run() == 1
    rows = (planted.run_dir / "stages/1-fails/evidence/environment.txt").read_text().splitlines()
    assert 'DB_PASSWORD="***"' in rows
    assert not [row for row in rows if row.startswith("WANDB")]


def test_secrets_that_never_come(planted: Bench) -> None:
    planted.stdin = b""
    planted.stage("asks", python("print('fine')"))
    planted.start()
    code, err = planted.finish()
    assert code == 7
    assert "the run's secrets (WANDB_API_KEY, WANDB_KEY, DB_PASSWORD) did not come over standard input" in err
    assert not (planted.run_dir / "stages/1-asks/stage.log").exists()


def test_what_comes_is_no_secrets(planted: Bench) -> None:
    planted.stdin = b'{"WANDB_API_KEY": "planted"\n'
    planted.stage("asks", python("print('fine')"))
    planted.start()
    code, err = planted.finish()
    assert (code, "planted" in err) == (2, False)
    assert "the standard input does not hold secrets" in err


def test_a_run_without_secrets_waits_for_nothing(bench: Bench) -> None:
    bench.stdin = b""
    bench.stage("asks", python("import os; print(os.environ.get('RLBOX_SECRETS', 'none'))"))
    assert bench.run() == 0
    assert bench.log("1-asks/stage.log") == "none\n"


def test_a_resumed_run_gets_them_again(planted: Bench) -> None:
    says = "import os; print(len(os.environ['WANDB_KEY']))"
    planted.stage("asks", python(f"{says}; raise SystemExit(1)"), secrets=("WANDB_KEY",))
    assert planted.run() == 1
    plan = json.loads((planted.run_dir / "plan.json").read_text())
    plan["attempt"], plan["stages"][0]["argv"][2] = 2, says
    (planted.run_dir / "plan.json").write_text(json.dumps(plan))
    (planted.run_dir / "supervisor.json").unlink()  # as resuming does
    line = encode_secrets_as_json_line({name: Secret(value) for name, value in planted.secrets.items()})
    planted.supervisor = Supervisor(planted.run_dir, {}, line)
    assert planted.finish()[0] == 0
    assert planted.log("1-asks/stage.log") == planted.log("1-asks/attempt-1/stage.log") == f"{len(TOKEN)}\n"
    assert leaks(planted.run_dir) == []


def test_a_run_is_stopped_while_it_waits(planted: Bench) -> None:
    readable, writable = os.pipe()
    planted.stage("asks", python("print('fine')"))
    planted.write_plan()
    saved = os.dup(0)
    os.dup2(readable, 0)  # nobody writes, nobody closes
    try:
        planted.supervisor = Supervisor(planted.run_dir, {})
    finally:
        os.dup2(saved, 0)
        os.close(saved)
    wait_for(lambda: (planted.run_dir / "supervisor.json").exists())
    planted.supervisor.send_signal(signal.SIGTERM)
    code, err = planted.finish()
    os.close(writable)
    os.close(readable)
    assert code == 130, err


SEES = """
import os
seen, pid = [], os.getppid()
while pid > 1:
    if b"rlbox.supervise" in open(f"/proc/{pid}/cmdline", "rb").read():
        seen.append(b"pl4n" b"ted" in open(f"/proc/{pid}/environ", "rb").read())
    pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
print("supervisors", len(seen), "with it", sum(seen), flush=True)
"""


def begun_in_place(planted: Bench, tmp_path: Path) -> Callable[[], bool]:
    """Start the run as `rlbox run --place here` does, by a user who has exported the secrets, too."""
    secrets = {name: Secret(value) for name, value in planted.secrets.items()}
    planted.write_plan()
    environment = StageEnvironment(python=Path(sys.executable), env={**os.environ, **planted.secrets}, argv_prefix=())
    run_store = RunStore(data_dir=tmp_path, open_runtime=open_container_runtime)
    prepared = HostRunStarter(target="local", run_store=run_store, environment=environment)
    lock = acquire_disk_lock(tmp_path, LockOwner(what="a test"))
    try:
        return prepared.start(load_plan_file(planted.run_dir), planted.run_dir, secrets, lock)
    finally:
        lock.close_own_handle()


def test_a_run_in_place_hands_them_through_its_warden(planted: Bench, tmp_path: Path) -> None:
    """The way of `rlbox run --place here`: pipe, warden, supervisor, stage; no command line on the way holds one, and
    no environment but that of the stage that names it."""
    says = "import os, time; print(len(os.environ['WANDB_KEY'])); time.sleep(0.5)"
    planted.stage("asks", python(says), secrets=("WANDB_KEY",))
    planted.stage("looks", python(SEES))
    alive = begun_in_place(planted, tmp_path)
    seen = b""
    while alive():
        seen += command_lines()
        time.sleep(0.02)
    assert b"rlbox.supervise" in seen
    assert b"pl4nted" not in seen
    assert planted.states() == ["passed", "passed"]
    assert planted.log("1-asks/stage.log") == f"{len(TOKEN)}\n"
    said = planted.log("2-looks/stage.log").split()
    assert int(said[1]) >= 2  # the warden and the supervisor
    assert said[-1] == "0"
    assert leaks(planted.run_dir) == []


def test_nothing_lies_on_the_disk_after_kill_9(planted: Bench, tmp_path: Path) -> None:
    planted.stage("asks", python(HAS + "import time; time.sleep(600)"), secrets=("DB_PASSWORD", "WANDB_KEY"))
    alive = begun_in_place(planted, tmp_path)
    log = planted.run_dir / "stages/1-asks/stage.log"
    wait_for(lambda: log.exists() and "has DB_PASSWORD" in log.read_text())
    record = json.loads((planted.run_dir / "supervisor.json").read_text())
    for pid in (record["warden"], record["pid"]):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive())
    RunProcesses(planted.run_dir, StopSignal()).stop_all_and_list_survivors()
    assert leaks(tmp_path) == []
