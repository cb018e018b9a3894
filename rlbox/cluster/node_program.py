"""The program of a node as it is sent: what a type checker reads of it stays here, so that Python 3.6 can run it."""

from __future__ import annotations

import ast
import base64
import json
import threading
import zlib
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent / "programs"
_PACKAGE = "rlbox.cluster.programs"

BOOT = "import sys,zlib,base64;_t=sys.stdin.buffer.readline();exec(zlib.decompress(base64.b64decode(_t)))"
"""What the node's Python is started with: no shell finds a word of its own in it. `_t` is what it can start again."""

_UNPACK = """
import os, sys, threading, types
texts, one = dict({modules!r}), threading.RLock()
class Part(types.ModuleType):
    def __getattr__(self, name):
        with one:
            text = texts.pop(self.__name__.rpartition(".")[2], None)
            if text:
                exec(compile(text, self.__name__, "exec"), self.__dict__)
        try:
            return self.__dict__[name]
        except KeyError:
            raise AttributeError(name)
parts = {package!r}.split(".")
for end in range(1, len(parts) + 1):
    sys.modules[".".join(parts[:end])] = types.ModuleType(".".join(parts[:end]))
for name in list(texts):
    module = sys.modules[{package!r} + "." + name] = Part({package!r} + "." + name)
    setattr(sys.modules[{package!r}], name, module)
sys.modules[{package!r} + ".node_main"].main()
sys.stdout.flush()
os._exit(0) # no thread is waited for
"""
"""A module is compiled when something of it is first asked for: a node answers with what it needs for that alone."""


_ONE = threading.Lock()
"""Nodes are reached by a thread each, and Python 3.11 builds one syntax tree at a time: two at once are an error."""


def node_program() -> bytes:
    """Return the line that a node's Python reads first."""
    with _ONE:
        return _program()


@cache
def _program() -> bytes:
    modules = [(path.stem, plain(path.read_text("utf-8"))) for path in sorted(_FOLDER.glob("node_*.py"))]
    text = _UNPACK.format(package=_PACKAGE, modules=modules)
    return base64.b64encode(zlib.compress(text.encode(), 9)) + b"\n"


def first_row(folder: str, disk: str) -> bytes:
    """Return the row that the program waits for: the folder for its sockets, the node's data disk."""
    return json.dumps({"folder": folder, "disk": disk, "boot": BOOT}).encode() + b"\n"


def plain(text: str) -> str:
    """Return a module without annotations, docstrings, and what only a type checker imports."""
    return ast.unparse(_Plain().visit(ast.parse(text)))


class _Plain(ast.NodeTransformer):
    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None if node.module in ("__future__", "typing") else node

    def visit_If(self, node: ast.If) -> ast.AST | None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return None
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        self.generic_visit(node)
        return ast.copy_location(ast.Assign(targets=[node.target], value=node.value), node) if node.value else None

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.returns = None
        for one in (*node.args.args, *node.args.kwonlyargs, *filter(None, (node.args.vararg, node.args.kwarg))):
            one.annotation = None
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return ast.Pass() if node.col_offset else None
        self.generic_visit(node)
        return node
