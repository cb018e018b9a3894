"""What a command really runs: `sudo env X=y timeout 9 bash -c "ray stop"` runs `ray stop`, with X set."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from rlbox.lint.read.shell import ASSIGNMENT, Pipeline
from rlbox.lint.read.text import Piece
from rlbox.lint.read.words import Word


@dataclass(frozen=True)
class Option:
    """An option as given: its name, its value and where both are; the value is empty when none follows."""

    name: str
    value: str
    word: Word
    value_word: Word | None

    @property
    def start(self) -> int:
        """Where it begins in the document."""
        return self.word.start


@dataclass(frozen=True, eq=False)
class Call:
    """A program with its words, out of whatever it was wrapped in.

    `within` says what it was taken out of: container, ssh, ray-job, entry (of an image), prose. `env` are the settings
    in front of it, `last` whether it ends its pipeline.
    """

    program: str
    words: tuple[Word, ...]  # without the program
    start: int
    pipeline: Pipeline
    index: int
    block: int
    within: frozenset[str] = frozenset()
    env: tuple[Word, ...] = ()
    redirects: tuple[tuple[str, Word], ...] = ()
    documents: tuple[Piece, ...] = ()
    outer: Call | None = field(default=None, repr=False)

    @property
    def last(self) -> bool:
        """Whether it ends its pipeline."""
        return self.index == len(self.pipeline.commands) - 1

    @cached_property
    def values(self) -> list[str]:
        """The words without their quotes."""
        return [word.value for word in self.words]

    @cached_property
    def text(self) -> str:
        """Program and words, joined by spaces."""
        return " ".join((self.program, *self.values))

    def options(self) -> Iterator[Option]:
        """Yield every word that begins with a dash, with its value if it has one."""
        for i, word in enumerate(self.words):
            if word.value.startswith("-") and len(word.value) > 1:
                name, equals, value = word.value.partition("=")
                after = self.words[i + 1] if i + 1 < len(self.words) else None
                if equals:
                    yield Option(name, value, word, word.cut(len(name) + 1))
                elif after and not after.value.startswith("-"):
                    yield Option(name, after.value, word, after)
                else:
                    yield Option(name, "", word, None)

    def option(self, *names: str) -> Option | None:
        """Return the first option with one of the names."""
        return next((option for option in self.options() if option.name in names), None)

    def has(self, *names: str) -> bool:
        """Whether an option with one of the names is given."""
        return self.option(*names) is not None


# Programs that run another one: options that take a value, and how many plain words come before the command.
_WRAPPERS: dict[str, tuple[str, int]] = {
    "sudo": ("-u -g -h -p -C -D -R -T", 0),
    "doas": ("-u", 0),
    "env": ("-u -C", 0),
    "nohup": ("", 0),
    "time": ("-f -o", 0),
    "exec": ("-a", 0),
    "command": ("", 0),
    "builtin": ("", 0),
    "timeout": ("-k -s", 1),
    "stdbuf": ("-i -o -e", 0),
    "nice": ("-n", 0),
    "ionice": ("-c -n", 0),
    "setsid": ("", 0),
    "unbuffer": ("", 0),
    "xargs": ("-I -n -P -d -L -a -s", 0),
    "numactl": ("-C -m -N -i -p", 0),
    "srun": ("-n -N -c -p -w -J -t -A -G -D -o -e -x", 0),
    "mpirun": ("-n -np -H -x -hostfile -host -N -mca", 0),
    "mpiexec": ("-n -np -H -x -f", 0),
    "tini": ("-p -e", 0),
    "dumb-init": ("-r", 0),
    "gosu": ("", 1),
    "chroot": ("", 1),
    "watch": ("-n", 0),
    "uv run": ("-p --python --with --project --directory --extra --group --env-file", 0),
    "poetry run": ("", 0),
    "pipenv run": ("", 0),
    "pdm run": ("", 0),
    "conda run": ("-n -p --name --prefix --cwd", 0),
    "mamba run": ("-n -p --name --prefix --cwd", 0),
    "micromamba run": ("-n -p --name --prefix --cwd", 0),
    "ssh": ("-p -i -o -l -F -J -L -R -D -b -c -m -w -S -E -B -I -Q -W", 1),
    "docker exec": ("-e -u -w --env --user --workdir --env-file --detach-keys", 1),
    "docker compose exec": ("-e -u -w -f --env --user --workdir --index", 1),
    "kubectl exec": ("-n -c --namespace --container", 1),
    "ray job submit": (
        "--address --working-dir --runtime-env --runtime-env-json --job-id --submission-id --entrypoint-num-cpus"
        " --entrypoint-num-gpus --entrypoint-memory --entrypoint-resources --metadata-json --log-style --log-color"
        " --headers --verify",
        0,
    ),
}
_MARKS = {"docker exec": "container", "docker compose exec": "container", "kubectl exec": "container"}
_MARKS |= {"ray job submit": "ray-job", "uv run": "uv-run", "ssh": "ssh"}
_TWO_WORDS = {name.split()[0] for name in _WRAPPERS if " " in name}
_SHELLS = {"bash", "sh", "zsh", "dash", "ash", "ksh"}
_RUN_FLAGS = {
    *("--rm", "--privileged", "--init", "--detach", "--interactive", "--tty", "--read-only", "--no-healthcheck"),
    *("--publish-all", "--oom-kill-disable", "--quiet", "--disable-content-trust", "--sig-proxy"),
}
_BUILTIN_PROGRAMS = {"podman": "docker", "nerdctl": "docker", "docker-compose": "docker compose", "pip3": "pip"}
_DEEPEST = 20
_LOOKED_UP = re.compile(r"(?:\$\(|`)(?:which|command -v)\s+([\w.-]+)(?:\)|`)$")
_DEFAULT = re.compile(r"\$\{\w+:?-([^}]*)\}$")


def calls_of(pipeline: Pipeline, block: int, within: frozenset[str]) -> Iterator[Call]:
    """Yield what each command of a pipeline runs, the wrapping before the wrapped; texts of `bash -c` are not read."""
    for index, command in enumerate(pipeline.commands):
        if not command.words or command.array:
            continue
        program, words = name_program(command.words)
        yield from unwrap(
            Call(
                program,
                words,
                command.words[0].start,
                pipeline,
                index,
                block,
                within,
                tuple(command.assigns),
                tuple(command.redirects),
                tuple(command.documents),
            )
        )


def name_program(words: Sequence[Word]) -> tuple[str, tuple[Word, ...]]:
    """Return the program in its shortest name (`python -m vllm`, `pip`, `docker run`) and the words behind it."""
    first = words[0].value
    if hit := _DEFAULT.match(first):
        first = hit.group(1)
    if hit := _LOOKED_UP.match(first):
        first = hit.group(1)
    name = first.rsplit("/", 1)[-1]
    name = re.sub(r"^(python|pip)[23](\.\d+)?$", r"\1", _BUILTIN_PROGRAMS.get(name, name))
    rest = tuple(words[1:])
    if name == "python" and rest and re.fullmatch(r"-m[A-Za-z].*", rest[0].value):
        return name_module(rest[0].value[2:]), rest[1:]
    if name == "python" and "-m" in (values := [word.value for word in rest[:6]]):
        at = values.index("-m")
        if at + 1 < len(rest) and all(value.startswith("-") for value in values[:at]):
            return name_module(rest[at + 1].value), rest[at + 2 :]
    if name == "uv" and rest and rest[0].value == "pip":
        return "pip", rest[1:]
    if name in _TWO_WORDS and rest:
        return _subcommand(name, rest)
    return name, rest


def name_module(module: str) -> str:
    """Return the program that `python -m module` is."""
    return "pip" if module == "pip" else f"python -m {module}"


def _subcommand(name: str, rest: tuple[Word, ...]) -> tuple[str, tuple[Word, ...]]:
    while rest and re.fullmatch(r"[a-z][a-z-]*", rest[0].value) and len(name.split()) < 3:
        longer = f"{name} {rest[0].value}"
        if len(name.split()) == 2 and longer not in _WRAPPERS and name not in ("docker compose", "conda env"):
            break
        name, rest = longer, rest[1:]
    return name, rest


def unwrap(call: Call, depth: int = 0) -> Iterator[Call]:
    """Yield a call and those that it wraps."""
    yield call
    if depth == _DEEPEST:
        return
    if call.program == "docker run":
        _, image, rest = split_run(call)
        inner = rest if image else ()
    elif call.program in _WRAPPERS:
        inner = _behind(call)
    else:
        return
    env = list(call.env)
    while inner and (hit := ASSIGNMENT.match(inner[0].value)) and hit.end():
        env.append(inner[0])
        inner = inner[1:]
    if inner and not re.search(r"\s", inner[0].value):  # a text is read as shell, not as a program's name
        program, words = name_program(inner)
        mark = "container" if call.program == "docker run" else _MARKS.get(call.program)
        within = call.within | {mark} if mark else call.within
        inside = replace(
            call, program=program, words=words, start=inner[0].start, within=within, env=tuple(env), outer=call
        )
        yield from unwrap(inside, depth + 1)


def _behind(call: Call) -> tuple[Word, ...]:
    """Return the command that a wrapper runs."""
    values, plain = _WRAPPERS[call.program]
    taking, words = set(values.split()), call.words
    i = 0
    while i < len(words):
        value = words[i].value
        if value == "--":
            return words[i + 1 :]
        if value.startswith("-") and len(value) > 1:
            i += 1 + (value in taking)
        elif plain and not ASSIGNMENT.match(value):
            plain, i = plain - 1, i + 1
        else:
            return words[i:]
    return ()


def split_run(call: Call) -> tuple[list[Option], Word | None, tuple[Word, ...]]:
    """Return the options, the image and the command of a `docker run`."""
    options: list[Option] = []
    words, i = call.words, 0
    while i < len(words):
        word = words[i]
        value = word.value
        if not value.startswith("-"):
            return options, word, words[i + 1 :]
        i += 1
        name, equals, given = value.partition("=")
        if equals:
            options.append(Option(name, given, word, word.cut(len(name) + 1)))
        elif value in _RUN_FLAGS or re.fullmatch(r"-[ditPq]+", value):
            options.append(Option(value, "", word, None))
        elif re.fullmatch(r"-[epvwuhlmc]\S.*", value, re.DOTALL):
            options.append(Option(value[:2], value[2:], word, word.cut(2)))
        elif i < len(words):
            options.append(Option(value, words[i].value, word, words[i]))
            i += 1
    return options, None, ()


def shell_texts(call: Call) -> Iterator[tuple[Word, str]]:
    """Yield the words of a call that are shell text themselves, each with what it runs in (empty: here)."""
    program, words = call.program, call.words
    if program in _SHELLS or program == "su":
        for i, word in enumerate(words[:-1]):
            if re.fullmatch(r"-[a-z]*c", word.value):
                yield words[i + 1], ""
                return
    elif program in ("eval", "watch"):
        yield from ((word, "") for word in words if " " in word.value)
    elif program in ("ssh", "pdsh", "clush", "parallel-ssh"):
        yield from ((word, "ssh") for word in words if re.search(r"^(?!-|[A-Za-z]+=).*\s", word.value, re.DOTALL))
    elif program in ("tmux", "screen", "script", "flock"):
        yield from ((word, "tmux") for word in words if " " in word.value)
    elif program == "ray job submit":
        rest = _behind(call)
        if len(rest) == 1 and " " in rest[0].value:
            yield rest[0], "ray-job"
