"""Secrets of a run: they reach its processes, and are in nothing that is left behind or can be looked at."""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from supervised import SERVER, Bench, Supervisor, free_port, line_rule, python, service, wait_for

from rlbox.place.act.bring import BroughtPlace
from rlbox.record.act.disk_hold import Holder, take_disk
from rlbox.record.act.folder import load_plan
from rlbox.record.act.ledger import Ledger
from rlbox.run.here import ReadyHere
from rlbox.run.places import reach
from rlbox.secrets.act.hand_over import secrets_line
from rlbox.values import Secret

TOKEN = "wk+9/planted=Q7zR'x"
PASSWORD = "planted pass/w\u00f6rd-31"
UNDECLARED = "planted-undeclared-55"

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
    return [form.encode() for form in forms]


def leaks(folder: Path) -> list[str]:
    """Return every file below `folder` that holds a planted secret, in any way of writing it."""
    needles = [form for value in (TOKEN, PASSWORD, UNDECLARED) for form in written(value)]
    needles.append(b"planted")  # a piece is enough
    found = []
    for path in folder.rglob("*"):
        names_it = "planted" in path.name
        if names_it or (path.is_file() and any(needle in path.read_bytes() for needle in needles)):
            found.append(str(path.relative_to(folder)))
    return found


def command_lines() -> bytes:
    found = b""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                found += Path("/proc", entry, "cmdline").read_bytes()
            except OSError:
                continue
    return found


@pytest.fixture
def planted(bench: Bench) -> Bench:
    bench.secrets = {"WANDB_API_KEY": TOKEN, "WANDB_KEY": TOKEN, "DB_PASSWORD": PASSWORD}
    return bench


@pytest.mark.parametrize("words", [(), ("fail",)], ids=["passes", "fails"])
def test_a_run_leaves_no_secret_behind(planted: Bench, words: tuple[str, ...], tmp_path: Path) -> None:
    script = tmp_path / "careless.py"
    script.write_text(CARELESS)
    argv = (python("")[0], str(script), *words)
    planted.stage("careless", argv, require=(line_rule("said everything"), line_rule(r"half \*\*\*$")))
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
    assert b"planted" not in seen
    assert "planted" not in err
    if words:
        assert "***" in planted.cause().line


def test_services_have_them_too(planted: Bench, tmp_path: Path) -> None:
    port = free_port()
    server = python("import os; print('key', os.environ['WANDB_API_KEY'], flush=True)\n" + SERVER, str(port))
    planted.stage("asks", python("print('fine')"), services=(service("server", port, server),))
    assert planted.run() == 0
    assert planted.log("1-asks/server.log").startswith("key ***\n")
    assert leaks(planted.run_dir) == []


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
    assert "what came over standard input are no secrets" in err


def test_a_run_without_secrets_waits_for_nothing(bench: Bench) -> None:
    bench.stdin = b""
    bench.stage("asks", python("import os; print(os.environ.get('RLBOX_SECRETS', 'none'))"))
    assert bench.run() == 0
    assert bench.log("1-asks/stage.log") == "none\n"


def test_a_resumed_run_gets_them_again(planted: Bench) -> None:
    says = "import os; print(len(os.environ['WANDB_KEY']))"
    planted.stage("asks", python(f"{says}; raise SystemExit(1)"))
    assert planted.run() == 1
    plan = json.loads((planted.run_dir / "plan.json").read_text())
    plan["attempt"], plan["stages"][0]["argv"][2] = 2, says
    (planted.run_dir / "plan.json").write_text(json.dumps(plan))
    (planted.run_dir / "supervisor.json").unlink()  # as resuming does
    line = secrets_line({name: Secret(value) for name, value in planted.secrets.items()})
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


def test_a_run_in_place_hands_them_through_its_warden(planted: Bench, tmp_path: Path) -> None:
    """The way of `rlbox run --place here`: pipe, warden, supervisor, stage; no command line on the way holds one."""
    secrets = {name: Secret(value) for name, value in planted.secrets.items()}
    planted.stage("asks", python("import os, time; print(len(os.environ['WANDB_KEY'])); time.sleep(0.5)"))
    planted.write_plan()
    place = BroughtPlace(python=Path(sys.executable), env=dict(os.environ), words=())
    ready = ReadyHere(target="local", ledger=Ledger(folder=tmp_path, reach=reach), place=place)
    start = ready.start(load_plan(planted.run_dir), planted.run_dir, secrets)
    hold = take_disk(tmp_path, Holder(what="a test"))
    try:
        alive = start.begin(hold)
    finally:
        hold.leave()
    seen = b""
    while alive():
        seen += command_lines()
        time.sleep(0.02)
    assert b"rlbox.supervise" in seen
    assert b"planted" not in seen
    assert planted.states() == ["passed"]
    assert planted.log("1-asks/stage.log") == f"{len(TOKEN)}\n"
    assert leaks(planted.run_dir) == []
