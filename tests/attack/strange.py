"""What a disk can hold and a file is not expected to be: without end, nested without end, a ring, somebody else's.

And stages that leave such things where rlbox is about to write, plans that name other runs, places for results.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import claims
from families import clear, typed
from ground import Attempt, Ground

from rlbox.system.safe_files import open_new_file

ENDLESS = 1 << 42
LEVELS = 1200

Check = Callable[[Ground, subprocess.CompletedProcess[bytes]], str]
Make = Callable[[Path], object]

HOSTILE = """
title = "a stage that plants, and one that writes there"
target = "mine"
[[stages]]
name = "first"
title = "plants"
command = ["sh", "{data}/plant", "{run}", "{data}"]
limits = { total_s = 30, silence_s = 20 }
[[stages]]
name = "second"
title = "writes"
command = ["sh", "{data}/work", "{run}", "{data}"]
limits = { total_s = 30, silence_s = 20 }
[stages.gate]
require = [{ pattern = 'finished well' }]
forbid = [{ pattern = 'CUDA out of memory' }]
"""
NEST = "import os; [(os.mkdir('d'), os.chdir('d')) for _ in range(1200)]"


def endless(ground: Ground, chance: random.Random) -> Iterator[Attempt]:
    """Files without end, folders without end, pipes and devices, wherever a verb reads."""
    kinds: dict[str, Make] = {
        "without end": _sparse,
        "nested": _nest,
        "a pipe": os.mkfifo,
        "the machine": lambda path: path.symlink_to("/"),
        "a device": lambda path: path.symlink_to("/dev/zero"),
        "a socket": _listen,
    }
    names = ("events.jsonl", "resources.jsonl", "metrics.jsonl", "supervisor.log", "more", "stages/2-second/more")
    names += tuple(f"spec/{name}" for name in ("job.toml", "target.toml", "lock.json", "signatures.json"))
    names += tuple(f"stages/2-second/{name}" for name in ("stage.log", "stage.log.times", "evidence", "attempt-1"))
    names += ("stages/2-second/evidence/first_fatal.txt", "stages/2-second/evidence/facts.json")
    verbs = (("runs",), ("report", "RUN"), ("bundle", "RUN"), ("runs", "diff", "PASSED", "RUN"), ("logs", "RUN"))
    verbs += (("stop", "RUN"), ("run", "--resume", "RUN"))
    for name in names:
        for kind, make in kinds.items():
            end, words = chance.choice(("dead", "failed")), chance.choice(verbs)
            torn = chance.random() < 0.5

            def plant(ground: Ground, name: str = name, make: Make = make, end: str = end, torn: bool = torn) -> None:
                path = ground.run_dir(end) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                clear(path)
                make(path)
                if torn:  # then the events tell
                    (ground.run_dir(end) / "run.json").unlink()

            yield Attempt(name=f"{name} of {end} is {kind}", plant=plant, words=typed(ground, words, end))
    for name in (".rlbox/new/x", "cache/x"):
        yield Attempt(
            name=f"{name} is nested",
            plant=lambda ground, name=name: (
                (ground.data / name).parent.mkdir(parents=True, exist_ok=True),
                _nest(ground.data / name),
            ),
            words=typed(ground, ("runs",), "dead"),
        )


def stages(ground: Ground, chance: random.Random) -> Iterator[Attempt]:
    """What a stage plants where the next one's log, its own or its evidence is to be written; and its lock."""
    log, own = "stages/2-second/stage.log", "$1/stages/2-second"
    kinds = {"link": "ln -s VICTIM/file", "second name": "ln VICTIM/file", "pipe": "mkfifo", "file": "touch"}
    for kind, make in kinds.items():
        for name in (log, f"{log}.times"):
            yield _hostile(ground, f"a {kind} at {name}", plant=f"mkdir -p {own}; {make} $1/{name}", passes=True)
        place = make.replace("VICTIM/file", "VICTIM") if kind == "link" else make
        yield _hostile(ground, f"a {kind} at the next stage", plant=f"{place} {own}", passes=True)
    late = "sleep 2.5; echo finished well"
    for name, work in {
        "its log becomes a link": f"rm $1/{log}; ln -s VICTIM/file $1/{log}; {late}",
        "its log becomes a second name": f"rm $1/{log}; ln VICTIM/file $1/{log}; {late}",
        "its log becomes endless": f"echo finished well; truncate -s 4T $1/{log}",
        "its metrics are endless": "truncate -s 4T $1/metrics.jsonl; echo finished well",
    }.items():
        yield _hostile(ground, name, work=work, passes=True)
    for name, work in {
        "its folder becomes a link": f"mv {own} $1/x; ln -s VICTIM {own}; {late}; exit 1",
        "all folders become a link": f"mv $1/stages $1/x; ln -s VICTIM $1/stages; {late}; exit 1",
        "its evidence is a link": f"ln -s VICTIM {own}/evidence; exit 1",
        "its evidence is endless": f"mkdir {own}/evidence; truncate -s 8T {own}/evidence/big; exit 1",
        "its evidence is pipes": f"cd {own}; mkdir evidence; mkfifo evidence/manifest.json evidence/REPORT.md; exit 1",
        "its evidence is nested": f'mkdir {own}/evidence; cd {own}/evidence; python3 -c "{NEST}"; exit 1',
        "signatures are a pipe": "rm $1/spec/signatures.json; mkfifo $1/spec/signatures.json; echo ValueError; exit 1",
        "samples are endless": "truncate -s 8T $1/resources.jsonl; exit 1",
        "events are endless": "truncate -s 8T $1/events.jsonl; exit 1",
        "its log grows before a bad word": f"echo finished well; sleep 0.5; truncate -s +1G $1/{log}; "
        "echo CUDA out of memory; sleep 1",
        "its log is emptied before a bad word": f"echo finished well; sleep 0.5; : > $1/{log}; "
        "echo CUDA out of memory; sleep 1",
    }.items():
        yield _hostile(ground, name, work=work, passes=False)
    for words, check in ((("run", "two", "--place", "here"), _refused), (("runs", "--json"), _goes_on)):
        yield Attempt(
            name=f"another file is the lock, {words[0]}",
            plant=_replace_lock,
            words=typed(ground, words, "dead"),
            check=check,
        )


def outputs(ground: Ground, chance: random.Random) -> Iterator[Attempt]:
    """Places for results that lie where programs of a run can write."""
    kinds: dict[str, Make] = {
        "a link": lambda path: path.symlink_to(ground.victim / "file"),
        "a link to nothing": lambda path: path.symlink_to(ground.victim / "new"),
        "a second name": lambda path: os.link(ground.victim / "file", path),
        "a pipe": os.mkfifo,
        "a folder": lambda path: path.mkdir(),
        "a ring": lambda path: path.symlink_to(path.name),
        "a device": lambda path: path.symlink_to("/dev/null"),
    }
    for kind, make in kinds.items():
        for verb, name in (("report", "o.html"), ("bundle", "o.tar.gz")):
            for spot, places in {"the place": ("{}",), "its part": ("{}.part",), "its draft": (".{}.PID",)}.items():

                def plant(ground: Ground, name: str = name, places: Any = places, make: Make = make) -> None:
                    for place in places:
                        ids = range(os.getpid(), os.getpid() + 200) if "PID" in place else (0,)
                        for pid in ids:
                            make(ground.data / place.format(name).replace("PID", str(pid)))

                words = (verb, ground.runs["failed"], "--out", str(ground.data / name), "--data", str(ground.data))
                yield Attempt(name=f"{spot} of {verb} is {kind}", plant=plant, words=words)


def plans(ground: Ground, chance: random.Random) -> Iterator[Attempt]:
    """Plans that name another run, or a note that a workload wrote; runs with names of several lines."""
    forged = "../" * 12 + str(ground.data / "forged").lstrip("/")
    ids = (forged, "../../x", "/etc/passwd", "a\0b", "", "..", "x" * 5000, "a\nb", ground.runs["passed"])
    others: tuple[dict[str, Any], ...] = tuple({"run_id": name} for name in ids)
    others += ({"place": "docker", "container": "x"}, {"place": "../x", "container": "x"}, {"attempt": 10**50})
    others += ({"stages": []}, {"target": "../../x"}, {"job": "/etc/passwd"}, {"begin_at": "nowhere"})
    for change in others:
        for words in (("attach", "RUN"), ("stop", "RUN"), ("runs",), ("run", "--resume", "RUN"), ("bundle", "RUN")):

            def forge(ground: Ground, change: dict[str, Any] = change) -> None:
                path = ground.run_dir("dead") / "plan.json"
                path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
                note = {"run": "x", "name": "y", "engine": "unix:///nowhere", "place": "docker"}
                (ground.data / "forged.json").write_text(json.dumps({"note": note}))

            yield Attempt(name=f"a plan with {change!r:.40}", plant=forge, words=typed(ground, words, "dead"))
    for name in ("a\nfake-1  passed", "a\rb", "\x1b]0;x\x07", "a b", "-x", "$(touch x)", "x" * 250, "a\u202eb"):
        for words in (("runs",), ("attach",), ("report",), ("stop",)):

            def copy(ground: Ground, name: str = name) -> None:
                folder = ground.data / "runs" / name
                shutil.copytree(ground.run_dir("passed"), folder)
                plan = json.loads((folder / "plan.json").read_text())
                (folder / "plan.json").write_text(json.dumps({**plan, "run_id": name}))

            words = typed(ground, words, "dead")
            yield Attempt(name=f"a run named {name!r:.20}", plant=copy, words=words, check=_one_line)


def _hostile(ground: Ground, name: str, *, plant: str = ":", work: str = "echo finished well", passes: bool) -> Attempt:
    def prepare(ground: Ground) -> None:
        (ground.folder / "project/jobs/hostile.toml").write_text(HOSTILE)
        for file, text in (("plant", plant), ("work", work)):
            (ground.data / file).write_text(text.replace("VICTIM", str(ground.victim)) + "\n")

    words = ("run", "hostile", "--place", "here", "--data", str(ground.data))
    return Attempt(name=name, plant=prepare, words=words, check=claims.has_passed if passes else claims.has_failed)


def _replace_lock(ground: Ground) -> None:
    (ground.folder / "project/jobs/hostile.toml").write_text(HOSTILE)
    (ground.data / "plant").write_text("rm $2/.rlbox-run.lock; : > $2/.rlbox-run.lock; touch $2/mark; sleep 4\n")
    (ground.data / "work").write_text("echo finished well\n")
    ground.type("run", "hostile", "--place", "here", "--detach", "--data", str(ground.data))
    claims.wait((ground.data / "mark").exists)


def _refused(ground: Ground, told: subprocess.CompletedProcess[bytes]) -> str:
    _let_end(ground)
    return "" if told.returncode == 8 else f"a second run got in: {claims.words_of(told)}"


def _goes_on(ground: Ground, told: subprocess.CompletedProcess[bytes]) -> str:
    state = claims.states(told)[ground.last()]
    _let_end(ground)
    return "" if state == "running" else f"a run that lives is told as {state}"


def _let_end(ground: Ground) -> None:
    """Wait for the run that goes on: it would write to the next attempt's disk."""
    claims.wait(lambda: "running" not in claims.state(ground))


def _one_line(ground: Ground, told: subprocess.CompletedProcess[bytes]) -> str:
    return "a name makes a line of its own" if b"\nfake-1" in told.stdout else ""


def _sparse(path: Path) -> None:
    with os.fdopen(open_new_file(path), "wb") as file:
        file.truncate(ENDLESS)


def _nest(folder: Path) -> None:
    folder.mkdir()
    at = os.open(folder, os.O_RDONLY)
    for _ in range(LEVELS):
        os.mkdir("d", dir_fd=at)
        at, above = os.open("d", os.O_RDONLY, dir_fd=at), at
        os.close(above)
    os.close(at)


def _listen(path: Path) -> None:
    """Leave the file of a socket; its path is too long for the kernel but from within the folder."""
    folder = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


FAMILIES = (endless, stages, outputs, plans)
