"""Count the files through which one parameter goes: `python scripts/walk.py [--tree FOLDER] [FILE:FUNCTION:PARAM …]`.

The parameter is followed from call to call: as itself, as a part of it (`plan.tag`), as what it is packed into, and as
what one call made of it (after `plan = image_plan(name)` the plan is followed; what is made of the plan is another
thing). It is put down where an object that acts is made of it, a class with methods in a module that acts: what its
methods do with it later is the object's business. Methods are followed where the text says what the object is: `self`,
a class, a parameter with a type, an object that was made here. Nothing is run; what cannot be told from the text is
left out. Without arguments the three walks of the house are counted: a target's name in a build, a data folder in a
run, the destination of a push.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
WALKS = (
    "rlbox/cli/images/build.py:verb:name",
    "rlbox/cli/runs/run.py:verb:data",
    "rlbox/cli/images/push.py:verb:destination",
)
Function = ast.FunctionDef | ast.AsyncFunctionDef
ACTING_ROOMS = ("cli", "host", "run", "supervise")
Carried = dict[str, str]
"""Names that carry the value, each with the field of it that is meant."""


@dataclass(frozen=True, kw_only=True)
class Stop:
    """A place on the way: the function that is entered, and the parameters that carry the value.

    `carried` has each parameter with the field of it that is meant, "" for all of it; `made` says whether they carry
    what a call made of the value.
    """

    module: str
    function: str
    carried: frozenset[tuple[str, str]]
    made: bool = False


@dataclass
class Module:
    """One file: what it defines, and what its names mean."""

    name: str
    path: Path
    tree: ast.Module = field(repr=False)

    @cached_property
    def functions(self) -> dict[str, Function]:
        """Functions and methods by name, a method as `Class.method`."""
        found: dict[str, Function] = {}
        for node in self.tree.body:
            if isinstance(node, Function):
                found[node.name] = node
            elif isinstance(node, ast.ClassDef):
                found |= {f"{node.name}.{part.name}": part for part in node.body if isinstance(part, Function)}
        return found

    @cached_property
    def classes(self) -> set[str]:
        """Names of the classes defined here."""
        return {node.name for node in self.tree.body if isinstance(node, ast.ClassDef)}

    def is_value(self, name: str) -> bool:
        """Return whether a class only holds what it is made of: it has no public method, or lies where nothing acts."""
        if "act" not in self.name.split(".") and self.name.split(".")[1] not in ACTING_ROOMS:
            return True
        body = next(node.body for node in self.tree.body if isinstance(node, ast.ClassDef) and node.name == name)
        methods = [part for part in body if isinstance(part, Function) and not part.decorator_list]
        return not [part for part in methods if not part.name.startswith("_") or part.name == "__init__"]

    @cached_property
    def names(self) -> dict[str, str]:
        """What is imported, wherever it stands: name to dotted name."""
        found: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                found |= {alias.asname or alias.name: alias.name for alias in node.names}
        return found


class House:
    """The modules of a tree by dotted name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules: dict[str, Module] = {}
        for path in sorted((root / "rlbox").rglob("*.py")):
            if "_shipped" not in path.parts:
                name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
                self.modules[name] = Module(name, path, ast.parse(path.read_text(encoding="utf-8")))

    def find(self, dotted: str) -> tuple[Module, str] | None:
        """Return the module and the name in it that a dotted name means, through re-exports."""
        module, _, name = dotted.rpartition(".")
        if module not in self.modules:
            return None
        found = self.modules[module]
        if name in found.functions or name in found.classes:
            return found, name
        return self.find(found.names[name]) if name in found.names else None


class Visit:
    """One function, read with the names that carry the value on entry."""

    def __init__(self, house: House, stop: Stop) -> None:
        self._house, self._stop = house, stop
        self._module = house.modules[stop.module]
        self._node = self._module.functions[stop.function]
        self._types: dict[str, str] = {}
        for name, text in self._typed():  # what is told first helps to tell the rest
            self._types[name] = text

    def leads_to(self) -> Iterator[Stop]:
        """Yield the functions that get the value from here, as it is or as what a call here made of it."""
        own, made = dict(self._stop.carried), dict[str, str]()
        while self._learn(own, made):
            pass
        for call in ast.walk(self._node):
            if isinstance(call, ast.Call):
                yield from self._entered(call, own, made=self._stop.made)
                yield from self._entered(call, made, made=True)

    def _typed(self) -> Iterator[tuple[str, str]]:
        arguments = self._node.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if argument.annotation:
                yield argument.arg, ast.unparse(argument.annotation).strip("'\"").partition(" | ")[0]
        if "." in self._stop.function and arguments.args:
            yield arguments.args[0].arg, self._stop.function.partition(".")[0]
        for node in ast.walk(self._node):
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Call)
                and (found := self._type_of(node.value))
            ):
                goals = [goal.id for goal in node.targets if isinstance(goal, ast.Name)]
                yield from ((goal, f"{found[0].name}.{found[1]}") for goal in goals)

    def _learn(self, own: Carried, made: Carried) -> bool:
        """Take up the names that stand for the value or for what a call makes of it; say whether some are new."""
        before = len(own) + len(made)
        for goal, value in self._bound():
            names = {name.id for name in ast.walk(goal) if isinstance(name, ast.Name)} - {"self", "app"} - set(own)
            for carried in (own, made):
                meant = self._packed(value, carried) or _part(value, carried)
                if meant is not None:
                    carried |= dict.fromkeys(names - set(carried), meant)
            if not self._stop.made and isinstance(value, ast.Call) and self._makes(value, own):
                made |= dict.fromkeys(names - set(made), "")
        return len(own) + len(made) > before

    def _packed(self, value: ast.expr, carried: Carried) -> str | None:
        """Return the field of a new value that this one is put into; None when it is put into none."""
        if not isinstance(value, ast.Call):
            return None
        goal = self._goal(value.func)
        if goal is None or goal[1] not in goal[0].classes or not goal[0].is_value(goal[1]):
            return None
        return next((word.arg for word in value.keywords if word.arg and _part(word.value, carried) is not None), None)

    def _bound(self) -> Iterator[tuple[ast.expr, ast.expr]]:
        """Yield each goal of an assignment, a `with` or a loop with its value."""
        for node in ast.walk(self._node):
            match node:
                case ast.Assign(targets=[goal], value=value) | ast.NamedExpr(target=goal, value=value):
                    yield goal, value
                case ast.AnnAssign(target=goal, value=ast.expr() as value):
                    yield goal, value
                case ast.withitem(context_expr=value, optional_vars=ast.expr() as goal):
                    yield goal, value
                case ast.For(target=goal, iter=value) | ast.comprehension(target=goal, iter=value):
                    yield goal, value
                case _:
                    pass

    def _makes(self, call: ast.Call, carried: Carried) -> bool:
        """Return whether a function is called that makes another value of it, not an object that acts."""
        goal = self._goal(call.func)
        if goal and goal[1] in goal[0].classes:
            return False
        made = self._type_of(call)
        if made and not made[0].is_value(made[1]):
            return False
        return any(_part(value, carried) == "" for value in _given(call))

    def _goal(self, called: ast.expr) -> tuple[Module, str] | None:
        """Return the function or class that is called, where the text tells."""
        if isinstance(called, ast.Name):
            if called.id in self._module.functions or called.id in self._module.classes:
                return self._module, called.id
            return self._house.find(self._module.names.get(called.id, ""))
        if not isinstance(called, ast.Attribute):
            return None
        holder = self._type_of(called.value)
        if holder and f"{holder[1]}.{called.attr}" in holder[0].functions:
            return holder[0], f"{holder[1]}.{called.attr}"
        if isinstance(called.value, ast.Name):
            return self._house.find(f"{self._module.names.get(called.value.id, '')}.{called.attr}")
        return None

    def _type_of(self, node: ast.expr) -> tuple[Module, str] | None:
        """Return the class of an object, where the text tells."""
        name = ""
        if isinstance(node, ast.Name):
            name = self._types.get(node.id, node.id)
        elif isinstance(node, ast.Attribute) and (holder := self._type_of(node.value)):
            return self._class(_field_type(*holder, node.attr), holder[0])
        elif isinstance(node, ast.Call):
            made = self._goal(node.func)
            if made and made[1] in made[0].classes:
                return made
            if made and (told := made[0].functions[made[1]].returns):
                return self._class(ast.unparse(told).strip("'\"").partition(" | ")[0], made[0])
            return None
        return self._class(name, self._module)

    def _class(self, name: str, module: Module) -> tuple[Module, str] | None:
        if name in module.classes:
            return module, name
        found = self._house.find(module.names.get(name, name))
        return found if found and found[1] in found[0].classes else None

    def _entered(self, call: ast.Call, carried: Carried, *, made: bool) -> Iterator[Stop]:
        goal = self._goal(call.func)
        if goal is None:
            return
        module, name = goal
        if name in module.classes:
            name = f"{name}.__init__"
        if name not in module.functions:
            return
        parameters = _parameters(module.functions[name], bound="." in name)
        given = [*zip(parameters, call.args, strict=False), *((word.arg or "", word.value) for word in call.keywords)]
        reached = {(parameter, _part(value, carried)) for parameter, value in given if parameter}
        if found := frozenset((parameter, meant) for parameter, meant in reached if meant is not None):
            yield Stop(module=module.name, function=name, carried=found, made=made)


def _given(call: ast.Call) -> Iterator[ast.expr]:
    yield from call.args
    yield from (word.value for word in call.keywords)


def _part(node: ast.expr, carried: Carried) -> str | None:
    """Return which field of an expression carries the value, "" when all of it does; None when none does."""
    match node:
        case ast.Name(id=name):
            return carried.get(name)
        case ast.Attribute(value=value, attr=attr):
            meant = _part(value, carried)
            return "" if meant in ("", attr) else None
        case ast.Subscript(value=value) | ast.Starred(value=value):
            return _part(value, carried)
        case ast.BoolOp(values=values):
            return next((meant for value in values if (meant := _part(value, carried)) is not None), None)
        case ast.IfExp(body=first, orelse=second):
            meant = _part(first, carried)
            return _part(second, carried) if meant is None else meant
        case ast.BinOp(left=left, op=ast.Div()):  # a path below the folder
            return _part(left, carried)
        case _:
            return None


def _field_type(module: Module, name: str, wanted: str) -> str:
    """Return the type that a class gives to one of its fields or properties, as it is written; else nothing."""
    body = next(node.body for node in module.tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    for part in body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name) and part.target.id == wanted:
            return ast.unparse(part.annotation).strip("'\"").partition(" | ")[0]
        if isinstance(part, Function) and part.name == wanted and part.returns:
            return ast.unparse(part.returns).strip("'\"").partition(" | ")[0]
    return ""


def _parameters(node: Function, *, bound: bool) -> list[str]:
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    return names[1:] if bound else names


def walk(house: House, start: str) -> list[Stop]:
    """Return every function that the parameter enters, in the order in which it does.

    Parameters
    ----------
    start
        `FILE:FUNCTION:PARAM`, the file relative to the tree.
    """
    file, function, parameter = start.split(":")
    name = ".".join(Path(file).with_suffix("").parts)
    waiting = [Stop(module=name, function=function, carried=frozenset({(parameter, "")}))]
    seen: dict[Stop, None] = {}
    while waiting:
        stop = waiting.pop(0)
        if stop not in seen:
            seen[stop] = None
            waiting += Visit(house, stop).leads_to()
    return list(seen)


def files_of(stops: Iterable[Stop]) -> list[str]:
    """Return the modules that were entered, each once."""
    return list(dict.fromkeys(stop.module for stop in stops))


def main() -> int:
    """Print the files of each walk, and how many they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=CHECKOUT, help="the checkout to read")
    parser.add_argument("walks", nargs="*", default=WALKS, metavar="FILE:FUNCTION:PARAM")
    told = parser.parse_args()
    house = House(told.tree.resolve())
    for start in told.walks:
        files = files_of(walk(house, start))
        sys.stdout.write(f"{start}: {len(files)} files\n" + "".join(f"  {name}\n" for name in files))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
