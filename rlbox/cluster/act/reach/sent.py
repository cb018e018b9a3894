"""The program of a node as it is sent: what a type checker reads of it stays here, so that Python 3.6 can run it."""

from __future__ import annotations

import ast
import base64
import json
import threading
import zlib
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent.parent / "programs"
_PACKAGE = "rlbox.cluster.act.programs"
_ORDER = (
    "node_wire",
    "node_run",
    "node_http",
    "node_procs",
    "node_hold",
    "node_net",
    "node_files",
    "node_blobs",
    "node_ray",
    "node_engine",
    "node_here",
    "node_keeper",
    "node_lives",
    "node_facts",
    "node_rules",
    "node_main",
)

BOOT = "import sys,zlib,base64;_t=sys.stdin.buffer.readline();exec(zlib.decompress(base64.b64decode(_t)))"
"""What the node's Python is started with: no shell finds a word of its own in it. `_t` is what it can start again."""

_UNPACK = """
import sys, types
parts = {package!r}.split(".")
for end in range(1, len(parts) + 1):
    sys.modules[".".join(parts[:end])] = types.ModuleType(".".join(parts[:end]))
for name, text in {modules!r}:
    module = types.ModuleType({package!r} + "." + name)
    sys.modules[module.__name__] = module
    setattr(sys.modules[{package!r}], name, module)
    exec(compile(text, name, "exec"), module.__dict__)
sys.modules[{package!r} + ".node_main"].main()
"""


_ONE = threading.Lock()
"""Nodes are reached by a thread each, and Python 3.11 builds one syntax tree at a time: two at once are an error."""


def node_program() -> bytes:
    """Return the line that a node's Python reads first."""
    with _ONE:
        return _program()


@cache
def _program() -> bytes:
    modules = [(name, plain(_FOLDER.joinpath(f"{name}.py").read_text("utf-8"))) for name in _ORDER]
    text = _UNPACK.format(package=_PACKAGE, modules=modules)
    return base64.b64encode(zlib.compress(text.encode(), 9)) + b"\n"


def first_row(folder: str, disk: str) -> bytes:
    """Return the row that the program waits for: the folder for its sockets, the node's data disk."""
    return json.dumps({"folder": folder, "disk": disk, "boot": BOOT}).encode() + b"\n"


def plain(text: str) -> str:
    """Return a module without annotations, docstrings, and what only a type checker imports."""
    return ast.unparse(ast.fix_missing_locations(_Plain().visit(ast.parse(text))))


class _Plain(ast.NodeTransformer):
    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None if node.module == "__future__" else node

    def visit_If(self, node: ast.If) -> ast.AST | None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return None
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        self.generic_visit(node)
        return ast.Assign(targets=[node.target], value=node.value) if node.value else None

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
