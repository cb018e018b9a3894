"""Stages that claim what they did not do: lines, numbers, files that only look right, listeners, kills at every state.

Each attempt changes one thing of an honest stage; only the honest ones may pass.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

from ground import LAST, PATIENCE_S, Attempt, Ground, sleepers

from rlbox.record.supervisor_file import load_supervisor

JOB = r"""
title = "a stage with every rule, after one that leaves files"
target = "mine"
[[stages]]
name = "old"
title = "leaves files"
command = ["sh", "-c", "cd {run}; mkdir -p out/parts; echo '[1, 2, 3]' > out/proof.json; echo old > out/parts/model"]
limits = { total_s = 60, silence_s = 30 }
[stages.gate]
files = [{ path = "{run}/out/proof.json", format = "json" }]
[[stages]]
name = "claim"
title = "does its work"
command = ["sh", "{data}/work", "{run}/out"]
limits = { total_s = 60, silence_s = 30 }
[stages.gate]
require = [{ pattern = 'update done', count = 3 }, { pattern = 'finished well' }]
forbid = [{ pattern = 'CUDA out of memory' }]
model_output = ['^\[response\]']
model_texts = [{ begins = '^DEBUG:', ends = '^INFO: done' }]
files = [
    { path = "{run}/out/proof.json", format = "json", newer = true },
    { path = "{run}/out/parts/*", newer = true },
]
[[stages.gate.metrics]]
name = "loss"
pattern = 'step (?P<step>\d+) loss (?P<value>\S+)'
trend = "falls"
points = 3
steps_rise = true
"""
LOSSES = "step 1 loss 0.9\nstep 2 loss 0.5\nstep 3 loss 0.1\n"
UPDATES = "update done 1\nupdate done 2\nupdate done 3\n"
END = "finished well\n"
FILES = "echo '[4, 5]' > $1/proof.json; echo new $$ > $1/parts/model"

LISTEN = """
import socket, sys, time
where, port = sys.argv[1], int(sys.argv[2])
server = socket.create_server((where, port), family=socket.AF_INET6 if ":" in where else socket.AF_INET)
time.sleep(30)
"""

Lie = tuple[str, str]
"""What an attempt is called, and what its stage writes or does in the place of the honest part."""


def work(
    *, losses: str = LOSSES, updates: str = UPDATES, more: str = "", files: str = FILES, end: str = END, last: str = ""
) -> str:
    """Return the shell script of a stage; texts are written as they are, `files` and `last` are commands."""
    says = [f"printf %s {shlex.quote(text)}" for text in (losses, updates, more) if text]
    return "\n".join([*says, files, f"printf %s {shlex.quote(end)}", last, ""])


def quotations(ground: Ground, chance: random.Random) -> Iterator[Attempt]:
    """Required lines that never came, forbidden ones that hide, numbers that are none; and what may be quoted."""
    for name, text in (*_counted(), *_unseen("update done")):
        lane = chance.choice(("", "(W pid=7) ", "\x1b[36m(W pid=7)\x1b[0m ", "[rank0] "))
        yield _claim(ground, f"no update: {name}", work(updates=f"{lane}update done 1\n" + text))
    for name, text in _unseen("finished well"):
        yield _claim(ground, f"no end: {name}", work(end=text))
    for name, text in _forbidden():
        yield _claim(ground, f"forbidden: {name}", work(more=text))
        yield _claim(ground, f"forbidden at the end: {name}", work(last=f"printf %s {shlex.quote(text)}"))
    for name, text in _no_metric():
        yield _claim(ground, f"no metric: {name}", work(losses=text))
    for name, text in _harmless():
        yield _claim(
            ground, f"quoted: {name}", work(losses="step 1 loss 0.9\n" + text + LOSSES.split("\n", 1)[1]), passes=True
        )


def _counted() -> Iterator[Lie]:
    said = "update done"
    yield "repeated without Ray's form", f"{said} [repeated 500x]\n"
    yield "repeated before it", f"[repeated 500x across cluster] {said}\n"
    yield "repeated by another actor", f"(V pid=9) {said} [repeated 500x across cluster]\n"
    yield "repeated 5000 digits often", f"(V pid=9) {said} [repeated {'9' * 5000}x across cluster]\n"


def _unseen(said: str) -> Iterator[Lie]:
    yield "overwritten", f"{said}\rnothing at all, nothing at all\n"
    yield "taken back", f"{said}" + "\b" * len(said) + "nothing at all\n"
    yield "in a title", f"\x1b]0;{said}\x07\n\x1b]0;{said}\x1b\\\n"
    yield "of the model", f"[response] {said} {said}\n[response] {said}\n"
    yield "of the model, in a lane", f"(W pid=7) [response] {said}\n(W pid=7) [response] {said}\n"
    yield "in a text of the model", f"DEBUG: I say\n{said}\n{said}\nINFO: done\n"
    yield "in a text without end", f"DEBUG: I say\n{said}\n{said}\n"
    yield "in two lines", said.replace(" ", "\n ") + "\n"
    yield "in capitals", f"{said.upper()}\n"
    yield "with a letter of no width", said.replace(" ", "\u200b ") + "\n"
    yield "with letters that look alike", said.replace("e", "\u0435") + "\n"
    yield "letter by letter", "\n".join(said) + "\n"


def _forbidden() -> Iterator[Lie]:
    said = "CUDA out of memory"
    for size in (10, 64 << 10, 1 << 20):
        yield f"behind {size} letters", "x" * size + f" {said}\n"
        yield f"before {size} letters", f"{said} " + "x" * size + "\n"
    yield "overwritten", f"{said}\rall is well, all is well\n"
    yield "taken back", f"{said}" + "\b \b" * 30 + "fine\n"
    yield "a letter taken back", "CUDA out of memorr\by\n"
    yield "coloured", "CUDA \x1b[31mout\x1b[0m of memory\n"
    yield "without a line feed", said
    yield "with a level of its own", f"INFO {said}\n"
    yield "in a lane", f"(W pid=8) {said}\n"
    yield "in a text without end", f"DEBUG: I say\n{said}\n"
    yield "after the end of a text", f"DEBUG: I say\nINFO: done\n{said}\n"
    yield "beside a text of another lane", f"(V pid=3) DEBUG: I say\n{said}\n(V pid=3) INFO: done\n"
    yield "in the line of a step", f"step 4 loss 0.05 {said}\nstep 5 loss 0.04\n"
    yield "before a step of another lane", f"{said}\n(V pid=3) step 4 loss 0.05\n"
    yield "with a benign look", f"0 errors, {said}: 0 retries\n"


def _no_metric() -> Iterator[Lie]:
    yield "not a number", LOSSES.replace("0.5", "nan")
    yield "infinite", LOSSES.replace("0.5", "-inf")
    yield "400 digits", LOSSES.replace("0.5", "9" * 400)
    yield "one point", "step 1 loss 0.9\n"
    yield "the same step", "step 1 loss 0.9\nstep 1 loss 0.5\nstep 1 loss 0.1\n"
    yield "it rises", "step 1 loss 0.1\nstep 2 loss 0.5\nstep 3 loss 0.9\n"
    yield "of the model", "".join(f"[response] {line}\n" for line in LOSSES.splitlines())
    yield "in a text of the model", f"DEBUG: I say\n{LOSSES}INFO: done\n"
    yield "words", "step one loss less\nstep two loss less\nstep three loss less\n"
    yield "nothing", ""


def _harmless() -> Iterator[Lie]:
    said = "torch.OutOfMemoryError: CUDA out of memory"
    yield "a model's line", f"[response] {said}\n"
    yield "a model's long line", f"[response] {'x' * 100_000} {said}\n"
    yield "a model's text", f"DEBUG: I say\nTraceback (most recent call last):\n{said}\nINFO: done\n"
    yield "by who goes on", f"my answer is {said}\n"
    yield "by who goes on, behind a long line", f"{'x' * 100_000} {said}\n"


def clocks(ground: Ground, chance: random.Random) -> Iterator[Attempt]:
    """Files of the stage before that look new, files that look whole: by name, time, mode or place.

    A copy is written by the stage, whatever its bytes are.
    """
    proof, part = "$1/proof.json", "$1/parts/model"
    new_part, new_proof = f"echo new $$ > {part}", f"echo '[4, 5]' > {proof}"
    hours = chance.choice(("tomorrow", "next year", "now", "1970-01-02", "2038-01-20", "3 hours ago"))
    tricks = {
        "nothing": ":",
        f"touched {hours}": f"touch -d '{hours}' FILE",
        "another mode": "chmod 600 FILE",
        "renamed and back": "mv FILE FILE.x; mv FILE.x FILE",
        "a second name": "ln FILE FILE.x; rm FILE; mv FILE.x FILE",
        "opened for writing": ": >> FILE",
        "a link to itself": "mv FILE ../y; ln -s $PWD/../y FILE",
        "a link to the machine's": "rm FILE; ln -s /etc/hostname FILE",
        "a pipe": "rm FILE; mkfifo FILE",
        "a folder": "rm FILE; mkdir FILE",
        "gone": "rm FILE",
        "empty": ": > FILE",
    }
    for name, trick in tricks.items():
        yield _claim(ground, f"proof.json: {name}", work(files=f"{new_part}; {trick.replace('FILE', proof)}"))
        yield _claim(ground, f"parts: {name}", work(files=f"{new_proof}; {trick.replace('FILE', part)}"))
    for name, text in {"cut": "[1, 2", "deep": "[" * 5000, "two": "[1][2]"}.items():
        yield _claim(
            ground, f"proof.json is {name}", work(files=f"{new_part}; printf %s {shlex.quote(text)} > {proof}")
        )
    yield _claim(ground, "one of two parts", work(files=f"{new_proof}; echo x > $1/parts/second"))
    for hours in ("tomorrow", "1970-01-02", "2038-01-20"):
        yield _claim(
            ground,
            f"honest, at a clock of {hours}",
            work(files=f"{FILES}; touch -d '{hours}' {proof} {part}"),
            passes=True,
        )


def ports(ground: Ground, chance: random.Random) -> Iterator[Attempt]:
    """Listeners that nobody declared: every family and address, by children of every kind, early and late."""
    hows = {
        "itself": "python3 LISTEN & pid=$!; sleep 4; kill $pid",
        "an orphan": "setsid python3 LISTEN & sleep 4",
        "a grandchild": "((python3 LISTEN &) &); sleep 4",
        "renamed": "bash -c 'exec -a [kworker/0:1] python3 LISTEN' & sleep 4",
    }
    for where in ("0.0.0.0", "::", _address()):
        for how, command in hows.items():
            words = f"$(dirname $0)/listen.py {where} {chance.randrange(20000, 30000)}"
            if how == "renamed":
                words = words.replace("$(dirname $0)", str(ground.data))
            yield _claim(ground, f"{how} listens on {where}", work(last=command.replace("LISTEN", words)))


def restarts(ground: Ground, chance: random.Random) -> Iterator[Attempt]:
    """A kill at every state, then a work that only claims: a resumed run asks for all of it again."""
    for state in ("begun", "lines", "files", "ended"):
        for who in ("supervisor", "supervisor and work"):
            for honest in (False, True):
                yield Attempt(
                    name=f"killed at {state}, {who}, then {'honest' if honest else 'a claim'}",
                    plant=functools.partial(_killed_at, state=state, who=who, honest=honest),
                    words=("run", "--resume", LAST, "--data", str(ground.data)),
                    check=has_passed if honest else has_failed,
                )


def _claim(ground: Ground, name: str, script: str, *, passes: bool = False) -> Attempt:
    def plant(ground: Ground) -> None:
        (ground.folder / "project/jobs/claims.toml").write_text(JOB)
        (ground.data / "work").write_text(script)
        (ground.data / "listen.py").write_text(LISTEN)

    words = ("run", "claims", "--place", "here", "--data", str(ground.data))
    return Attempt(name=name, plant=plant, words=words, check=has_passed if passes else has_failed)


def state(ground: Ground) -> str:
    """Return what the host says of the run that is none of the ground's."""
    told = states(ground.type("runs", "--json", "--data", str(ground.data)))
    return "".join(state for run, state in told.items() if run not in ground.runs.values())


def states(told: subprocess.CompletedProcess[bytes]) -> dict[str, str]:
    """Return what `runs --json` said of each run."""
    return {row["run"]: row["state"] for row in json.loads(told.stdout)["runs"]}


def has_passed(ground: Ground, told: subprocess.CompletedProcess[bytes]) -> str:
    ended = (told.returncode, state(ground))
    return "" if ended == (0, "passed") else f"an honest run did not pass: {ended} {words_of(told)}"


def has_failed(ground: Ground, told: subprocess.CompletedProcess[bytes]) -> str:
    if told.returncode not in (0, 2) and state(ground) not in ("passed", ""):
        return ""
    return f"it passed, or was not asked: {words_of(told)}"


def words_of(told: subprocess.CompletedProcess[bytes]) -> str:
    return f"{told.returncode} {(told.stdout + told.stderr).decode('utf-8', 'replace')[-600:]}"


def _killed_at(ground: Ground, *, state: str, who: str, honest: bool) -> None:
    steps = {"begun": "", "lines": work(files=":"), "files": work(end=""), "ended": work()}
    mark = ground.data / "mark"
    (ground.folder / "project/jobs/claims.toml").write_text(JOB)
    (ground.data / "work").write_text(f"{steps[state]}\ntouch {mark}\nexec sleep 601\n")
    ground.type("run", "claims", "--place", "here", "--detach", "--data", str(ground.data))
    wait(mark.exists)
    facts = load_supervisor(ground.data / "runs" / ground.last())
    assert facts
    pids = [facts.warden, facts.pid]
    if who != "supervisor":
        pids += sleepers(facts.pid)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    (ground.data / "work").write_text(work() if honest else "printf 'finished well\\n'\n")


def wait(done: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < until
        time.sleep(0.02)


def _address() -> str:
    """Return an address of this machine that is not loopback, else all of them."""
    told = subprocess.run(["hostname", "-I"], capture_output=True, text=True)
    return next(iter(told.stdout.split()), "0.0.0.0") if told.returncode == 0 else "0.0.0.0"


FAMILIES = (quotations, clocks, ports, restarts)
