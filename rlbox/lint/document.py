"""What a document sets, runs and names.

A command is taken out of its wrappers: `sudo env X=y timeout 9 bash -c "ray stop"` runs `ray stop`, with X set.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from rlbox.lint.shell import ASSIGNMENT, Pipeline, Stray, Word
from rlbox.lint.text import Lines, Piece


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
_DEEPEST_CALL = 20
_LOOKED_UP = re.compile(r"(?:\$\(|`)(?:which|command -v)\s+([\w.-]+)(?:\)|`)$")
_DEFAULT = re.compile(r"\$\{\w+:?-([^}]*)\}$")


def parse_calls(pipeline: Pipeline, block: int, within: frozenset[str]) -> Iterator[Call]:
    """Yield what each command of a pipeline runs, the wrapping before the wrapped; texts of `bash -c` are not read."""
    for index, command in enumerate(pipeline.commands):
        if not command.words or command.array:
            continue
        program, words = normalize_program(command.words)
        yield from unwrap_call(
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


def normalize_program(words: Sequence[Word]) -> tuple[str, tuple[Word, ...]]:
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
        return get_module_program(rest[0].value[2:]), rest[1:]
    if name == "python" and "-m" in (values := [word.value for word in rest[:6]]):
        at = values.index("-m")
        if at + 1 < len(rest) and all(value.startswith("-") for value in values[:at]):
            return get_module_program(rest[at + 1].value), rest[at + 2 :]
    if name == "uv" and rest and rest[0].value == "pip":
        return "pip", rest[1:]
    if name in _TWO_WORDS and rest:
        return _subcommand(name, rest)
    return name, rest


def get_module_program(module: str) -> str:
    """Return the program that `python -m module` is."""
    return "pip" if module == "pip" else f"python -m {module}"


def _subcommand(name: str, rest: tuple[Word, ...]) -> tuple[str, tuple[Word, ...]]:
    while rest and re.fullmatch(r"[a-z][a-z-]*", rest[0].value) and len(name.split()) < 3:
        longer = f"{name} {rest[0].value}"
        if len(name.split()) == 2 and longer not in _WRAPPERS and name not in ("docker compose", "conda env"):
            break
        name, rest = longer, rest[1:]
    return name, rest


def unwrap_call(call: Call, depth: int = 0) -> Iterator[Call]:
    """Yield a call and those that it wraps."""
    yield call
    if depth == _DEEPEST_CALL:
        return
    if call.program == "docker run":
        _, image, rest = parse_docker_run(call)
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
        program, words = normalize_program(inner)
        mark = "container" if call.program == "docker run" else _MARKS.get(call.program)
        within = call.within | {mark} if mark else call.within
        inside = replace(
            call, program=program, words=words, start=inner[0].start, within=within, env=tuple(env), outer=call
        )
        yield from unwrap_call(inside, depth + 1)


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


def parse_docker_run(call: Call) -> tuple[list[Option], Word | None, tuple[Word, ...]]:
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


def find_shell_texts(call: Call) -> Iterator[tuple[Word, str]]:
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


HERE: frozenset[str] = frozenset()
_DEEPEST = 6
_LONGEST_EXPANSION = 10_000


@dataclass(frozen=True)
class Setting:
    """A variable and the value it gets; `how` says where: shell, word, python, dockerfile, yaml, …"""

    name: str
    value: str
    start: int
    how: str
    block: int
    within: frozenset[str] = HERE


@dataclass(frozen=True)
class Image:
    """An image that is built on or run."""

    name: str
    start: int
    within: frozenset[str] = HERE


@dataclass(frozen=True)
class Snippet:
    """Python that was understood; `how` is file, -c or stdin, `piece` its text, `call` what runs it."""

    tree: ast.Module
    piece: Piece
    lines: Lines
    how: str
    call: Call | None = None

    def start(self, node: ast.expr | ast.stmt) -> int:
        """Return where a node begins in the document."""
        before = self.lines.line(node.lineno).encode()[: node.col_offset]
        offset = self.lines.starts[node.lineno - 1] + len(before.decode("utf-8", "ignore"))
        return self.piece.at[min(offset, len(self.piece.text))]


class VariableTable:
    """The values of shell variables, as far as the document gives them."""

    def __init__(self) -> None:
        self._values: dict[str, list[tuple[int, str]]] = {}

    def note(self, name: str, value: str, start: int) -> None:
        """Remember that `name` gets `value` at `start`."""
        self._values.setdefault(name, []).append((start, value))

    def value(self, name: str, before: int) -> str | None:
        """Return the value that `name` has at an offset: the last one given above, else the first one below."""
        found = self._values.get(name)
        if not found:
            return None
        above = [value for start, value in found if start < before]
        return above[-1] if above else found[0][1]

    def resolve(self, text: str, before: int, depth: int = 0) -> str:
        """Return `text` with every variable that is known put in."""
        if ("$" not in text and "{" not in text) or depth > _DEEPEST:
            return text

        def put(hit: re.Match[str]) -> str:
            name = hit["plain"] or hit["braced"] or hit["field"]
            value = self.value(name, before)
            value = hit["default"] if value is None and hit["default"] is not None else value
            own = re.fullmatch(rf"\$\{{{name}:?[-=]([^{{}}]*)\}}", value or "")
            value = own.group(1) if own else value
            if value is None or len(value) > _LONGEST_EXPANSION or value == hit.group():
                return hit.group()
            return self.resolve(value, before, depth + 1) if f"${name}" not in value else value

        return _EXPANSION.sub(put, text)[:_LONGEST_EXPANSION]


_EXPANSION = re.compile(
    r"\$(?P<plain>\w+)|\$\{(?P<braced>\w+)(?::?[-=](?P<default>[^{}]*))?\}|(?<!\$)\{(?P<field>(?:port|param|env)\.\w+)\}"
)


@dataclass
class Document:
    """Everything of one file that rules look at."""

    name: str
    kind: str
    text: str
    lines: Lines
    settings: list[Setting] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    strays: list[Stray] = field(default_factory=list)
    snippets: list[Snippet] = field(default_factory=list)
    images: list[Image] = field(default_factory=list)
    strings: list[Word] = field(default_factory=list)  # values of data files
    patterns: list[Word] = field(default_factory=list)  # regular expressions of data files
    flags: list[tuple[str, int]] = field(default_factory=list)  # what stands there, as `syntax` or a key that is true
    pins: dict[str, str] = field(default_factory=dict)  # versions that it installs itself
    reads: set[str] = field(default_factory=set)  # variables that the document reads itself
    names: VariableTable = field(default_factory=VariableTable)

    def says(self, pattern: str) -> bool:
        """Whether the text of the document, prose and comments included, has the pattern."""
        return re.search(pattern, self.text, re.IGNORECASE) is not None

    @cached_property
    def places(self) -> dict[tuple[int, int], list[Call]]:
        """The calls of each command, the wrapping first, by identity of the pipeline and place in it."""
        found: dict[tuple[int, int], list[Call]] = {}
        for call in self.calls:
            found.setdefault((id(call.pipeline), call.index), []).append(call)
        return found

    @cached_property
    def by_program(self) -> dict[str, list[Call]]:
        """The calls by the first word of their program."""
        found: dict[str, list[Call]] = {}
        for call in self.calls:
            found.setdefault(call.program.partition(" ")[0], []).append(call)
        return found

    def before(self, call: Call) -> list[Call]:
        """Return what is run in front of a call in its pipeline, the wrapping first."""
        return self.places.get((id(call.pipeline), call.index - 1), [])

    def called(self, *programs: str) -> Iterator[Call]:
        """Yield the calls of programs."""
        first = dict.fromkeys(program.partition(" ")[0] for program in programs)
        return (call for word in first for call in self.by_program.get(word, ()) if call.program in programs)

    def value(self, option: Option) -> str:
        """Return an option's value with known variables put in."""
        return self.names.resolve(option.value, option.start)
