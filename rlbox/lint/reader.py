"""Fill a document from shell text and Python, with the settings and further shell text that stand in them."""

from __future__ import annotations

import ast
import dataclasses
import re
import shlex
import warnings
from collections.abc import Callable

from rlbox.lint.document import (
    HERE,
    Call,
    Document,
    Image,
    Setting,
    Snippet,
    find_shell_texts,
    parse_calls,
    parse_docker_run,
)
from rlbox.lint.shell import ASSIGNMENT, Pipeline, SimpleCommand, Word, read_shell
from rlbox.lint.text import Lines, Piece, join

_LONGEST = 400_000  # characters; a longer program is data
_RUNNING = {"run", "call", "check_call", "check_output", "Popen", "system", "popen", "getoutput", "getstatusoutput"}
_VARIABLES = {"env_vars", "env", "environ", "environment"}


SettingCallback = Callable[[str, str, int, str, frozenset[str]], None]
CommandCallback = Callable[[Piece, frozenset[str]], None]


def read_python(
    document: Document, piece: Piece, source_kind: str, call: Call | None, sets: SettingCallback, runs: CommandCallback
) -> None:
    """Read Python into a document; what is no Python is left alone.

    Parameters
    ----------
    sets
        Told name, value, start, `python` and the marks of the text around, for each variable that gets a value.
    runs
        Told each command that is run, as shell text, and the marks of the text around.
    """
    piece = _dedented(piece)
    if len(piece.text) > _LONGEST:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(piece.text)
            snippet = Snippet(tree, piece, Lines.of(piece.text), source_kind, call)
            _Visitor(document, snippet, sets, runs).visit(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    document.snippets.append(snippet)


def _dedented(piece: Piece) -> Piece:
    """Return the text without the indentation that all its lines share."""
    lines = piece.lines()
    margins = [len(line.text) - len(line.text.lstrip(" ")) for line in lines if line.text.strip()]
    margin = min(margins, default=0)
    return join(line.cut(min(margin, len(line.text)), len(line.text)) for line in lines) if margin else piece


class _Visitor(ast.NodeVisitor):
    def __init__(self, document: Document, snippet: Snippet, sets: SettingCallback, runs: CommandCallback) -> None:
        self.document, self.snippet, self.sets, self.runs = document, snippet, sets, runs
        self.within = snippet.call.within if snippet.call else HERE
        self.names: dict[str, str] = {}  # variables that hold a text

    def set(self, name: ast.expr | None, value: ast.expr, at: ast.expr | ast.stmt) -> None:
        """Note a setting when its name is given in full."""
        text = self.text(name) if name else None
        if text and text.isidentifier():
            given = self.text(value)
            self.sets(text, "{}" if given is None else given, self.snippet.start(at), "python", self.within)

    def text(self, node: ast.expr) -> str | None:
        """Return the text of an expression, `{name}` for what is not known in it; None when it is no text."""
        match node:
            case ast.Constant(value=str() | int() | float() as value):
                return str(value)
            case ast.Name(id=name):
                return self.names.get(name)
            case ast.JoinedStr(values=parts):
                return "".join(self._part(part) for part in parts)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                texts = [self.text(left), self.text(right)]
                if texts != [None, None]:
                    return "".join(
                        self._shown(part) if text is None else text
                        for text, part in zip(texts, (left, right), strict=True)
                    )
        return None

    def _part(self, part: ast.expr) -> str:
        if isinstance(part, ast.FormattedValue):
            known = self.text(part.value)
            return self._shown(part.value) if known is None else known
        return self.text(part) or ""

    def _shown(self, node: ast.expr) -> str:
        """Return a stand-in for an unknown value: the variable of the environment that it is, where it is one."""
        found = [
            item.value for item in ast.walk(node) if isinstance(item, ast.Constant) and isinstance(item.value, str)
        ]
        name = self.names.get(f"={ast.unparse(node)}", "")
        return "${" + (name or (found[0] if _is_environ(node) and found else "_")) + "}"

    def visit_Assign(self, node: ast.Assign) -> None:
        """Note names that hold a text, and `os.environ["X"] = …`."""
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._remember(target.id, node.value)
            elif isinstance(target, ast.Subscript) and _is_environ(target.value):
                self.set(target.slice, node.value, target)
        self.generic_visit(node)

    def _remember(self, name: str, value: ast.expr) -> None:
        text = self.text(value)
        if text is not None:
            self.names[name] = text
        elif _is_environ(value):
            found = [item.value for item in ast.walk(value) if isinstance(item, ast.Constant)]
            if found and isinstance(found[0], str):
                self.names[f"={name}"] = found[0]

    def visit_Call(self, node: ast.Call) -> None:
        """Note what sets variables, reads them, or runs a command."""
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in ("get", "getenv") and node.args and (name == "getenv" or _is_environ(node.func)):
            self._read(node.args[0])
        elif name in _RUNNING and node.args:
            self._run(node.args[0])
        else:
            self._setting_call(name, node)
        for keyword in node.keywords:
            if keyword.arg in _VARIABLES:
                self._set_all(keyword.value)
        self.generic_visit(node)

    def _setting_call(self, name: str, node: ast.Call) -> None:
        if name in ("setenv", "putenv") or (name == "setdefault" and _is_environ(node.func)):
            if len(node.args) > 1:
                self.set(node.args[0], node.args[1], node)
        elif name == "update" and _is_environ(node.func):
            for keyword in node.keywords:
                if keyword.arg:
                    self.set(ast.Constant(keyword.arg), keyword.value, keyword.value)
            for given in node.args:
                self._set_all(given)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """Note reads of `os.environ["X"]`."""
        if isinstance(node.ctx, ast.Load) and _is_environ(node.value):
            self._read(node.slice)
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        """Note the variables of a `{"env_vars": {…}}`."""
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value in _VARIABLES:
                self._set_all(value)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Note `os.environ |= {…}`."""
        if _is_environ(node.target):
            self._set_all(node.value)
        self.generic_visit(node)

    def _set_all(self, node: ast.expr) -> None:
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if key is not None:
                    self.set(key, value, key)

    def _read(self, node: ast.expr) -> None:
        if text := self.text(node):
            self.document.reads.add(text)

    def _run(self, node: ast.expr) -> None:
        """Read the command of `os.system("…")` or `subprocess.run([…])` as shell text."""
        words = (
            [self.text(item) for item in node.elts] if isinstance(node, (ast.List, ast.Tuple)) else [self.text(node)]
        )
        start = self.snippet.start(node)
        known = [word for word in words if word is not None]
        if known and len(known) == len(words):
            text = known[0] if not isinstance(node, (ast.List, ast.Tuple)) else " ".join(map(shlex.quote, known))
            self.runs(Piece(text, [start] * (len(text) + 1)), self.within)


def _is_environ(node: ast.AST) -> bool:
    """Whether an expression is about the environment: os.environ, os.getenv."""
    return any(
        (isinstance(item, ast.Attribute) and item.attr in ("environ", "getenv"))
        or (isinstance(item, ast.Name) and item.id in ("environ", "getenv"))
        for item in ast.walk(node)
    )


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
        for call in parse_calls(pipeline, self.block, within):
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
        for word, mark in find_shell_texts(call):
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
            _, image, _ = parse_docker_run(call)
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
