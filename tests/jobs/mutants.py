"""Jobs with one thing changed: a default, a guard, a rule of a gate, a word of a command. A test must notice each.

Made from every `jobs/*.toml` and `jobs/*/*.py`, in an order that depends on nothing but the files. Nothing that only
people read is changed: titles, reasons, help, docstrings, messages, type hints. A job that rlbox would refuse to
load is left out, and so is changed Python whose code is the same as before.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import json
import re
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlbox.config.schema import validate_spec
from rlbox.errors import SpecError
from rlbox.foreign import toml_table
from rlbox.job.job import Job

CHECKOUT = Path(__file__).resolve().parents[2]
JOBS = CHECKOUT / "jobs"
READ_BY_PEOPLE = {"title", "why", "help", "says", "remedy", "name", "where"}
"""Keys whose words change nothing that is done; what a rule or a stage says of itself goes with the whole."""
UNREACHED = {
    "grpo/tiny.py": "makes a model with torch and transformers; only images have them (tests/gpu)",
    "smoke/policy.py": "tokenizers and torch; tests/engine/test_smoke.py runs it",
}
"""File, or file and function, that no fast test can run, and why."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A file below `jobs` with one thing changed; `job` is the job whose tests must notice."""

    path: str
    name: str
    text: str = field(repr=False)

    @property
    def job(self) -> str:
        return _job(self.path)


def every_mutant(names: Collection[str] = (), at_once: int = 1) -> list[Mutant]:
    """All mutants of the jobs or files `names`, of all when there are none; a mutant's name is its own."""
    paths = sorted([*JOBS.glob("*.toml"), *JOBS.glob("*/*.py")])
    wanted = [path for path in paths if not names or {_short(path), _job(_short(path))} & set(names)]
    if at_once == 1:
        return [mutant for path in wanted for mutant in mutants_of(path)]
    with ProcessPoolExecutor(at_once) as pool:
        return [mutant for made in pool.map(mutants_of, wanted) for mutant in made]


def mutants_of(path: Path) -> list[Mutant]:
    """The mutants of one file."""
    found: dict[str, Mutant] = {}
    for what, text in spec_mutants(path) if path.suffix == ".toml" else code_mutants(path):
        name, again = f"{_short(path)}: {what}", 2
        while name in found:
            name, again = f"{_short(path)}: {what} ({again})", again + 1
        found[name] = Mutant(path=_short(path), name=name, text=text)
    return list(found.values())


def _job(short: str) -> str:
    return short.partition("/")[0].removesuffix(".toml")


def _short(path: Path) -> str:
    return path.relative_to(JOBS).as_posix()


# ---------------------------------------------------------------------------------------------------------------- TOML


def spec_mutants(path: Path) -> Iterator[tuple[str, str]]:
    """What was changed in a job's TOML, and the whole text."""
    data = toml_table(path.read_text("utf-8"))
    before = validate_spec(Job, {**data, "name": path.stem}, "job")
    for what, changed in _spec_changes(data):
        try:
            after = validate_spec(Job, {**changed, "name": path.stem}, "mutant")
        except SpecError:
            continue
        if after != before:
            yield what, toml_text(changed)


def toml_text(data: dict[str, Any]) -> str:
    """A table as TOML, each key on a line."""
    return "".join(f"{json.dumps(key)} = {_toml(value)}\n" for key, value in data.items())


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def _spec_changes(data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for where, change in _changes(data, ()):
        changed = copy.deepcopy(data)
        change(changed)
        yield where, changed


Change = Callable[[dict[str, Any]], None]


def _changes(node: Any, at: tuple[Any, ...]) -> Iterator[tuple[str, Change]]:
    """Ways to change what lies below `at`."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in READ_BY_PEOPLE and not isinstance(value, dict):
                continue
            here = (*at, key)
            if _is_optional(here):
                yield f"without {_label(here, value)}", _without(here)
            if (other := _other(here, value, node)) is not None:
                yield f"{_label(here, value)} becomes {other!r}", _become(here, other)
            yield from _changes(value, here)
    elif isinstance(node, list):
        if at[-1] in ("command", "resume", "plot"):
            yield from _less_words(node, at)
            return
        for index, value in enumerate(node):
            here = (*at, index)
            if at not in (("stages",), ("services",)):
                yield f"without {_label(here, value)}", _without(here)
            yield from _changes(value, here)


def _is_optional(at: tuple[Any, ...]) -> bool:
    """Whether leaving out a key is a mutant: a value, or one table of a kind, and not a whole part of a job."""
    if len(at) == 1 or at[0] == "params":
        return len(at) == 3 and at[2] in ("at_least", "at_most", "unit", "choices", "true", "false")
    return at[0] != "ports" and at[-1] not in ("command", "gate", "pattern", "path", "run")


def _label(at: tuple[Any, ...], value: Any) -> str:
    words = [str(word) for word in at]
    if isinstance(value, dict):
        words += [str(value.get("name") or value.get("pattern") or value.get("path") or value.get("key") or "")]
    elif isinstance(value, str) and isinstance(at[-1], int):
        words.append(value)
    return ".".join(word for word in words if word)[:110]


def _other(at: tuple[Any, ...], value: Any, table: dict[str, Any]) -> Any:
    """Another value for a default, a parameter of a profile, a port, a variable, a limit, a count; None: leave it."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return type(value)(value * 2 + 1)
    if not isinstance(value, str):
        return None
    if among := [choice for choice in table.get("choices", ()) if choice != value]:
        return among[0]
    changes_nothing_else = at[0] == "target" or (at[0] in ("params", "profiles") and at[-1] in ("default", *at[2:]))
    if at[0] == "env" or "env" in at[1:-1]:
        return f"{value}1"
    if at[-1] in ("total_s", "silence_s", "start_s", "answer_s") or (changes_nothing_else and value[:1].isdigit()):
        amount = re.match(r"\d+(?:\.\d+)?(?=\s*[A-Za-z%]*$)", value)
        return f"{float(amount.group()) * 2 + 1:g}{value[amount.end() :]}" if amount else f"{value}x"
    return f"{value}x" if changes_nothing_else else None


def _without(at: tuple[Any, ...]) -> Change:
    def change(data: dict[str, Any]) -> None:
        del _down(data, at[:-1])[at[-1]]

    return change


def _become(at: tuple[Any, ...], value: Any) -> Change:
    def change(data: dict[str, Any]) -> None:
        _down(data, at[:-1])[at[-1]] = value

    return change


def _down(data: Any, at: tuple[Any, ...]) -> Any:
    for key in at:
        data = data[key]
    return data


def _less_words(words: list[str], at: tuple[Any, ...]) -> Iterator[tuple[str, Change]]:
    """A command without an option and its value, or without a word that is no program."""
    index = 0
    while index < len(words):
        word = words[index]
        taken = 2 if _takes_next(words, index) else 1
        if word not in ("{python}", "--", "-m") and not (index and words[index - 1] == "-m"):
            yield f"without {'.'.join(map(str, at))} {' '.join(words[index : index + taken])}", _cut(at, index, taken)
        index += taken


def _takes_next(words: list[str], index: int) -> bool:
    word, behind = words[index], words[index + 1 : index + 2]
    return word.startswith("--") and "=" not in word and bool(behind) and not behind[0].startswith(("-", "{python}"))


def _cut(at: tuple[Any, ...], index: int, taken: int) -> Change:
    def change(data: dict[str, Any]) -> None:
        del _down(data, at)[index : index + taken]

    return change


# -------------------------------------------------------------------------------------------------------------- Python

_FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_ENDS = (ast.Raise, ast.Return, ast.Continue, ast.Break)


def code_mutants(path: Path) -> Iterator[tuple[str, str]]:
    """What was changed in a program of a job, and the whole text."""
    short = path.relative_to(path.parents[1]).as_posix()
    if short in UNREACHED:
        return
    tree = ast.parse(path.read_text("utf-8"))
    before = ast.unparse(tree)
    for part in tree.body:
        if f"{short}:{getattr(part, 'name', '')}" in UNREACHED:
            continue
        for node in ast.walk(part):
            for number in range(len(_ways(tree, node))):
                with _kept(tree.body, tree.body.index(part)) as copied:
                    same = _same_place(part, copied, node)
                    told = _ways(tree, same)[number]()
                    text = ast.unparse(ast.fix_missing_locations(tree))
                if told and text != before:
                    yield f"line {getattr(node, 'lineno', 0)}: {told}", text


@contextlib.contextmanager
def _kept(body: list[ast.stmt], place: int) -> Iterator[ast.stmt]:
    """A copy of one statement in its place, while the block runs."""
    part = body[place]
    body[place] = copy.deepcopy(part)
    yield body[place]
    body[place] = part


def _same_place(part: ast.stmt, copied: ast.stmt, node: ast.AST) -> ast.AST:
    return next(two for one, two in zip(ast.walk(part), ast.walk(copied), strict=True) if one is node)


def _ways(tree: ast.Module, node: ast.AST) -> list[Callable[[], str]]:
    """Changes of a node, each made in place when it is called; it says what it was, nothing when it was none."""
    changes: list[Callable[[], str]] = []
    if isinstance(node, ast.Compare):
        changes = _comparison(node)
    elif isinstance(node, ast.If) and not _is_program(node):
        changes = _guard(node)
    elif isinstance(node, ast.BoolOp):
        changes = [_operand(node, place) for place in range(len(node.values))]
    elif isinstance(node, ast.FunctionDef):
        changes = _defaults(node.args)
    elif isinstance(node, ast.Call):
        changes = _option(node)
    elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node in tree.body and node.value:
        changes = [_constant(one) for one in ast.walk(node.value) if _is_number(one)]
    return changes


def _is_program(node: ast.If) -> bool:
    """`if __name__ == "__main__"`, and what only a type checker reads."""
    return ast.unparse(node.test).startswith(("__name__", "TYPE_CHECKING"))


def _comparison(node: ast.Compare) -> list[Callable[[], str]]:
    if ast.unparse(node).startswith("__name__"):
        return []

    def flip() -> str:
        told = ast.unparse(node)
        node.ops[0] = _FLIPPED[type(node.ops[0])]()
        return f"{told} is flipped"

    numbers = [part for part in (node.left, *node.comparators) if _is_number(part)]
    return [flip, *map(_constant, numbers)]


def _guard(node: ast.If) -> list[Callable[[], str]]:
    """An `if` that ends what it stands in, taken out; its `else` is what then happens."""
    if not isinstance(node.body[-1], _ENDS) and not _leaves(node.body[-1]):
        return []

    def remove() -> str:
        told = ast.unparse(node.test)
        bound = [ast.Expr(one) for one in ast.walk(node.test) if isinstance(one, ast.NamedExpr)]
        node.test = ast.Constant(value=False) if not bound else ast.Tuple(elts=[], ctx=ast.Load())
        return f"the guard `{told}` is gone"

    return [remove]


def _leaves(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and ast.unparse(node).startswith(("sys.exit", "os._exit", "program.leave"))


def _operand(node: ast.BoolOp, place: int) -> Callable[[], str]:
    def drop() -> str:
        told = ast.unparse(node.values[place])
        if any(isinstance(one, ast.NamedExpr) for one in ast.walk(node.values[place])):
            return ""
        del node.values[place]
        return f"`{told}` is left out of a condition"

    return drop


def _defaults(args: ast.arguments) -> list[Callable[[], str]]:
    """Defaults of parameters."""
    found = [default for default in (*args.defaults, *args.kw_defaults) if default is not None]
    return [_constant(default) for default in found if isinstance(default, ast.Constant) and default.value is not None]


def _option(node: ast.Call) -> list[Callable[[], str]]:
    """An option of a command line with another default, not required, or with any choice."""
    if not (isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"):
        return []
    changes: list[Callable[[], str]] = []
    for keyword in node.keywords:
        if keyword.arg == "default" and isinstance(keyword.value, ast.Constant):
            changes.append(_constant(keyword.value))
        if keyword.arg in ("required", "choices"):
            changes.append(_keyword(node, keyword))
    return changes


def _keyword(node: ast.Call, keyword: ast.keyword) -> Callable[[], str]:
    def drop() -> str:
        node.keywords.remove(keyword)
        return f"{ast.unparse(node.args[0])} without {keyword.arg}"

    return drop


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float, bool)


def _constant(node: ast.AST) -> Callable[[], str]:
    assert isinstance(node, ast.Constant)

    def change() -> str:
        told = repr(node.value)
        match node.value:
            case bool():
                node.value = not node.value
            case int() | float():
                node.value = node.value * 2 + 1
            case str():
                node.value += "x"
            case _:
                return ""
        return f"{told} becomes {node.value!r}"

    return change
