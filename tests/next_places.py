"""Every place in `rlbox/` that gives a next step, found in the source: which module, which function, what text.

What is looked at: the keywords `next_step` and `remedy` (what `rlbox doctor` prints behind `next:`) of any call, what
is assigned to attributes of these names, and a text that begins with `next:`. From there the value is followed back:
through local names, constants and tables, the parameters of the function around it, and what a helper returns. A place
is where the text itself stands.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef
_SHOWN = re.compile(r"(?s)\A(?:.*\n)? *next: +(?P<step>.*)")
_WORD = re.compile(r"[A-Za-z]{2}")
_NAMES = frozenset({"next_step", "remedy"})
_MARKS = frozenset({"isolated", "marked", "of_spec", "unmarked"})
_TAKES_OFF = frozenset({"strip", "rstrip", "lstrip", "format", "removesuffix", "removeprefix"})


class Place(NamedTuple):
    """Where a next step stands: module, function with its class, text with `{}` or `{name}` for what varies."""

    module: str
    function: str
    text: str

    def __str__(self) -> str:
        return f"{self.module}:{self.function}: {self.text}"

    @property
    def pattern(self) -> re.Pattern[str]:
        """What the printed step holds, blanks and line ends aside."""
        parts = map(re.escape, re.split(r"\{\w*\}", " ".join(self.text.split())))
        return re.compile(".*?".join(parts), re.DOTALL)


@dataclass(frozen=True, kw_only=True, eq=False)
class Scope:
    """A module, or a function in one; `names` is what stands behind each name that is bound there."""

    module: str
    name: str
    above: Scope | None
    function: Function | None = None
    names: dict[str, list[ast.expr]] = field(default_factory=lambda: defaultdict(list))

    def chain(self) -> Iterator[Scope]:
        """Yield it and the scopes around it."""
        scope: Scope | None = self
        while scope:
            yield scope
            scope = scope.above


@dataclass(frozen=True, kw_only=True, eq=False)
class Code:
    """All modules: scopes of nodes, functions by module and name, what is imported, calls by the callee's name."""

    scopes: dict[ast.AST, Scope] = field(default_factory=dict)
    functions: dict[tuple[str, str], Scope] = field(default_factory=dict)
    modules: dict[str, Scope] = field(default_factory=dict)
    imports: dict[str, dict[str, tuple[str, str]]] = field(default_factory=lambda: defaultdict(dict))
    calls: dict[str, list[ast.Call]] = field(default_factory=lambda: defaultdict(list))
    parts: set[ast.AST] = field(default_factory=set)


@functools.cache
def places(checkout: Path) -> frozenset[Place]:
    """Return every place in the package `rlbox` of a checkout."""
    code = Code()
    trees = {}
    for path in sorted((checkout / "rlbox").rglob("*.py")):
        module = path.relative_to(checkout).as_posix()
        trees[module] = ast.parse(path.read_text("utf-8"))
        scope = Scope(module=module, name="", above=None)
        code.modules[module] = scope
        _read(code, trees[module], scope)
    finder = Finder(code)
    for node, scope in list(code.scopes.items()):
        finder.start(node, scope)
    return frozenset(finder.found)


def _read(code: Code, node: ast.AST, scope: Scope) -> None:
    """Note the scope of every node below, what is bound to which name, and who is called."""
    for child in ast.iter_child_nodes(node):
        inner = scope
        code.scopes[child] = scope
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = f"{scope.name}.{child.name}".lstrip(".")
            function = None if isinstance(child, ast.ClassDef) else child
            inner = Scope(module=scope.module, name=name, above=scope, function=function)
            if function:
                code.functions[scope.module, name] = inner
                for argument, default in _defaults(function):
                    inner.names[argument].append(default)
        elif isinstance(child, ast.ImportFrom) and child.module:
            for alias in child.names:
                code.imports[scope.module][alias.asname or alias.name] = (child.module, alias.name)
        elif isinstance(child, ast.Call):
            code.calls[_last(child.func)].append(child)
        elif isinstance(child, ast.JoinedStr):
            code.parts.update(child.values)
        for name, value in _bindings(child):
            scope.names[name].append(value)
        _read(code, child, inner)


def _defaults(function: Function) -> Iterator[tuple[str, ast.expr]]:
    arguments = [*function.args.posonlyargs, *function.args.args]
    given = function.args.defaults
    yield from zip((a.arg for a in arguments[len(arguments) - len(given) :]), given, strict=True)
    for argument, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        if value:
            yield argument.arg, value


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield names and values of an assignment; of `a, b = f()` the elements of what f gives."""
    if isinstance(node, ast.Assign):
        targets, value = node.targets, node.value
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr, ast.AugAssign)) and node.value:
        targets, value = [node.target], node.value
    elif isinstance(node, ast.comprehension):
        targets, value = [node.target], node.iter
    else:
        return
    for target in targets:
        if isinstance(target, ast.Name):
            yield target.id, value
        elif isinstance(target, ast.Tuple):
            for at, one in enumerate(target.elts):
                if isinstance(one, ast.Name):
                    yield one.id, _element(value, at)


def _element(value: ast.expr, at: int) -> ast.expr:
    if isinstance(value, ast.Tuple):
        return value.elts[at] if at < len(value.elts) else value
    return ast.Subscript(value=value, slice=ast.Constant(at), ctx=ast.Load())


def _last(node: ast.expr) -> str:
    """Return the last name of `a.b.c`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _template(node: ast.expr) -> str:
    """Return the text of an expression, with `{}` for what is not literal."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_template(value) for value in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _template(left) + _template(right)
        case ast.Call(func=ast.Attribute(value=text, attr=attr)) if attr in _TAKES_OFF:
            return _template(text)
        case _:
            return "{}"


def _alternatives(node: ast.expr) -> Sequence[ast.expr]:
    """Return the expressions of which an expression gives one."""
    match node:
        case ast.IfExp(body=first, orelse=second):
            return first, second
        case ast.BoolOp(values=many) | ast.Dict(values=many):
            return many
        case ast.BinOp(op=ast.Mult(), left=one) | ast.NamedExpr(value=one) | ast.Starred(value=one):
            return (one,)
        case ast.GeneratorExp(elt=one) | ast.ListComp(elt=one) | ast.Subscript(value=one):
            return (one,)
        case _:
            return ()


def _through(node: ast.Call) -> Sequence[ast.expr]:
    """Return what a call gives as it was, or nearly so; nothing for a call of another kind."""
    match node.func:
        case ast.Attribute(attr="get", value=table):
            return table, *node.args[1:]
        case ast.Attribute(attr=attr, value=text) if attr in _TAKES_OFF:
            return (text,)
        case ast.Name(id=mark) if mark in _MARKS:
            return node.args
        case _:
            return ()


class Finder:
    """Follows what is given as a next step to the texts; `found` are their places."""

    def __init__(self, code: Code) -> None:
        self._code = code
        self._seen: set[tuple[ast.AST, str, int | None]] = set()
        self._parameters: set[tuple[str, str, str]] = set()
        self.found: set[Place] = set()

    def start(self, node: ast.AST, scope: Scope) -> None:
        """Follow a node, if it gives a next step."""
        match node:
            case ast.Call(keywords=keywords):
                for keyword in keywords:
                    if keyword.arg in _NAMES:
                        self.value(keyword.value, scope)
            case ast.Assign(targets=[ast.Attribute(attr=attr)]) | ast.AugAssign(target=ast.Attribute(attr=attr)):
                if attr in _NAMES:
                    self.value(node.value, scope)
            case ast.JoinedStr() | ast.Constant(value=str()) if node not in self._code.parts:
                shown = _SHOWN.match(_template(node))
                if shown and _WORD.search(shown["step"]) and not _is_docstring(self._code, node, scope):
                    self._add(shown["step"], scope)

    def _add(self, text: str, scope: Scope) -> None:
        if _WORD.search(text):
            functions = [one.name for one in scope.chain() if one.name]
            self.found.add(Place(scope.module, functions[0] if functions else "", " ".join(text.split())))

    def value(self, node: ast.expr, scope: Scope, at: int | None = None) -> None:
        """Follow an expression; `at`: of a tuple only that element."""
        key = (node, scope.name, at)
        if key in self._seen:
            return
        self._seen.add(key)
        match node:
            case ast.Constant(value=str()) | ast.JoinedStr() | ast.BinOp(op=ast.Add()):
                self._text(node, scope)
            case ast.Subscript(value=one, slice=ast.Constant(value=int(index))):
                self.value(one, scope, index)
            case ast.Tuple(elts=many) | ast.List(elts=many):
                for one in many if at is None else many[at : at + 1]:
                    self.value(one, scope)
            case ast.Name(id=name):
                self._name(name, scope, at)
            case ast.Call():
                self._call(node, scope, at)
            case _:
                for one in _alternatives(node):
                    self.value(one, scope, at)

    def _text(self, node: ast.expr, scope: Scope) -> None:
        """Take a text, or what is put together, where neither side says a word of its own: follow the parts."""
        text = _template(node)
        if _WORD.search(text.replace("{}", "")):
            self._add(text, scope)
            return
        for part in ast.walk(node):
            if isinstance(part, (ast.Name, ast.Call)):
                self.value(part, scope)

    def _name(self, name: str, scope: Scope, at: int | None) -> None:
        for one in scope.chain():
            for value in one.names.get(name, ()):
                self.value(value, one, at)
            if one.function and name in _parameters(one.function):
                self._callers(one, name)
            if name in one.names or (one.function and name in _parameters(one.function)):
                return
        module, there = self._code.imports[scope.module].get(name, ("", ""))
        for value in found.names.get(there, ()) if (found := self._module(module)) else ():
            self.value(value, found, at)

    def _module(self, dotted: str) -> Scope | None:
        path = dotted.replace(".", "/")
        return self._code.modules.get(f"{path}.py") or self._code.modules.get(f"{path}/__init__.py")

    def _callers(self, scope: Scope, parameter: str) -> None:
        """Follow what every call of this function gives for a parameter."""
        assert scope.function
        key = (scope.module, scope.name, parameter)
        if key in self._parameters:
            return
        self._parameters.add(key)
        names = [a.arg for a in (*scope.function.args.posonlyargs, *scope.function.args.args)]
        own = names[1:] if names[:1] in (["self"], ["cls"]) else names
        called = scope.function.name
        if called == "__init__" and scope.above:
            called = scope.above.name.rpartition(".")[2]
        for call in self._code.calls[called]:
            there = self._code.scopes[call]
            if not self._reaches(call, there, scope):
                continue
            given = [word.value for word in call.keywords if word.arg == parameter]
            if parameter in own and own.index(parameter) < len(call.args):
                given.append(call.args[own.index(parameter)])
            for value in given:
                self.value(value, there)

    def _reaches(self, call: ast.Call, there: Scope, callee: Scope) -> bool:
        """Whether a call may mean this function: one of the same module, an imported one, or a method of that name."""
        if isinstance(call.func, ast.Attribute) or there.module == callee.module:
            return True
        module, _ = self._code.imports[there.module].get(_last(call.func), ("", ""))
        found = self._module(module)
        return found is not None and found.module == callee.module

    def _call(self, node: ast.Call, scope: Scope, at: int | None) -> None:
        match node.func:
            case ast.Attribute(attr="join", value=between):
                if _WORD.search(_template(between).replace("{}", "")):
                    self._add(f"{{}}{_template(between)}{{}}", scope)
                for one in node.args:
                    self.value(one, scope)
                return
        if through := _through(node):
            for one in through:
                self.value(one, scope, at)
            return
        for callee in self._callees(node, scope):
            assert callee.function
            for inner in ast.walk(callee.function):
                if isinstance(inner, (ast.Return, ast.Yield)) and inner.value and self._code.scopes[inner] is callee:
                    self.value(inner.value, callee, at)

    def _callees(self, node: ast.Call, scope: Scope) -> Iterator[Scope]:
        name = _last(node.func)
        if isinstance(node.func, ast.Attribute):
            for (module, qualified), callee in self._code.functions.items():
                if module == scope.module and qualified.rpartition(".")[2] == name:
                    yield callee
            return
        own = self._code.functions.get((scope.module, name))
        module, there = self._code.imports[scope.module].get(name, ("", ""))
        found = self._module(module)
        other = self._code.functions.get((found.module, there)) if found else None
        yield from (one for one in (own, other) if one)


def _parameters(function: Function) -> set[str]:
    return {a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}


def _is_docstring(code: Code, node: ast.AST, scope: Scope) -> bool:
    body = scope.function.body if scope.function else []
    return bool(body) and isinstance(body[0], ast.Expr) and body[0].value is node
