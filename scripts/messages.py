"""Keep the catalogue of messages: `python scripts/messages.py [--check]`.

Finds every text of the package that a person may be shown: what stands in the code of `rlbox/`, the help of the verbs,
what click says of its own, titles and remedies of the shipped specs and tables. Each stands in
`rlbox/messages/zh/ROOM.json` with its other half: empty as long as it lacks one, `null` where it is the same in every
language (a command, a pattern, a value). New ones are added, those that have gone are taken out.
`--check` writes nothing, and exits 1 where it would, or one lacks its half.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

from rlbox.messages.layout import paragraphs  # noqa: E402 - from this checkout
from rlbox.messages.template import PLACE  # noqa: E402
from rlbox.spec.load import load_toml  # noqa: E402

FOLDER = CHECKOUT / "rlbox/messages/zh"
HAND = "words"
"""The file that is kept by hand: single words, joints, states, which no rule can tell from names."""
PROGRAMS = (
    "doctor/act/programs/",
    "evaluation/act/programs/",
    "evaluation/exports/act/programs/",
    "evaluation/overlap/act/programs/",
    "sandbox/act/programs/",
)
UNSHOWN = (*PROGRAMS, "docs/", "messages/", "scaffold/files/")
TABLES = ("templates/**/*.toml", "images/*/target.toml", "jobs/*.toml", "rlbox/**/*.toml")
KEYS = (
    "title",
    "failure",
    "what",
    "rule",
    "help",
    "remedy",
    "why",
    "says",
    "summary",
    "hint",
    "note",
    "reason",
    "next_step",
    "next",
    "cause",
    "untested",
)
"""Keys of shipped specs and tables whose values are sentences."""
DEAF_CALLS = (
    "compile", "match", "fullmatch", "search", "sub", "finditer", "findall", "split", "rsplit", "partition",
    "rpartition", "startswith", "endswith", "getattr", "setattr", "hasattr", "replace", "strip", "lstrip",
    "rstrip", "removeprefix", "removesuffix", "encode", "decode", "Path", "joinpath", "open", "pop", "setdefault",
    "count", "find", "rfind", "index", "isinstance", "TypeVar", "namedtuple", "import_module",
    "strptime", "strftime", "NewType", "ArgumentParser", "add_argument",
)  # fmt: skip
"""Calls whose words are no message: patterns, keys, formats."""
DEAF_KEYWORDS = (
    "metavar",
    "envvar",
    "name",
    "encoding",
    "pattern",
    "mode",
    "program",
    "argv",
    "env",
    "command",
    "script",
    "description",
)
COMMAND = re.compile(
    r"(?:next: )?(?:rlbox|python3?|docker|ssh|git|pip|uv|sh|bash|apt-get|kill|nvidia-smi|ray|df|curl|-{1,2}\w[\w-]*) "
    r"(?!.*\b(?:is|are|was|has|the|of|no|not|cannot|does|finds|wants|says|what|takes|goes|needs|only|this|that|which|must|may|to|for|a|an)\b)[^;.:]*$"
)
_WORD = re.compile(r"(?<![\w{./<-])[A-Za-z][a-z'’]+(?![\w}/(=<>]|\.\w|-\w)")
_EDGE = re.compile(r"^(?:[\s;:,.?·–#*>]+(?=\S)|-+ |\((?=[^)]*$))+|(?:\s+)$")


def halves() -> dict[str, str]:
    """Return what shipped tables say in both languages themselves: `title` beside `title_zh`."""
    found: dict[str, str] = {}
    for path in (*(CHECKOUT / "templates").rglob("*.toml"), *(CHECKOUT / "rlbox/evaluation/suites").glob("*.toml")):
        table = load_toml(path)
        for key in KEYS:
            if f"{key}_zh" in table:
                english, other = (
                    unique_places(placed(_FILLED.sub(_place, " ".join(table[name].split()))))
                    for name in (key, f"{key}_zh")
                )
                found[english] = other
    return found


_BRACKETS = re.compile(r"\([^()]*\)")


SPEAKS = re.compile(r'\b(?:echo|cannot|may_install|say|fail|refuse)((?:\s+"(?:[^"\\]|\\.)*")+)')


_FILLED = re.compile(r"\{\{\s*(.*?)\s*\}\}")


def main(words: list[str]) -> int:
    """Bring the catalogue up to date, or say what it lacks."""
    found = dict(sorted(everything().items()))
    elsewhere = {text: other for path in FOLDER.glob("*.json") for text, other in read(path.stem).items() if other}
    hand, given = read(HAND), halves()
    stale, lacking = [], 0
    for room, texts in found.items():
        held = read(room)
        known = elsewhere | {text: other for text, other in held.items() if other != ""}
        wanted = {text: given.get(text, known.get(text, "")) for text in sorted(texts) if text not in hand}
        lacking += sum(other == "" for other in wanted.values())
        if wanted != held:
            stale.append(room)
            if "--check" not in words:
                write(room, wanted)
    gone = {path.stem for path in FOLDER.glob("*.json")} - set(found) - {HAND}
    for room in gone if "--check" not in words else ():
        (FOLDER / f"{room}.json").unlink()
    sys.stdout.write(
        f"{sum(map(len, found.values()))} messages in {len(found)} rooms, {lacking} without their other half\n"
    )
    for room in (*stale, *gone) if "--check" in words else ():
        sys.stdout.write(f"rlbox/messages/zh/{room}.json is not up to date: python scripts/messages.py\n")
    return int("--check" in words and bool(stale or gone or lacking))


def _place(hit: re.Match[str]) -> str:
    names = re.findall(r"[A-Za-z_]\w*", re.sub(r"'[^']*'", "", hit[1]))
    return f"{{{names[-1] if names else 'x'}}}"


def read(room: str) -> dict[str, str | None]:
    """Return what a file of the catalogue holds."""
    path = FOLDER / f"{room}.json"
    return dict(json.loads(path.read_text("utf-8"))) if path.is_file() else {}


def write(room: str, texts: Mapping[str, str | None]) -> None:
    """Write a file of the catalogue, a message a line."""
    rows = [
        f"{json.dumps(key, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}"
        for key, value in texts.items()
    ]
    (FOLDER / f"{room}.json").write_text("{\n" + ",\n".join(rows) + "\n}\n" if rows else "{}\n", "utf-8")


def everything() -> dict[str, set[str]]:
    """Return room to its messages; one stands in the first room of the code that has it, and in the first of tables."""
    found: dict[str, set[str]] = {}
    seen: set[tuple[bool, str]] = set()
    given = halves()
    for room, text in all_texts():
        whole = unique_places(" ".join(text.split()))
        for message in (whole,) if whole in given else messages_of(text):
            if (place := (room.startswith("table-"), message)) not in seen:
                seen.add(place)
                found.setdefault(room, set()).add(message)
    return found


def all_texts() -> Iterator[tuple[str, str]]:
    """Yield every text with its room."""
    for path in sorted((CHECKOUT / "rlbox").rglob("*.py")):
        name = path.relative_to(CHECKOUT / "rlbox").as_posix()
        if not name.startswith(UNSHOWN) and "_shipped" not in path.parts:
            room = name.split("/")[0].removesuffix(".py") if "/" in name else "ground"
            room = "-".join(name.split("/")[:2]).removesuffix(".py") if room == "cli" else room
            yield from ((room, text) for text in texts_of(ast.parse(path.read_text("utf-8"))))
    for path in sorted((CHECKOUT / "rlbox/engine/act/programs").glob("*.sh")):
        yield from (("engine", text) for text in shell_texts(path.read_text("utf-8")))
    for pattern in TABLES:
        for path in sorted(CHECKOUT.glob(pattern)):
            if "_shipped" not in path.parts and path.name not in ("words.toml", "demands.toml"):
                yield from ((_table_room(path), placed(text)) for text in sentences(load_toml(path)))
    for path in sorted((CHECKOUT / "jobs").glob("*.toml")):
        yield from (("table-jobs", name) for name in parts_of(load_toml(path)))
    yield from (("click", text) for module in click_modules() for text in gettext_of(module))


def placed(text: str) -> str:
    """Return a text with places for the image's folders, which lie elsewhere on a machine without engine."""
    return text.replace("/opt/venv", "{venv}").replace("/opt/rlbox", "{own}")


def _table_room(path: Path) -> str:
    parts = path.relative_to(CHECKOUT).parts
    return f"table-{parts[1] if parts[0] in ('rlbox', 'templates') else parts[0]}"


def click_modules() -> Iterable[Any]:
    """Return click's modules that speak."""
    from click import core, decorators, exceptions, formatting, parser, types

    return core, decorators, exceptions, formatting, parser, types


def gettext_of(module: Any) -> Iterator[str]:
    """Yield what a module hands to gettext."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("_", "ngettext"):
            texts = (arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str))
            yield from (re.sub(r"\{(\w+)!r\}", r"'{\1}'", text) for text in texts)


def sentences(value: Any, key: str = "") -> Iterator[str]:
    """Yield the sentences of a spec or table."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in ("run", "hook") and isinstance(inner, str):
                yield from shell_texts(_FILLED.sub(_place, inner))
            if name != "why" or "title_zh" not in value:  # the story of a fix is a page, not a message
                yield from sentences(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from sentences(inner, key)
    elif isinstance(value, str) and key in KEYS:
        yield _FILLED.sub(_place, value)


def parts_of(job: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a job calls the parts of the memory and disk that it needs, as it is shown."""
    for stage in job.get("fits", {}).get("stages", {}).values():
        for kind in ("card", "host", "disk", "shm"):
            yield from (name.replace("_", " ") for name in stage.get(kind, {}))


def shell_texts(script: str) -> Iterator[str]:
    """Yield what a shell script says: the quoted words behind a command that speaks, `$name` being a place."""
    for said in SPEAKS.findall(script):
        for text in re.findall(r'"((?:[^"\\]|\\.)*)"', said):
            yield re.sub(r"\$(?:\{(\w+)[^}]*\}|(\w+))", lambda hit: f"{{{hit[1] or hit[2]}}}", text.replace('\\"', '"'))


def texts_of(tree: ast.AST) -> Iterator[str]:
    """Yield the texts of a module, with `{name}` for what is put in; of docstrings those of the verbs alone."""
    for node in ast.iter_child_nodes(tree):
        yield from _texts(node)


def _texts(node: ast.AST) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
        if is_verb(node) and (said := ast.get_docstring(node)):
            yield "\n\n".join("\n".join(lines) if kept else " ".join(lines) for kept, lines in paragraphs(said))
        body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
        parts: list[ast.AST] = [*node.decorator_list, *body]
        if not isinstance(node, ast.ClassDef):
            parts += [*node.args.defaults, *(one for one in node.args.kw_defaults if one)]
        for part in parts:
            yield from _texts(part)
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    text = literal(node)
    if text is not None:
        yield text
        for part in inner(node):
            yield from _texts(part)
        return
    for part in heard(node):
        yield from _texts(part)


def is_verb(node: ast.AST) -> bool:
    """Whether click shows a function's docstring."""
    names = {ast.unparse(one.func if isinstance(one, ast.Call) else one) for one in getattr(node, "decorator_list", ())}
    return any(name.endswith((".command", ".group")) for name in names)


def heard(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node that may hold texts for people."""
    if isinstance(node, ast.Call):
        yield from _heard_of_call(node)
    elif isinstance(node, ast.Compare):
        yield from (one for one in (node.left, *node.comparators) if isinstance(one, ast.Call))
    elif isinstance(node, ast.Subscript):
        yield from (node.value, *([] if isinstance(node.slice, ast.Constant) else [node.slice]))
    elif isinstance(node, ast.AnnAssign):
        yield from [node.value] if node.value else []
    elif isinstance(node, ast.Dict):
        yield from (key for key in node.keys if key and not isinstance(key, ast.Constant))
        yield from node.values
    else:
        yield from ast.iter_child_nodes(node)


def _heard_of_call(node: ast.Call) -> Iterator[ast.AST]:
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if name == "counted" and len(node.args) == len(_COUNTED) + 1:
        yield from _counted(*node.args)
        return
    if isinstance(node.func, ast.Call):
        yield node.func
    if isinstance(node.func, ast.Attribute) and not isinstance(node.func.value, ast.Constant):
        yield node.func.value
    if name not in DEAF_CALLS:
        yield from node.args
    yield from (one.value for one in node.keywords if one.arg not in DEAF_KEYWORDS)


_COUNTED = ("1 ", "{count} ")


def _counted(count: ast.AST, *words: ast.AST) -> Iterator[ast.AST]:
    """Yield what `amounts.counted` makes of two words, as templates; those of words handed to it are kept by hand."""
    yield count
    for before, word in zip(_COUNTED, words, strict=True):
        if isinstance(word, ast.Constant):
            yield ast.Constant(before + str(word.value))


def literal(node: ast.AST) -> str | None:
    """Return a text with its places named; `None` for what is none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(place(part) if isinstance(part, ast.FormattedValue) else str(part.value) for part in node.values)  # type: ignore[attr-defined]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = literal(node.left), literal(node.right)
        if left is not None or right is not None:
            return "".join(
                f"{{{named(side)}}}" if text is None else text
                for side, text in ((node.left, left), (node.right, right))
            )
    return None


def place(part: ast.FormattedValue) -> str:
    """Return a place; one that is shown with quotes stands in quotes."""
    shown = f"{{{named(part.value)}}}"
    return f"'{shown}'" if part.conversion == ord("r") else shown


def named(node: ast.AST) -> str:
    """Return the last name of an expression, by which a translator knows what stands there."""
    names = re.findall(r"[A-Za-z_]\w*", re.sub(r"'[^']*'|\"[^\"]*\"", "", ast.unparse(node)))
    return names[-1].strip("_") or "x" if names else "x"


def inner(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is put into a text, in which more texts may stand."""
    if isinstance(node, ast.JoinedStr):
        yield from (part.value for part in node.values if isinstance(part, ast.FormattedValue))
    elif isinstance(node, ast.BinOp):
        for side in (node.left, node.right):
            if literal(side) is None:
                yield side
            else:
                yield from inner(side)


def messages_of(text: str) -> Iterator[str]:
    """Yield the messages of a text: the cells of its lines, each without the joints at its edges."""
    for line in text.split("\n"):
        for cell in re.split(r"\s{2,}", line.strip()):
            bare = _EDGE.sub("", cell)
            message = unique_places(bare[1:-1] if _BRACKETS.fullmatch(bare) else bare)
            if is_message(message):
                yield message


def unique_places(text: str) -> str:
    """Return a message whose places have names of their own; two that touch are one."""
    text = re.sub(r"(\{\w+\})(?:\{\w+\})+", r"\1", text)
    seen: dict[str, int] = {}

    def name(hit: re.Match[str]) -> str:
        seen[hit[1]] = seen.get(hit[1], 0) + 1
        return f"{{{hit[1]}{seen[hit[1]] if seen[hit[1]] > 1 else ''}}}"

    return PLACE.sub(name, text)


def is_message(text: str) -> bool:
    """Whether a text has words for people: two, or one beside a place; no command, path, pattern or key."""
    bare = PLACE.sub(" {} ", re.sub(r"`[^`]*`|'[^']*'", " {} ", text))
    words = _WORD.findall(bare)
    enough = len(words) >= 2 or (len(words) == 1 and re.search(r"\{\}|^\d+ ", bare) and len(words[0]) > 1)
    odd = re.search(r"\\[wdsSb.]|\(\?|\[\^|^\s*(SELECT|import\b|from \w+ import|def |#!|set -)|\$\(|&&|<\w+>|</", text)
    return bool(enough and " " in text.strip() and not odd and not COMMAND.match(text))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
