"""What Python code sets, reads and runs, by its syntax tree: comments and strings that are only shown say nothing."""

from __future__ import annotations

import ast
import shlex
import warnings
from collections.abc import Callable

from rlbox.lint.read.calls import Call
from rlbox.lint.read.document import HERE, Document, Snippet
from rlbox.lint.read.text import Lines, Piece, join

_LONGEST = 400_000  # characters; a longer program is data
_RUNNING = {"run", "call", "check_call", "check_output", "Popen", "system", "popen", "getoutput", "getstatusoutput"}
_VARIABLES = {"env_vars", "env", "environ", "environment"}


Sets = Callable[[str, str, int, str, frozenset[str]], None]
Runs = Callable[[Piece, frozenset[str]], None]


def read_python(document: Document, piece: Piece, how: str, call: Call | None, sets: Sets, runs: Runs) -> None:
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
            snippet = Snippet(tree, piece, Lines.of(piece.text), how, call)
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
    def __init__(self, document: Document, snippet: Snippet, sets: Sets, runs: Runs) -> None:
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
