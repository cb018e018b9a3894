"""Fill a document from shell text, with the Python, settings and further shell text that stand in it."""

from __future__ import annotations

import dataclasses
import re

from rlbox.lint.read.calls import Call, calls_of, shell_texts, split_run
from rlbox.lint.read.document import HERE, Document, Image, Setting
from rlbox.lint.read.python import read_python
from rlbox.lint.read.shell import ASSIGNMENT, Pipeline, SimpleCommand, read_shell
from rlbox.lint.read.text import Piece
from rlbox.lint.read.words import Word

_DEEPEST = 6
_LONGEST_EXPANSION = 2_000  # words that variables may stand for in one command
# `NAME=value` and `"NAME": "value"` anywhere in a word: `-e X=y`, `--export=ALL,X=y`, `{"env_vars": {"X": "y"}}`.
_SET = re.compile(r"(?<![\w$-])(?P<name>[A-Z][A-Z0-9]*_\w+)(?:=(?!=)|[\"']\s*:\s*)[\"']?(?P<value>[^\s,;\"'}]*)")
PIN = re.compile(r"([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==([\w.]+)")
_DEFAULTED = re.compile(r"\$\{(?P<name>[A-Z]\w+):?=(?P<value>[^}]*)\}")
_READ = re.compile(r"\$\{?([A-Za-z_]\w*)")
_ARRAY = re.compile(r"\$\{?(\w+)(?:\[[@*]\])?\}?")
_POWERSHELL_ENV = re.compile(r"\$\{?env:(\w+)\}?\s*=\s*[\"']?([^\"';\n]*)", re.IGNORECASE)
# Programs whose words show or search text instead of setting anything.
_SHOWING = re.compile(
    r"echo|printf|cat|[efz]?grep|rg|ag|sed|g?awk|unset|test|\[|\[\[.*|ls|which|find|head|tail|less", re.DOTALL
)
_START_FILE = re.compile(
    r"(?:rc|profile|bash_profile|bash_aliases|zshenv|environment|\.env|\.sh|\.bash|\.conf|-env)[\"']?$", re.IGNORECASE
)
_CONFIGURED = {"setenv", "set"}
_DECLARING = {"export", "declare", "typeset", "local", "readonly", "env"}


class Reader:
    """Reads texts into one document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.block = 0
        self.arrays: dict[str, list[Word]] = {}

    def shell(self, piece: Piece, within: frozenset[str] = HERE, powershell: bool = True, depth: int = 0) -> None:
        """Read shell text; text that no other stands in begins a block, a shell of its own."""
        if depth == 0:
            self.block += 1
            self.arrays = {}
        if depth > _DEEPEST:
            return
        script = read_shell(piece, powershell)
        if not within & {"prose", "powershell"}:
            self.document.strays.extend(script.strays)
            self.document.flags.extend((stray.kind, stray.piece.at[0]) for stray in script.strays)
        for stray in script.strays:
            for hit in _POWERSHELL_ENV.finditer(stray.piece.text):
                self.set(hit.group(1), hit.group(2), stray.piece.at[hit.start()], "powershell", within)
        for pipeline in script.pipelines:
            self._pipeline(pipeline, within, depth)

    def set(self, name: str, value: str, start: int, how: str, within: frozenset[str] = HERE) -> None:
        """Note that a variable gets a value."""
        self.document.settings.append(Setting(name, value, start, how, self.block, within))
        self.document.names.note(name, value, start)

    def python(self, piece: Piece, how: str, call: Call | None = None) -> None:
        """Read Python: `how` is file, -c or stdin, `call` what runs it."""

        def runs(text: Piece, within: frozenset[str]) -> None:
            self.shell(text, within, powershell=False, depth=1)

        read_python(self.document, piece, how, call, self.set, runs)

    def image(self, name: str, start: int, within: frozenset[str] = HERE) -> None:
        """Note that an image is used."""
        self.document.images.append(Image(name, start, within))

    def argv(self, words: list[Word], within: frozenset[str] = HERE) -> None:
        """Read a command that is given as a list of words."""
        if words and not words[0].value.startswith("-"):
            self.block += 1
            self._pipeline(Pipeline([SimpleCommand(words[0].start, words=words)]), within, 0)

    def _pipeline(self, pipeline: Pipeline, within: frozenset[str], depth: int) -> None:
        commands = [self._expanded(command) for command in pipeline.commands]
        for command in commands:
            self._assigns(command, within)
        pipeline = dataclasses.replace(pipeline, commands=commands)
        chains: dict[int, list[Call]] = {}
        for call in calls_of(pipeline, self.block, within):
            chains.setdefault(call.index, []).append(call)
        for chain in chains.values():
            self._words(chain[0], chain[-1].program)
            for call in chain:
                self._call(call, depth)

    # ---- variables ----

    def _assigns(self, command: SimpleCommand, within: frozenset[str]) -> None:
        for word in command.assigns:
            if hit := ASSIGNMENT.match(word.value):
                value = word.value[hit.end() :]
                self.set(hit.group(1), value, word.start, "prefix" if command.words else "shell", within)
                self.document.reads.update(name for name in _READ.findall(value) if name != hit.group(1))
                for inner in _SET.finditer(word.value, hit.end()):  # JSON that a runtime environment is given in
                    self.set(inner["name"], inner["value"], word.at[inner.start("name")], "word", within)
                if not command.array and value.startswith("-") and " " in value:
                    self.arrays[hit.group(1)] = _split(word.cut(hit.end()))
        if command.array:
            self.arrays[command.array] = command.words
            self.document.strings.extend(command.words)

    def _expanded(self, command: SimpleCommand) -> SimpleCommand:
        """Return the command with `"${ARGS[@]}"` and an unquoted `$ARGS` replaced by the words they stand for."""
        if not self.arrays or command.array:
            return command
        words: list[Word] = []
        for word in command.words:
            hit = _ARRAY.fullmatch(word.value)
            if hit and len(words) < _LONGEST_EXPANSION and hit.group(1) in self.arrays:
                words += self.arrays[hit.group(1)]
            else:
                words.append(word)
        return dataclasses.replace(command, words=words)

    def _words(self, call: Call, program: str) -> None:
        """Note what the words of a call set and read; what is only shown or searched sets nothing."""
        showing = _SHOWING.fullmatch(program) and not (program in ("echo", "printf") and _to_start_file(call))
        for word in call.words:
            if call.program in _DECLARING and (hit := ASSIGNMENT.match(word.value)):
                value = word.value[hit.end() :]
                self.set(hit.group(1), value, word.start, "shell", call.within)
                self.document.reads.update(name for name in _READ.findall(value) if name != hit.group(1))
            elif not showing:
                hits = list(_SET.finditer(word.value))
                own = {hit["name"] for hit in hits}
                own |= {hit["name"] for hit in _DEFAULTED.finditer(word.value)}
                self.document.reads.update(name for name in _READ.findall(word.value) if name not in own)
                for hit in hits:
                    self.set(hit["name"], _whole(word, hit), word.at[hit.start("name")], "word", call.within)
            for hit in _DEFAULTED.finditer(word.value):
                self.set(hit["name"], hit["value"], word.at[hit.start()], "shell", call.within)
        names = [word for word in call.words if not word.value.startswith("-")]
        if call.program in _CONFIGURED and len(names) == 2 and re.fullmatch(r"[A-Za-z_]\w*", names[0].value):
            self.set(names[0].value, names[1].value, names[0].start, "shell", call.within)

    # ---- calls ----

    def _call(self, call: Call, depth: int) -> None:
        self.document.calls.append(call)
        for word in call.env if call.outer else ():
            if hit := ASSIGNMENT.match(word.value):
                self.document.names.note(hit.group(1), word.value[hit.end() :], word.start)
        if call.program in ("docker run", "docker create", "docker pull"):
            self._docker(call)
        for word, mark in shell_texts(call):
            within = call.within | {mark} if mark else call.within
            self.shell(word.piece, within, powershell=False, depth=depth + 1)
        if call.program == "python":
            self._inline(call)
        elif call.program == "pip":
            hits = [hit for word in call.words if (hit := PIN.match(word.value))]
            self.document.pins.update({hit.group(1): hit.group(2) for hit in hits})
        for piece in call.documents:
            self._here(call, piece, depth)

    def _docker(self, call: Call) -> None:
        if call.program in ("docker run", "docker create"):
            _, image, _ = split_run(call)
        else:
            image = next((word for word in call.words if word.value[:1] != "-"), None)
        if image:
            self.image(self.document.names.resolve(image.value, image.start), image.start, call.within)

    def _inline(self, call: Call) -> None:
        for i, word in enumerate(call.words[:-1]):
            if word.value == "-c":
                self.python(call.words[i + 1].piece, "-c", call)
                return
            if not word.value.startswith("-"):
                return

    def _here(self, call: Call, piece: Piece, depth: int) -> None:
        """Read a here-document by what it is for."""
        target = next((word.value for operator, word in call.redirects if operator in (">", ">>", "&>")), "")
        if call.program == "tee":
            target = next((value for value in call.values if not value.startswith("-")), "")
        if call.program == "python" or target.endswith(".py"):
            self.python(piece, "stdin" if call.program == "python" else "file", call)
        elif call.program in ("bash", "sh", "ssh", "su", "zsh") or (target and _START_FILE.search(target)):
            self.shell(piece, call.within, depth=depth + 1)


def _split(word: Word) -> list[Word]:
    """Return the words that an unquoted variable with this value stands for."""
    return [
        word.cut(hit.start(), hit.end()) for hit in list(re.finditer(r"[^\s\"']+", word.value))[:_LONGEST_EXPANSION]
    ]


def _whole(word: Word, hit: re.Match[str]) -> str:
    """Return the value of a setting in a word: all of the rest when the word is nothing else."""
    plain = hit.start("name") == 0 and word.value[hit.end("name") : hit.end("name") + 1] == "="
    return word.value[hit.end("name") + 1 :] if plain else hit["value"]


def _to_start_file(call: Call) -> bool:
    """Whether what a call prints goes to a file that shells or programs read their settings from."""
    files = [word.value for operator, word in call.redirects if operator in (">", ">>")]
    for command in call.pipeline.commands[call.index + 1 :]:
        if command.words and "tee" in [word.value for word in command.words[:2]]:
            files += [word.value for word in command.words]
    return any(_START_FILE.search(name) for name in files)
