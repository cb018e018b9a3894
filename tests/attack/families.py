"""Attempts by family, each made from a seed: what a workload can write below the data disk, turned against the host."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ground import Attempt, Ground, not_passed

NAMES = (
    ".rlbox",
    ".rlbox/new",
    ".rlbox/containers",
    ".rlbox-run.lock",
    "cache",
    "cache/bytecode",
    "runs",
    *(
        f"RUN/{name}"
        for name in (
            "",
            "plan.json",
            "run.json",
            "events.jsonl",
            "supervisor.json",
            "processes.json",
            "stop.json",
            "overrides.json",
            "metrics.jsonl",
            "resources.jsonl",
            ".reserve",
            "job",
            "stages",
            "stages/2-second",
            "stages/2-second/stage.log",
            "stages/2-second/evidence",
            "report.html",
        )
    ),
)
RECORDS = ("plan.json", "run.json", "events.jsonl", "supervisor.json", "processes.json", "overrides.json")
SWAPS: tuple[Any, ...] = (
    None,
    True,
    -1,
    1.5,
    10**30,
    "",
    "x" * 5000,
    "\x1b]0;owned\x07",
    "../..",
    [],
    {},
    [[]],
    {"a": []},
)
TERMINAL = "\x1b]0;owned\x07\x1b[2J\x9b31m\x90q\x1b\\"
VERBS: tuple[tuple[str, ...], ...] = (
    ("runs",),
    ("runs", "--json"),
    ("logs", "RUN"),
    ("stop", "RUN"),
    ("report", "RUN"),
    ("bundle", "RUN"),
    ("runs", "diff", "PASSED", "RUN"),
    ("run", "--resume", "RUN"),
    ("run", "two", "--place", "here"),
)


def typed(ground: Ground, words: tuple[str, ...], end: str) -> tuple[str, ...]:
    names = {"RUN": ground.runs[end], "PASSED": ground.runs["passed"]}
    data = ("--data", str(ground.data))
    out = ("--out", str(ground.folder / "out.html")) if words[0] == "report" else ()
    return (*(names.get(word, word) for word in words), *out, *data)


def links(ground: Ground, chance: random.Random) -> Iterator[Attempt]:
    """Something else than rlbox wrote, at every name that it uses: links out of the disk, pipes, folders."""
    kinds: dict[str, Callable[[Path], object]] = {
        "link to a file": lambda path: path.symlink_to(ground.victim / "file"),
        "link to a folder": lambda path: path.symlink_to(ground.victim),
        "link to nothing": lambda path: path.symlink_to(ground.victim / "new"),
        "second name of a file": lambda path: os.link(ground.victim / "file", path),
        "pipe": os.mkfifo,
        "folder": lambda path: path.mkdir(),
        "link round": lambda path: path.symlink_to(path.name),
    }
    for name in NAMES:
        for kind, make in kinds.items():
            end = chance.choice(("dead", "failed", "passed"))
            words = chance.choice(VERBS)

            def plant(ground: Ground, name: str = name, make: Any = make, end: str = end) -> None:
                path = ground.data / name.replace("RUN", f"runs/{ground.runs[end]}").rstrip("/")
                clear(path)
                path.parent.mkdir(parents=True, exist_ok=True)
                make(path)

            yield Attempt(name=f"{kind} at {name} of {end}", plant=plant, words=typed(ground, words, end))


def records(ground: Ground, chance: random.Random) -> Iterator[Attempt]:
    """Records cut anywhere, with any value's type swapped, and of sizes that no reader expects."""
    for name in RECORDS:
        for _ in range(12):
            share = chance.random()

            def cut(ground: Ground, name: str = name, share: float = share) -> None:
                path = ground.run_dir("dead") / name
                body = path.read_bytes() if path.exists() else b"{}"
                path.write_bytes(body[: int(share * len(body))])

            yield Attempt(
                name=f"{name} cut at {share:.3f}", plant=cut, words=runs_json(ground), check=not_passed("dead")
            )
        for _ in range(14):
            yield _swapped(ground, name, chance.randrange(1 << 30))
        for title, text in hostile_texts().items():

            def write(ground: Ground, name: str = name, text: bytes = text) -> None:
                (ground.run_dir("dead") / name).write_bytes(text)

            yield Attempt(name=f"{name} is {title}", plant=write, words=runs_json(ground), check=not_passed("dead"))


def _swapped(ground: Ground, name: str, seed: int) -> Attempt:
    def plant(ground: Ground) -> None:
        chance, path = random.Random(seed), ground.run_dir("dead") / name
        rows = (
            [json.loads(row) for row in path.read_text().splitlines()] if name.endswith("l") and path.exists() else []
        )
        data = rows or (json.loads(path.read_bytes()) if path.exists() else {})
        places = list(_places(data))
        holder, key = chance.choice(places) if places else ({}, "")
        holder[key] = chance.choice(SWAPS)
        text = "\n".join(json.dumps(row) for row in data) + "\n" if rows else json.dumps(data)
        path.write_text(text)

    words = runs_json(ground) if seed % 3 else typed(ground, VERBS[seed % len(VERBS)], "dead")
    check = not_passed("dead") if seed % 3 else (lambda ground, told: "")
    return Attempt(name=f"{name} with a value swapped ({seed})", plant=plant, words=words, check=check)


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield data, key
        yield from _places(value)


def hostile_texts() -> dict[str, bytes]:
    """Return texts that break a reader which expects no harm."""
    return {
        "deep": b"[" * 200_000,
        "a long number": b'{"schema": ' + b"9" * 200_000 + b"}",
        "no number": b'{"exit_code": NaN, "attempt": -Infinity}',
        "half a pair": b'{"state": "\\ud800"}',
        "no text": bytes(range(256)) * 100,
        "one long line": b'{"a": "' + b"x" * (32 << 20) + b'"}',
        "nothing": b"",
    }


def terminals(ground: Ground, chance: random.Random) -> Iterator[Attempt]:
    """Control sequences wherever a verb prints what a workload wrote."""
    for words in VERBS[:7]:
        for spot in ("log", "cause", "title", "stage", "name"):

            def plant(ground: Ground, spot: str = spot) -> None:
                run_dir = ground.run_dir("failed")
                if spot == "log":
                    for log in run_dir.glob("stages/*/*.log"):
                        log.write_text(f"ValueError: {TERMINAL}\n" * 5)
                    return
                data = json.loads((run_dir / "run.json").read_text())
                for stage in data["stages"]:
                    if spot == "cause" and stage.get("cause"):
                        stage["cause"]["what"] = TERMINAL
                    elif spot in ("title", "name"):
                        stage[spot] = TERMINAL
                    elif spot == "stage":
                        stage["phase"] = stage["ended_at"] = TERMINAL
                (run_dir / "run.json").write_text(json.dumps(data))

            yield Attempt(name=f"control sequences in {spot}", plant=plant, words=typed(ground, words, "failed"))


def runs_json(ground: Ground) -> tuple[str, ...]:
    return "runs", "--json", "--data", str(ground.data)


def clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


FAMILIES: tuple[Callable[[Ground, random.Random], Iterator[Attempt]], ...] = (links, records, terminals)
