"""What a document sets, runs and names, gathered from its shell text and its Python."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from rlbox.lint.calls import ASSIGNMENT, Call, find_calls, image_position, shell_texts
from rlbox.lint.python_source import Mention, read_python
from rlbox.lint.shell import Command, Pipeline, Word, read_shell
from rlbox.lint.text import Fragment, LineIndex

HERE: frozenset[str] = frozenset()
PROSE = frozenset({"prose"})
_DEEPEST = 6
_LONGEST_EXPANSION = 10_000  # characters, or words
# `NAME=value` and `"NAME": "value"` anywhere in a word: `-e X=y`, `--export=ALL,X=y`, `{"env_vars": {"X": "y"}}`.
_SET = re.compile(
    r"(?<![\w$-])(?P<name>[A-Z][A-Z0-9]*_\w+)(?:=(?!=)|[\"']\s*:\s*)[\"']?(?P<value>(?:\$\{\w+[^}]*\}|[^\s,;\"'}])*)"
)
_DEFAULTED = re.compile(r"\$\{(?P<name>[A-Z]\w+):?=(?P<value>[^}]*)\}")
_READ = re.compile(r"\$\{?([A-Za-z_]\w*)")
_ARRAY = re.compile(r"\$\{?(\w+)(?:\[[@*]\])?\}?")
_POWERSHELL_SETTING = re.compile(r"\$\{?env:(\w+)\}?", re.IGNORECASE)
_PIN = re.compile(r"([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==([\w.]+)")
# Programs whose words show or search text instead of setting anything.
_SHOWING = re.compile(
    r"echo|printf|cat|[efz]?grep|rg|ag|sed|g?awk|unset|test|\[.*|ls|which|find|head|tail|less", re.DOTALL
)
_START_FILE = re.compile(
    r"(?:rc|profile|bash_profile|bash_aliases|zshenv|environment|\.env|\.sh|\.bash|\.conf|-env)[\"']?$", re.IGNORECASE
)
_DECLARING = {"export", "declare", "typeset", "local", "readonly", "env"}
_VARIABLE = re.compile(
    r"\$(?P<plain>\w+)|\$\{(?P<braced>\w+)(?::?[-=](?P<default>[^{}]*))?\}|(?<!\$)\{(?P<field>(?:port|param|env)\.\w+)\}"
)


@dataclass(frozen=True)
class Setting:
    """A variable and the value it gets; `how` says where: shell, word, python, dockerfile, data, …"""

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


@dataclass
class Document:
    """Everything of one file that rules look at; a block is a shell of its own."""

    name: str
    kind: str
    text: str
    settings: list[Setting] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    keywords: list[Mention] = field(default_factory=list)  # of calls in Python
    images: list[Image] = field(default_factory=list)
    strings: list[Fragment] = field(default_factory=list)  # values of data files
    patterns: list[Fragment] = field(default_factory=list)  # regular expressions of data files
    flags: list[tuple[str, int]] = field(default_factory=list)  # what stands there, as `syntax` or a key that is true
    pins: dict[str, str] = field(default_factory=dict)  # versions that it installs itself
    reads: set[str] = field(default_factory=set)  # variables that the document reads itself
    values: dict[str, list[tuple[int, str]]] = field(default_factory=dict)  # of variables, with the offsets
    block: int = 0
    pipefail_by_default: bool = False
    _arrays: dict[str, list[Word]] = field(default_factory=dict)
    _pipefail: bool = False
    _built_images: set[str] = field(default_factory=set)

    @cached_property
    def lines(self) -> LineIndex:
        return LineIndex(self.text)

    def contains(self, pattern: str) -> bool:
        """Whether the pattern is anywhere in the text, prose and comments included."""
        return re.search(pattern, self.text, re.IGNORECASE) is not None

    @cached_property
    def _calls_by_word(self) -> dict[str, list[Call]]:
        calls: dict[str, list[Call]] = {}
        for call in self.calls:
            calls.setdefault(call.program.partition(" ")[0], []).append(call)
        return calls

    def calls_of(self, *programs: str) -> Iterator[Call]:
        words = dict.fromkeys(program.partition(" ")[0] for program in programs)
        return (call for word in words for call in self._calls_by_word.get(word, ()) if call.program in programs)

    def calls_by_first_word(self, word: str) -> list[Call]:
        return self._calls_by_word.get(word, [])

    def calls_before(self, call: Call) -> list[Call]:
        """Return what is run in front of a call in its pipeline, the wrapping first."""
        return self._calls_by_place.get((id(call.pipeline), call.index - 1), [])

    @cached_property
    def _calls_by_place(self) -> dict[tuple[int, int], list[Call]]:
        calls: dict[tuple[int, int], list[Call]] = {}
        for call in self.calls:
            calls.setdefault((id(call.pipeline), call.index), []).append(call)
        return calls

    def resolve(self, text: str, before: int, depth: int = 0) -> str:
        """Return `text` with every variable that is known at an offset put in."""
        if ("$" not in text and "{" not in text) or depth > _DEEPEST:
            return text

        def put(match: re.Match[str]) -> str:
            name = match["plain"] or match["braced"] or match["field"]
            values = self.values.get(name, [])
            above = [value for start, value in values if start < before]
            value = above[-1] if above else values[0][1] if values else match["default"]
            if own := re.fullmatch(rf"\$\{{{name}:?[-=]([^{{}}]*)\}}", value or ""):
                value = own[1]
            if value is None or len(value) > _LONGEST_EXPANSION or value == match.group():
                return match.group()
            return value if f"${name}" in value else self.resolve(value, before, depth + 1)

        return _VARIABLE.sub(put, text)[:_LONGEST_EXPANSION]

    def add_value(self, name: str, value: str, start: int) -> None:
        self.values.setdefault(name, []).append((start, value))

    def add_setting(self, name: str, value: str, start: int, how: str, within: frozenset[str] = HERE) -> None:
        self.settings.append(Setting(name, value, start, how, self.block, within))
        self.add_value(name, value, start)

    def add_pins(self, words: Iterable[str]) -> None:
        self.pins.update({pin[1]: pin[2] for word in words if (pin := _PIN.match(word))})

    def add_shell(self, source: Fragment, within: frozenset[str] = HERE, depth: int = 0) -> None:
        """Add shell text; text that no other stands in begins a block."""
        if depth == 0:
            self.block += 1
            shebang = source.text.partition("\n")[0]
            self._arrays, self._pipefail = {}, self.pipefail_by_default or "pipefail" in shebang
        if depth > _DEEPEST:
            return
        script = read_shell(source)
        if not within & {"prose", "powershell"}:
            self.flags.extend(("backtick", offset) for offset in script.continuations)
        for pipeline in script.pipelines:
            self._add_pipeline(pipeline, within, depth)

    def add_argv(self, words: list[Word], within: frozenset[str] = HERE) -> None:
        """Add a command that is given as a list of words."""
        if words and not words[0].text.startswith("-"):
            self.block += 1
            source = Fragment(" ".join(map(shlex.quote, (word.text for word in words))), words[0].offsets)
            self._add_pipeline(Pipeline([Command(words)], source), within, 0)

    def add_python(self, source: Fragment, within: frozenset[str] = HERE) -> None:
        for mention in read_python(source):
            if mention.kind in ("setting", "late-setting"):
                how = "python-late" if mention.kind == "late-setting" else "python"
                self.add_setting(mention.name, mention.value, mention.start, how, within)
            elif mention.kind == "command":
                offsets = [mention.start] * (len(mention.value) + 1)
                self.add_shell(Fragment(mention.value, offsets), within, depth=1)
            elif mention.kind == "read":
                self.reads.add(mention.name)
            else:
                self.keywords.append(mention)

    def _add_pipeline(self, pipeline: Pipeline, within: frozenset[str], depth: int) -> None:
        for command in pipeline.commands:
            self._add_assignments(command, within)
        expanded = [replace(command, words=self._expanded(command)) for command in pipeline.commands]
        pipeline = Pipeline(expanded, pipeline.source, pipeline.marks)
        calls = list(find_calls(pipeline, within | ({"pipefail"} if self._pipefail else HERE)))
        innermost = {call.index: call.program for call in calls}
        for call in calls:
            if call.outer is None:
                self._add_words(call, innermost[call.index])
            self._add_call(call, depth)

    def _expanded(self, command: Command) -> list[Word]:
        """Return the words with `"${ARGS[@]}"` and an unquoted `$ARGS` replaced by those they stand for."""
        words: list[Word] = []
        for word in command.words:
            array = _ARRAY.fullmatch(word.text) if self._arrays and not command.array else None
            is_known = array is not None and array[1] in self._arrays and len(words) < _LONGEST_EXPANSION
            words += self._arrays[array[1]] if array and is_known else [word]
        return words

    def _add_assignments(self, command: Command, within: frozenset[str]) -> None:
        for word in command.assignments:
            if assignment := ASSIGNMENT.match(word.text):
                name, value = assignment[1], word.text[assignment.end() :]
                self._assign(word, assignment, "prefix" if command.words and not command.array else "shell", within)
                for inner in _SET.finditer(word.text, assignment.end()):  # JSON of a runtime environment
                    self.add_setting(inner["name"], inner["value"], word.offsets[inner.start()], "word", within)
                if not command.array and value.startswith("-") and " " in value:
                    parts = [word.cut(*part.span()) for part in re.finditer(r"[^\s\"']+", word.text)]
                    self._arrays[name] = [Word(part.text, part.offsets, part.text) for part in parts[1:]]
        if command.array:
            before = self._arrays.get(command.array, []) if "+=" in command.assignments[0].raw.partition("(")[0] else []
            self._arrays[command.array] = before + command.words
            self.strings.extend(command.words)

    def _assign(self, word: Word, assignment: re.Match[str], how: str, within: frozenset[str]) -> None:
        value = word.text[assignment.end() :]
        self.add_setting(assignment[1], value, word.start, how, within)
        self.reads.update(name for name in _READ.findall(value) if name != assignment[1])

    def _add_words(self, call: Call, innermost: str) -> None:
        """Add what the words of a call set and read; what is only shown or searched sets nothing."""
        shows = _SHOWING.fullmatch(innermost) and not (innermost in ("echo", "printf") and _writes_start_file(call))
        for word in call.words:
            if call.program in _DECLARING and (assignment := ASSIGNMENT.match(word.text)):
                self._assign(word, assignment, "export", call.within)
            elif not shows:
                settings = list(_SET.finditer(word.text))
                own = {match["name"] for match in (*settings, *_DEFAULTED.finditer(word.text))}
                self.reads.update(name for name in _READ.findall(word.text) if name not in own)
                for match in settings:
                    is_whole = match.start() == 0 and word.text[match.end("name") : match.end("name") + 1] == "="
                    value = word.text[match.end("name") + 1 :] if is_whole else match["value"]
                    self.add_setting(match["name"], value, word.offsets[match.start()], "word", call.within)
            for match in _DEFAULTED.finditer(word.text):
                self.add_setting(match["name"], match["value"], word.offsets[match.start()], "shell", call.within)
        plain = [word for word in call.words if not word.text.startswith("-")]
        if call.program in ("setenv", "set") and len(plain) == 2 and plain[0].text.isidentifier():
            self.add_setting(plain[0].text, plain[1].text, plain[0].start, "shell", call.within)
        elif (powershell := _POWERSHELL_SETTING.fullmatch(call.program)) and call.values[:1] == ["="]:
            self.add_setting(powershell[1], " ".join(call.values[1:]), call.start, "powershell", call.within)

    def _add_call(self, call: Call, depth: int) -> None:
        self.calls.append(call)
        self._pipefail = self._pipefail or (call.program == "set" and "pipefail" in call.values)
        for word in call.env if call.outer else ():
            if assignment := ASSIGNMENT.match(word.text):
                self.add_value(assignment[1], word.text[assignment.end() :], word.start)
        if call.program in ("docker run", "docker create", "docker pull"):
            image = image_position(call)
            name = self.resolve(call.words[image].text, call.start) if image is not None else ""
            if image is not None and name not in self._built_images:
                self.images.append(Image(name, call.words[image].start, call.within))
        elif call.program == "docker build":
            self._built_images |= {argument.value for argument in call.arguments if argument.name in ("-t", "--tag")}
        for word, mark in shell_texts(call):
            self.add_shell(word, call.within | ({mark} if mark else HERE), depth + 1)
        if call.program == "python" and call.values[:1] == ["-c"] and len(call.words) > 1:
            self.add_python(call.words[1], call.within)
        elif call.program == "pip":
            self.add_pins(call.values)
        for source in call.here_documents:
            self._add_here_document(call, source, depth)

    def _add_here_document(self, call: Call, source: Fragment, depth: int) -> None:
        files = call.targets + ([value for value in call.values if value[:1] != "-"] if call.program == "tee" else [])
        if call.program == "python" or any(name.endswith(".py") for name in files):
            self.add_python(source, call.within)
        elif call.program in ("bash", "sh", "ssh", "su", "zsh") or any(map(_START_FILE.search, files)):
            self.add_shell(source, call.within, depth + 1)


def _writes_start_file(call: Call) -> bool:
    """Whether what a call prints goes to a file that shells or programs read their settings from."""
    files = call.targets
    for command in call.pipeline.commands[call.index + 1 :]:
        words = [word.text for word in command.words]
        files = files + (words if "tee" in words[:2] else [])
    return any(map(_START_FILE.search, files))
