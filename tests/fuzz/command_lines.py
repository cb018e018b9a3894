"""Random command lines: no traceback, no bug, and an exit code that is documented; made from a seed.

`python tests/fuzz/command_lines.py --lines N --seed S`: all in this process, which starts no other and has no network.
Whatever they write lies below a folder that is removed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import click

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS)] if str(TESTS) not in sys.path else []

from fakes import JOB, TARGET, Folder  # noqa: E402
from reportbox import write_run  # noqa: E402

from rlbox.cli import main  # noqa: E402
from rlbox.cli.root import COMMANDS, root  # noqa: E402
from rlbox.config.toml_files import load_toml  # noqa: E402

DOCUMENTED = {0, 1, 2, 4, 5, 6, 7, 8, 130, 141}
MOST_S = 30
MOST_FELL = 50
LOOK_ONLY = {"apply": "--dry-run", "run": "--dry-run", "vast": "--dry-run"}
"""Verbs that would change the machine, or pay: each of their lines is a dry run."""
NEVER = ("--around", "--ray")  # what rlbox gives itself; a server of somebody

WORDS = load_toml(Path(__file__).with_name("words.toml"))
ODD = ("\udcff", "x" * 5000, "a@sha256:" + "0" * 64)
"""What a table of words cannot hold, or would not."""
NAMED: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("TARGET", "target"), WORDS["targets"]),
    **dict.fromkeys(("RUN", "OTHER"), WORDS["runs"]),
    **dict.fromkeys(("DIR", "FILE", "PLACE"), WORDS["paths"]),
    "JOB": WORDS["jobs"],
    "NAME": [*WORDS["targets"], *WORDS["jobs"]],
    **WORDS["named"],
}


@dataclass(frozen=True)
class Line:
    """What is typed, and the variables that are set."""

    words: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([*(f"{name}={value!r}" for name, value in self.env.items()), "rlbox", *map(repr, self.words)])


class Typist:
    """Makes command lines from a seed: of words that fit, words that do not, and words that nobody means."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def line(self) -> Line:
        dice = self.dice
        words = self._words()
        if dice.random() < 0.1:
            words.insert(dice.randrange(len(words) + 1), self.word())
        if dice.random() < 0.05 and len(words) > 1:
            del words[dice.randrange(1, len(words))]
        if words and dice.random() < 0.05:
            at = dice.randrange(len(words))
            words[at] = self._mistyped(words[at])
        if words and words[0] in LOOK_ONLY:
            words.insert(2 if words[0] == "vast" and len(words) > 1 else 1, LOOK_ONLY[words[0]])
        names = dice.sample(sorted(WORDS["variables"]), dice.randrange(1, 3)) if dice.random() < 0.2 else []
        words = [word for word in words if not word.startswith(NEVER)]
        return Line(tuple(words), {name: dice.choice(WORDS["variables"][name]) for name in names})

    def word(self) -> str:
        kinds = (*(WORDS[kind] for kind in ("names", "paths", "numbers", "texts")), ODD, sorted(COMMANDS))
        return str(self.dice.choice(self.dice.choice(kinds)))

    def _words(self) -> list[str]:
        dice = self.dice
        if dice.random() < 0.03:
            return [self.word() for _ in range(dice.randrange(4))]
        verb = dice.choice(sorted(COMMANDS))
        command, words = root.get_command(click.Context(root), verb), [verb]
        while isinstance(command, click.Group) and dice.random() < 0.8:
            words.append(dice.choice(sorted(command.commands)))
            command = command.commands[words[-1]]
        assert command
        for parameter in command.params:
            words += self._given(parameter)
        return words

    def _given(self, parameter: click.Parameter) -> list[str]:
        """Return the words for a parameter: most of its arguments, a few of its options."""
        dice = self.dice
        if isinstance(parameter, click.Option):
            often = 0.9 if parameter.required else 0.05 if parameter.name in ("project", "help") else 0.15
            if dice.random() > often:
                return []
            name = dice.choice(parameter.opts)
            if parameter.is_flag or parameter.count:
                return [name]
            value = self._value(parameter)
            return [f"{name}={value}"] if name.startswith("--") and dice.random() < 0.3 else [name, value]
        count = dice.choice((0, 1, 1, 1, 2)) if parameter.nargs == -1 else int(dice.random() < 0.9)
        return [self._value(parameter) for _ in range(count)]

    def _value(self, parameter: click.Parameter) -> str:
        dice, kind = self.dice, parameter.type
        if dice.random() < 0.25:
            return self.word()
        if isinstance(kind, click.Choice):
            return str(dice.choice(list(kind.choices)))
        if isinstance(kind, (click.types.IntParamType, click.types.FloatParamType)):
            return str(dice.choice(WORDS["numbers"]))
        if isinstance(kind, click.Path):
            return str(dice.choice(WORDS["paths"]))
        named = NAMED.get((parameter.metavar or "").strip("[].")) or NAMED.get(parameter.name or "")
        return str(dice.choice(named or WORDS["names"]))

    def _mistyped(self, word: str) -> str:
        at = self.dice.randrange(len(word) + 1)
        return word[:at] + self.dice.choice(("", "x", "-", "ü", "=")) + word[at + 1 :]


def lay(folder: Path) -> Path:
    """Lay a project with good and broken files, and a data disk with a run, and return the project."""
    project = Folder(folder / "a/b/project")
    project.target("mine", TARGET)
    project.lock("mine")
    project.target("torn", "title = [")
    project.target("wrong", TARGET + "nosuch = 1\n")
    project.job("own", JOB)
    project.job("bad", JOB.replace("command", "comand"))
    project.write("text.txt", "vllm serve --nosuch\n")
    (project.path / "bytes.bin").write_bytes(bytes(range(256)))
    (project.path / "sub").mkdir()
    (project.path / "link").symlink_to("nowhere")
    (project.path / "loop").symlink_to("loop")
    write_run(project.path / "disk/runs/holdem-1", samples=5, steps=5)
    project.write("disk/runs/torn-1/plan.json", "{")
    for name in ("home", "bin"):
        (folder / name).mkdir()
    return project.path


def settings(folder: Path) -> dict[str, str]:
    """Return the environment of every line: homes of its own, no program, no engine, no network."""
    homes = {f"XDG_{name}_HOME": str(folder / "home" / name) for name in ("CACHE", "CONFIG", "DATA", "STATE")}
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:1")
    engine = {"DOCKER_HOST": f"unix://{folder}/none.sock", "PATH": str(folder / "bin")}
    data = {"RLBOX_DATA": str(folder / "a/b/project/disk"), "HOME": str(folder / "home")}
    return {**homes, **nowhere, **engine, **data, "RLBOX_STORE": str(folder / "store"), "COLUMNS": "80"}


def judge(line: Line, code: object, said: str) -> str:
    """Return what is wrong with the end of a line; empty when nothing is."""
    if "Traceback (most recent call last)" in said or "rlbox: bug:" in said:
        return f"{line}: {said[-1500:]}"
    if code not in DOCUMENTED:
        return f"{line}: exit code {code}: {said[-500:]}"
    if code in (2, 4, 5, 6, 8) and not said.strip():
        return f"{line}: exit code {code} without a word"
    return ""


def _refuse(*args: Any, **kwargs: Any) -> NoReturn:
    raise ConnectionRefusedError(111, "Connection refused")


def _no_program(*args: Any, **kwargs: Any) -> NoReturn:
    raise FileNotFoundError(2, "No such file or directory", "program")


def _late(number: int, frame: object) -> NoReturn:
    raise TimeoutError(f"took more than {MOST_S} s")


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Let this process start no other, reach nobody, end nobody, and stand in the project."""
    before = Path.cwd()
    with contextlib.ExitStack() as stack:
        for name in ("connect", "connect_ex"):
            stack.enter_context(mock.patch.object(socket.socket, name, _refuse))
        stack.enter_context(mock.patch.object(subprocess.Popen, "__init__", _no_program))
        for name in ("fork", "posix_spawn", "execv", "execve", "kill", "killpg"):
            stack.enter_context(mock.patch.object(os, name, _no_program))
        stack.enter_context(mock.patch("webbrowser.open", return_value=True))
        stack.enter_context(mock.patch("rlbox.report.live.LivePageServer.serve_forever", side_effect=KeyboardInterrupt))
        stack.callback(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, _late))
        stack.callback(os.chdir, before)
        yield


def type_here(line: Line, folder: Path, project: Path) -> str:
    """Type a line in this process; return what is wrong."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", write_through=True)
    os.chdir(project)
    code: object = None
    with (
        mock.patch.dict(os.environ, {**settings(folder), **line.env}, clear=True),
        mock.patch.object(sys, "stdin", open(os.devnull)),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
    ):
        signal.alarm(MOST_S)
        try:
            code = main(line.words)
        except BaseException as error:  # whatever it is, nobody may see it
            code = f"{type(error).__name__}: {error}"
        finally:
            signal.alarm(0)
    said = out.buffer.getvalue().decode("utf-8", "replace")  # type: ignore[attr-defined]
    if "rlbox: bug:" in said:
        logs = sorted((folder / "home/CACHE/rlbox/logs").glob("bug-*.log"))
        said += "".join(log.read_text()[-1200:] for log in logs)
    return judge(line, code, said)


def campaign(lines: int, seed: int) -> tuple[list[str], Counter[str]]:
    """Type so many lines; return what fell, and how often each verb was typed."""
    fell: list[str] = []
    told: Counter[str] = Counter()
    folder = Path(tempfile.mkdtemp(prefix="rlbox-lines-"))
    try:
        project = lay(folder)
        with _alone():
            for number in range(lines):
                line = Typist(seed * 1_000_003 + number).line()
                told[line.words[0] if line.words and line.words[0] in COMMANDS else ""] += 1
                if wrong := type_here(line, folder, project):
                    fell.append(f"line {number} of seed {seed}: {wrong}")
                    if len(fell) >= MOST_FELL:
                        break
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return fell, told


def carry_out() -> int:
    """Carry out a campaign from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    fell, told = campaign(asked.lines, asked.seed)
    print(*fell, f"{told.total()} command lines of seed {asked.seed}: {len(fell)} fell", sep="\n")
    return 1 if fell else 0


if __name__ == "__main__":
    raise SystemExit(carry_out())
