"""Programs with their arguments: `sudo env X=y timeout 9 bash -c "ray stop"` runs `ray stop`, with X set."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from rlbox.config.toml_files import load_toml
from rlbox.lint.shell import Command, Position, Word
from rlbox.target.engine_images import get_server_command_or_empty

_PROGRAMS: dict[str, Any] = load_toml(Path(__file__).with_name("programs.toml"))
_WRAPPERS: dict[str, dict[str, Any]] = _PROGRAMS["wrapper"]
_DOCKER_FLAGS = frozenset(_PROGRAMS["docker"]["flags"].split())
_WITH_COMMANDS = {name.split()[0] for name in _WRAPPERS if " " in name} | {"vastai", "vllm", "hf"}
_WITH_THREE_WORDS = ("docker compose", "conda env", "ray job")
_LAUNCHERS = ("torchrun", "deepspeed", "accelerate", "python -m torch.distributed.run")
_OTHER_NAMES = {"podman": "docker", "nerdctl": "docker", "docker-compose": "docker compose", "pip3": "pip"}
_SHELLS = {"bash", "sh", "zsh", "dash", "ash", "ksh", "su"}
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[^\]]*\])?\+?=")
_KEY_VALUE = re.compile(r"([\w.+~-]*[\w+])=(.*)", re.DOTALL)


class Argument(NamedTuple):
    """An option (`--name value`, `--name=value`, `--name`) or an override (`name=value`); `value` may be empty."""

    name: str
    value: str
    position: Position
    has_value: bool = True


@dataclass(frozen=True, eq=False)
class Call:
    """A program with its words; `outer` is what it is wrapped in.

    `context_tags` say where and how it runs: container, ssh, ray-job, entry (of an image), and those of its command.
    """

    program: str
    words: tuple[Word, ...]  # without the program
    position: Position
    command: Command
    context_tags: frozenset[str] = frozenset()
    outer: Call | None = field(default=None, repr=False)

    @cached_property
    def word_texts(self) -> list[str]:
        return [word.text for word in self.words]

    @cached_property
    def unquoted_command_line(self) -> str:
        return " ".join((self.program, *self.word_texts))

    @cached_property
    def arguments(self) -> list[Argument]:
        arguments = []
        for i, word in enumerate(self.words):
            name, equals, value = word.text.partition("=")
            after = self.words[i + 1].text if i + 1 < len(self.words) else "-"
            if word.text.startswith("-") and len(word.text) > 1:
                takes_next = not equals and not re.match(r"-(?!\d)", after)
                has_value = bool(equals) or takes_next
                arguments.append(Argument(name, after if takes_next else value, word.position, has_value))
            elif override := _KEY_VALUE.fullmatch(word.text):
                arguments.append(Argument(override[1], override[2], word.position))
        return arguments

    def find_first_argument(self, *names: str) -> Argument | None:
        return next((argument for argument in self.arguments if argument.name in names), None)


def unwrap_program_calls(command: Command, outer_context_tags: frozenset[str]) -> Iterator[Call]:
    """Yield what a command runs, the wrapping before the wrapped; texts of `bash -c` are not read."""
    outer_context_tags |= command.exit_status_use_tags
    words = () if command.array_name else tuple(command.words)
    call: Call | None = None
    while words and not (call and re.search(r"\s", words[0].text)):  # a text is read as shell, not as a program's name
        program, rest = _normalize_program(words)
        position = words[0].position if call else (command.assignments or words)[0].position
        call = Call(program, rest, position, command, outer_context_tags, outer=call)
        yield call
        mark = "container entry" if program == "docker run" else _WRAPPERS.get(program, {}).get("mark", "")
        outer_context_tags |= set(mark.split())
        words = get_wrapped_command_words(call)
        while words and ASSIGNMENT.match(words[0].text):
            words = words[1:]


def _normalize_program(words: Sequence[Word]) -> tuple[str, tuple[Word, ...]]:
    """Return the program in its shortest name (`python -m vllm`, `pip`, `docker run`) and the words behind it."""
    name = words[0].text.rsplit("/", 1)[-1]
    name = re.sub(r"^(python|pip)[23](\.\d+)?$", r"\1", _OTHER_NAMES.get(name, name))
    name = re.sub(r"^openrlhf\.cli\.", r"python -m \g<0>", name)
    rest = tuple(words[1:])
    if name == "python":
        return _python_module(rest)
    if name == "uv" and rest and rest[0].text == "pip":
        return "pip", rest[1:]
    while name.split(" ")[0] in _WITH_COMMANDS and rest and re.fullmatch(r"[a-z][a-z-]*", rest[0].text):
        if name.count(" ") == 2 or (" " in name and not name.startswith(("vastai ", *_WITH_THREE_WORDS))):
            break
        name, rest = f"{name} {rest[0].text}", rest[1:]
    return name, rest


def _python_module(words: tuple[Word, ...]) -> tuple[str, tuple[Word, ...]]:
    """Return `python -m MODULE` as the program where the words begin with -m, behind other options."""
    for i, word in enumerate(words[:6]):
        if word.text == "-m" and i + 1 < len(words):
            module = words[i + 1].text
            return "pip" if module == "pip" else f"python -m {module}", words[i + 2 :]
        if not word.text.startswith("-"):
            break
    return "python", words


def get_wrapped_command_words(call: Call) -> tuple[Word, ...]:
    """Return the command that a wrapper, a launcher of Python or `docker run` runs; nothing for other programs."""
    if call.program == "docker run":
        if (image := find_docker_image_index(call)) is None:
            return ()
        is_replaced = any(text.startswith("--entrypoint") for text in call.word_texts[:image])
        return put_server_command_before("" if is_replaced else call.words[image].text, call.words[image + 1 :])
    if call.program in _LAUNCHERS:
        return _launched(call.words)
    wrapper = _WRAPPERS.get(call.program)
    if wrapper is None:
        return ()
    with_value, plain = wrapper.get("options", "").split(), wrapper.get("words", 0)
    i = 0
    while i < len(call.words):
        text = call.words[i].text
        if text == "--":
            return call.words[i + 1 :]
        if text.startswith("-") and len(text) > 1:
            i += 1 + (text in with_value)
        elif plain and not ASSIGNMENT.match(text):
            plain, i = plain - 1, i + 1
        else:
            return call.words[i:]
    return ()


def put_server_command_before(image: str, arguments: tuple[Word, ...]) -> tuple[Word, ...]:
    """Return what a container of the image runs: the server of its entrypoint with these arguments, or these alone."""
    command = get_server_command_or_empty(image, arguments[0].text) if arguments else ()
    return (*(Word(text, text, arguments[0].position) for text in command), *arguments)


def _launched(words: tuple[Word, ...]) -> tuple[Word, ...]:
    for i, word in enumerate(words):
        if word.text in ("-m", "--module") or word.text.endswith(".py"):
            python = Word("python", "python", word.position)
            module = word if word.text.endswith(".py") else word._replace(text="-m")
            return (python, module, *words[i + 1 :])
    return ()


def find_docker_image_index(docker_run_call: Call) -> int | None:
    i = 0
    while i < len(docker_run_call.words):
        text = docker_run_call.words[i].text
        if not text.startswith("-"):
            return i
        alone = "=" in text or text in _DOCKER_FLAGS or re.fullmatch(r"-[ditPq]+|-[epvwuhlmc]\S.*", text, re.DOTALL)
        i += 1 if alone else 2
    return None


def find_words_with_shell_code(call: Call) -> Iterator[tuple[Word, frozenset[str]]]:
    """Yield the words of a call that are shell text themselves, each with the context_tags of where it runs."""
    spaced = [word for word in call.words if " " in word.text]
    if call.program in _SHELLS:
        flags = [i for i, value in enumerate(call.word_texts[:-1]) if re.fullmatch(r"-[a-z]*c", value)]
        yield from ((call.words[i + 1], frozenset()) for i in flags[:1])
    elif call.program in ("eval", "watch", "tmux", "screen", "script", "flock"):
        yield from ((word, frozenset()) for word in spaced)
    elif call.program in ("ssh", "pdsh", "clush", "parallel-ssh"):
        yield from ((word, frozenset({"ssh"})) for word in spaced if not re.match(r"-|[A-Za-z]+=", word.text))
    elif call.program == "ray job submit":
        rest = get_wrapped_command_words(call)
        if len(rest) == 1 and rest[0] in spaced:
            yield rest[0], frozenset({"ray-job"})
