"""What a file sets, runs and names, gathered from its shell text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

from rlbox.lint.calls import ASSIGNMENT, Call, find_docker_image_index, find_words_with_shell_code, unwrap_program_calls
from rlbox.lint.shell import Command, Position, Source, Word, parse_shell_commands

NO_CONTEXT_TAGS: frozenset[str] = frozenset()
_DEEPEST = 6
_LONGEST_EXPANSION = 10_000  # characters, or words
# `NAME=value` and `"NAME": "value"` anywhere in a word: `-e X=y`, `--export=ALL,X=y`, `{"env_vars": {"X": "y"}}`.
_SET = re.compile(
    r"(?<![\w$-])(?P<name>[A-Z][A-Z0-9]*_\w+)(?:=(?!=)|[\"']\s*:\s*)[\"']?(?P<value>(?:\$\{\w+[^}]*\}|[^\s,;\"'}])*)"
)
_DEFAULTED = re.compile(r"\$\{(?P<name>[A-Z]\w+):?=(?P<value>[^}]*)\}")
_READ = re.compile(r"\$\{?([A-Za-z_]\w*)")
_ARRAY = re.compile(r"\$\{?(\w+)(?:\[[@*]\])?\}?")
_PIN = re.compile(r"([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==([\w.]+)")
_IGNORE = re.compile(r"rlbox:\s*ignore=([\w-]+(?:\s*,\s*[\w-]+)*)")
# Programs whose words show or search text instead of setting anything.
_SHOWING = re.compile(r"(?s)echo|printf|cat|[efz]?grep|rg|ag|sed|g?awk|unset|test|\[.*|ls|which|find|head|tail|less")
_DECLARING = {"export", "declare", "typeset", "local", "readonly", "env"}
_VARIABLE = re.compile(r"\$(?P<plain>\w+)|\$\{(?P<braced>\w+)(?::?[-=](?P<default>[^{}]*))?\}")

SetBy = Literal["shell", "prefix", "export", "word", "dockerfile", "data"]


class VariableSetting(NamedTuple):
    name: str
    value: str
    position: Position
    set_by: SetBy
    context_tags: frozenset[str] = NO_CONTEXT_TAGS


@dataclass
class Document:
    name: str
    text: str
    shells: list[Source] = field(default_factory=list)  # texts that a shell of its own runs
    settings: list[VariableSetting] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    images: list[Word] = field(default_factory=list)
    pins: dict[str, str] = field(default_factory=dict)  # versions that it installs itself
    variables_read: set[str] = field(default_factory=set)  # variables that the document reads itself
    values: dict[str, list[tuple[Position, str]]] = field(default_factory=dict)  # of variables
    pipefail_by_default: bool = False
    _arrays: dict[str, list[Word]] = field(default_factory=dict)
    _pipefail: bool = False

    @cached_property
    def lines(self) -> list[str]:
        return self.text.split("\n")

    def get_ignored_rules(self, line_number: int) -> set[str]:
        """Return the rules that a comment on a line, or one alone on the line above, switches off for it."""
        above = self.lines[line_number - 2] if line_number > 1 else ""
        comments = self.lines[line_number - 1] + (above if re.match(r"\s*(?:#|//|<!--)", above) else "")
        return {rule.strip() for rules in _IGNORE.findall(comments) for rule in rules.split(",")}

    def expand_variables(self, text: str, set_preferably_before: Position, depth: int = 0) -> str:
        """Return `text` with every variable put in that is known at a place."""
        if "$" not in text or depth > _DEEPEST:
            return text

        def put(match: re.Match[str]) -> str:
            name = match["plain"] or match["braced"]
            values = self.values.get(name, [])
            above = [value for position, value in values if position < set_preferably_before]
            value = above[-1] if above else values[0][1] if values else match["default"]
            if own := re.fullmatch(rf"\$\{{{name}:?[-=]([^{{}}]*)\}}", value or ""):
                value = own[1]
            if value is None or len(value) > _LONGEST_EXPANSION or value == match.group():
                return match.group()
            return value if f"${name}" in value else self.expand_variables(value, set_preferably_before, depth + 1)

        return _VARIABLE.sub(put, text)[:_LONGEST_EXPANSION]

    def add_variable_value(self, name: str, value: str, position: Position) -> None:
        self.values.setdefault(name, []).append((position, value))

    def set_variable(
        self, name: str, value: str, position: Position, set_by: SetBy, context_tags: frozenset[str] = NO_CONTEXT_TAGS
    ) -> None:
        self.settings.append(VariableSetting(name, value, position, set_by, context_tags))
        self.add_variable_value(name, value, position)

    def add_version_pins(self, words: Iterable[str]) -> None:
        self.pins.update({pin[1]: pin[2] for word in words if (pin := _PIN.match(word))})

    def add_shell_code(self, source: Source, context_tags: frozenset[str] = NO_CONTEXT_TAGS, depth: int = 0) -> None:
        """Add shell text; text that no other stands in is a shell of its own."""
        if depth == 0:
            self.shells.append(source)
            self._arrays = {}
            self._pipefail = self.pipefail_by_default or "pipefail" in source.text.partition("\n")[0]
        for command in parse_shell_commands(source) if depth <= _DEEPEST else ():
            self._add_command(command, context_tags, depth)

    def add_argv_unless_options(self, words: Sequence[Word], context_tags: frozenset[str] = NO_CONTEXT_TAGS) -> None:
        if words and (not words[0].text.startswith("-") or any(" " in word.text for word in words)):
            text = " ".join(word.text for word in words)
            self._add_command(Command(Source(text, words[0].position), words=[*words]), context_tags)

    def _add_command(self, command: Command, context_tags: frozenset[str], depth: int = 0) -> None:
        self._add_assignments(command, context_tags)
        expanded = replace(command, words=self._expanded(command))
        context_tags |= {"pipefail"} if self._pipefail else NO_CONTEXT_TAGS
        calls = list(unwrap_program_calls(expanded, context_tags))
        for call in calls:
            if call.outer is None:
                self._add_words(call, calls[-1].program)
            self._add_call(call, depth)

    def _expanded(self, command: Command) -> list[Word]:
        """Return the words with `"${ARGS[@]}"` and an unquoted `$ARGS` replaced by those they stand for."""
        words: list[Word] = []
        for word in command.words:
            array = _ARRAY.fullmatch(word.text) if self._arrays and not command.array_name else None
            is_known = array is not None and array[1] in self._arrays and len(words) < _LONGEST_EXPANSION
            words += self._arrays[array[1]] if array and is_known else [word]
        return words

    def _add_assignments(self, command: Command, context_tags: frozenset[str]) -> None:
        for word in command.assignments:
            if assignment := ASSIGNMENT.match(word.text):
                name, value = assignment[1], word.text[assignment.end() :]
                how: SetBy = "prefix" if command.words and not command.array_name else "shell"
                self._assign(word, assignment, how, context_tags)
                for inner in _SET.finditer(word.text, assignment.end()):  # JSON of a runtime environment
                    row = word.raw.count("\n", 0, max(word.raw.find(inner["name"]), 0))
                    position = Position(word.position.line + row, word.position.column)
                    self.set_variable(inner["name"], inner["value"], position, "word", context_tags)
                if not command.array_name and value.startswith("-") and " " in value:
                    parts = re.findall(r"[^\s\"']+", value)
                    self._arrays[name] = [Word(part, part, word.position) for part in parts]
        if command.array_name:
            is_longer = "+=" in command.assignments[0].raw.partition("(")[0]
            before = self._arrays.get(command.array_name, []) if is_longer else []
            self._arrays[command.array_name] = before + command.words

    def _assign(self, word: Word, assignment: re.Match[str], how: SetBy, context_tags: frozenset[str]) -> None:
        value = word.text[assignment.end() :]
        self.set_variable(assignment[1], value, word.position, how, context_tags)
        self.variables_read.update(name for name in _READ.findall(value) if name != assignment[1])

    def _add_words(self, call: Call, innermost: str) -> None:
        """Add what the words of a call set and read; what is only shown or searched sets nothing."""
        for word in call.words:
            if call.program in _DECLARING and (assignment := ASSIGNMENT.match(word.text)):
                self._assign(word, assignment, "export", call.context_tags)
            elif not _SHOWING.fullmatch(innermost):
                settings = [*_SET.finditer(word.text), *_DEFAULTED.finditer(word.text)]
                own = {match["name"] for match in settings}
                self.variables_read.update(name for name in _READ.findall(word.text) if name not in own)
                for match in settings:
                    self.set_variable(match["name"], match["value"], word.position, "word", call.context_tags)

    def _add_call(self, call: Call, depth: int) -> None:
        self.calls.append(call)
        self._pipefail = self._pipefail or (call.program == "set" and "pipefail" in call.word_texts)
        if call.program in ("docker run", "docker create", "docker pull"):
            image = find_docker_image_index(call)
            if image is not None and f" -t {call.words[image].text} " not in self.text:  # it is built here
                name = self.expand_variables(call.words[image].text, call.position)
                self.images.append(call.words[image]._replace(text=name))
        for word, context_tags in find_words_with_shell_code(call):
            self.add_shell_code(word.to_source_inside_quotes(), call.context_tags | context_tags, depth + 1)
        if call.program == "pip":
            self.add_version_pins(call.word_texts)
        for document in call.command.here_documents:  # OpenRLHF's scripts put the words of a command into a variable
            if call.program in ("bash", "sh", "ssh", "su", "zsh") or document.text.lstrip().startswith("openrlhf.cli."):
                self.add_shell_code(document, call.context_tags, depth + 1)
