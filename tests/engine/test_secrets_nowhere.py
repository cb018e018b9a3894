"""Planted secrets of a real run in a container, looked for in every place that rlbox makes or writes (show 6)."""

from __future__ import annotations

import base64
import contextlib
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from enginebox import Box, containers, docker, wait_until
from fakes import load_cases
from projectbox import own

CASES = load_cases("engine", "test_secrets_nowhere")
pytestmark = pytest.mark.slow  # the fast half, in place: tests/supervisor/test_run_secrets.py

TOKEN = "wk+9/planted=Q7zR'x"
PASSWORD = "planted pass/w\u00f6rd-31"
UNDECLARED = "planted-undeclared-55"

CARELESS = """
import base64, json, os, sys, time, urllib.parse
token, password = os.environ["WANDB_KEY"], os.environ["DB_PASSWORD"]
other = "plan" + "ted-undeclared-55"
print(*(f"{name}={value}" for name, value in os.environ.items()), sep="\\n", flush=True)
for character in "in pieces: " + token + "\\n":
    os.write(1, character.encode())
    time.sleep(0.01)
print(json.dumps([token, password]), urllib.parse.quote(token), base64.b64encode(f"u:{token}".encode()).decode())
print(token.encode().hex(), password.encode().hex(":"), list(token.encode()), token[:9] + "\\x1b[31m" + token[9:])
folded = base64.b64encode(f"u:{token}".encode()).decode()
print("folded", *(folded[n:n + 5] for n in range(0, len(folded), 5)), "wrapped " + token[:9], token[9:], sep="\\n  ")
print("Authorization: Bearer", other, "redis://me:" + other + "@db", flush=True)
time.sleep(1.5)
raise SystemExit(f"RuntimeError: login with {password} was refused")
"""

LOOK = """
import os, time
mine = ("WANDB_API_KEY", "WANDB_KEY", "DB_PASSWORD")
print("named", os.environ["RLBOX_SECRETS"], "has", [name for name in os.environ if name in mine])
for place in ("/proc/1/environ", *(f"/proc/{entry}/environ" for entry in os.listdir("/proc") if entry.isdigit())):
    try:
        found = b"plan" + b"ted" in open(place, "rb").read()
    except OSError as error:
        found = error.strerror
    print(place, found, flush=True)
time.sleep(3)
"""

WAITS = CASES["WAITS"]
JOB = CASES["JOB"]


def needles() -> list[bytes]:
    """Return what to look for: the secrets as they are and encoded, and a piece of each."""
    forms = {form for value in (TOKEN, PASSWORD, UNDECLARED) for form in (value, quote(value), quote(value, safe=""))}
    forms |= {base64.b64encode(value.encode()).decode() for value in (TOKEN, PASSWORD)}
    forms |= {value.encode().hex(*gap) for value in (TOKEN, PASSWORD) for gap in ((), (":",))} | {
        str(list(TOKEN.encode()))
    }
    pieces = (b"planted=Q", b"planted pass", b"planted-undeclared")  # others of this machine may say "planted", too
    return [*pieces, *(form.encode() for form in forms)]


def files_below(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            yield str(path.relative_to(folder)), path.read_bytes()


def leaks(pieces: Iterator[tuple[str, bytes]]) -> list[str]:
    found = needles()
    return [name for name, data in pieces if any(needle in name.encode() + b"\n" + data for needle in found)]


class Watcher:
    """Takes the command lines of all processes, and `docker inspect` of the run's container, while it runs."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._ended = threading.Event()
        self.seen: dict[str, bytes] = {}
        self.thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        asked = 0.0
        while not self._ended.wait(0.1):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    self.seen[f"{path} {len(self.seen)}"] = path.read_bytes()
            if time.monotonic() - asked > 1:
                asked = time.monotonic()
                for name in containers(self._box.data):
                    for words in (["inspect", name], ["logs", name], ["exec", name, "env"]):
                        done = subprocess.run(["docker", *words], capture_output=True, check=False)
                        self.seen[f"container {name} {words[0]} {asked}"] = done.stdout + done.stderr

    def end(self) -> None:
        self._ended.set()
        self.thread.join()


@pytest.fixture
def planted(tiny: Box) -> Box:
    (tiny.project / "jobs/careless").mkdir(parents=True)
    (tiny.project / "jobs/careless/leak.py").write_text(CARELESS)
    (tiny.project / "jobs/careless/look.py").write_text(LOOK)
    tiny.job("careless", JOB)
    (tiny.project / ".env").write_bytes(
        f"export WANDB_API_KEY = \"{TOKEN}\" # mine\r\nDB_PASSWORD='{PASSWORD}'\r\n".encode()
    )
    return tiny


def test_secrets_are_nowhere(planted: Box) -> None:
    watcher = Watcher(planted)
    watcher.thread.start()
    result = planted("run", "careless")
    watcher.end()
    run = planted.runs()[-1]
    assert result.code == 1, result.err
    log = (run / "stages/2-careless/stage.log").read_text()
    assert "in pieces: ***\n" in log
    assert "RuntimeError: login with *** was refused" in log
    assert any(" exec " in name and b"PATH=" in data for name, data in watcher.seen.items())
    assert leaks(iter(watcher.seen.items())) == []
    assert leaks(files_below(planted.data)) == []
    said = {"run": result.out + result.err}
    for words in (["runs"], ["runs", "--json"], ["logs", "--stage", "careless"]):
        shown = planted(*words, "--target", "tiny")
        said[" ".join(words)] = shown.out + shown.err
    assert leaks((name, text.encode()) for name, text in said.items()) == []


def test_secrets_are_where_they_are_named(planted: Box) -> None:
    """A `.env` on the data disk, too, which the container's hooks read, gives them to nothing else."""
    (planted.data / ".env").write_text(f"DB_PASSWORD='{PASSWORD}'\nOPEN=for all\n")
    planted("run", "careless")
    run = planted.runs()[-1]
    named, *places = (run / "stages/1-plain/stage.log").read_text().splitlines()
    assert named == "named  has []"
    assert "/proc/1/environ Permission denied" in places
    assert not [line for line in places if line.endswith("True")]
    assert "in pieces: ***\n" in (run / "stages/2-careless/stage.log").read_text()


def test_a_killed_container_leaves_none(planted: Box, tmp_path: Path) -> None:
    planted.job("waits", WAITS)
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    assert planted("run", "waits", "--detach", **state).code == 0
    run = planted.runs()[-1]
    log = run / "stages/1-waits/stage.log"
    wait_until(lambda: log.exists() and "it has" in log.read_text(), "the stage", 60)
    docker("kill", "--signal", "KILL", f"rlbox-{run.name}")
    assert planted("runs", "--target", "tiny", **state).code == 0
    assert containers(planted.data) == []
    assert (tmp_path / "state").exists()
    assert leaks(files_below(planted.data)) == []
    assert leaks(files_below(tmp_path / "state")) == []


def test_secrets_are_in_no_layer_bundle_or_report(planted: Box, tmp_path: Path) -> None:
    """The image is built anew with the secrets in `.env` and the environment; all that a failed run leaves is kept."""
    target = planted.project / "images/tiny/target.toml"
    target.write_text(target.read_text() + '[env]\nBUILT = "with secrets around"\n')
    for words in (("lock", "tiny"), ("build", "tiny")):
        assert planted(*words, WANDB_API_KEY=TOKEN, DB_PASSWORD=PASSWORD).code == 0
    assert planted("run", "careless", WANDB_API_KEY=TOKEN).code == 1
    run = planted.runs()[-1].name
    for words in (
        ["bundle", run, "--out", str(tmp_path / "bundle.tar.gz")],
        ["report", run, "--out", str(tmp_path / "r.html")],
    ):
        result = planted(*words, "--target", "tiny")
        assert result.code == 0, result.err
    unpacked = tmp_path / "unpacked"
    with tarfile.open(tmp_path / "bundle.tar.gz") as archive:
        archive.extractall(unpacked)
    assert leaks(files_below(unpacked)) == []
    assert leaks(iter([("report", (tmp_path / "r.html").read_bytes())])) == []
    inspected = docker("image", "inspect", own("tiny")) + docker("history", "--no-trunc", own("tiny"))
    assert leaks(iter([("image", inspected.encode())])) == []
    assert leaks(layers(own("tiny"), tmp_path / "image.tar")) == []


def layers(tag: str, archive: Path) -> Iterator[tuple[str, bytes]]:
    """Yield every file of every layer of an image."""
    docker("save", "--output", str(archive), tag)
    with tarfile.open(archive) as image:
        for member in image:
            file = image.extractfile(member)
            if file is None:
                continue
            try:
                layer = tarfile.open(fileobj=file, mode="r:*")  # noqa: SIM115 - closed with its archive
            except tarfile.ReadError:
                file.seek(0)
                yield member.name, file.read()
                continue
            for entry in layer:
                inner = layer.extractfile(entry) if entry.isfile() else None
                yield f"{member.name}: {entry.name}", inner.read() if inner else b""
