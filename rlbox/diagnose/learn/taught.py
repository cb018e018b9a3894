"""Signatures made of what a traceback says: by the words of a message, and by the place where it was raised."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from rlbox.diagnose.catalogue import LogSignature
from rlbox.diagnose.learn.template import (
    LEAST_LETTERS,
    LinePart,
    cut,
    example_of,
    letters,
    longest,
    pattern_of,
    shown,
    unnamed,
)
from rlbox.diagnose.read.trace import StackFrame
from rlbox.diagnose.read.triggers import is_triggered
from rlbox.diagnose.soundness import problems_of

_PACKAGE = re.compile(r"(?:site|dist)-packages/((\w+)/(?:.*/)?(\w+\.py))$")
_HELPERS = {"pydantic", "pydantic_core"}
"""Packages that say what is wrong with somebody else's values: whose these are stands above them."""
_LIBRARY = re.compile(r"/lib/python3\.\d+/|<frozen ")
_SYSTEM = re.compile(
    r"\[Errno \d*\]?|No such file or directory|[pP]ermission denied|No space left on device|Read-only file system"
    r"|[cC]onnection (?:refused|reset by peer)|[aA]ddress already in use"
)
"""Sentences of the operating system, which it says to whoever asks."""
_ANYWHERE = re.compile(
    r"^(?:__\w+__|_*(?:call|run|main|wrapper|wrapped|inner|func|fn|forward|apply|step|execute|start|invoke|handle"
    r"|dispatch|call_impl|wrapped_call_impl))$"
)
"""Functions of which every package has one."""
_MOST_PACKAGES, _MOST_FUNCTIONS = 4, 3
_NO_NAME = re.compile(r"[^a-z0-9]+")
_NAME_LETTERS = 60


@dataclass(frozen=True, slots=True)
class Taught:
    """One signature, a line it is for, and for people what it asks for and where; `problems`: why it is no good."""

    signature: LogSignature
    example: str
    template: str
    scope: str = ""
    problems: tuple[str, ...] = ()


def by_words(
    parts: tuple[LinePart, ...], frames: Sequence[StackFrame], around: Sequence[StackFrame] = (), name: str = ""
) -> Taught:
    """Return the signature of a message.

    What says enough for two messages is known without the exception's name, too: that changes with versions.

    Parameters
    ----------
    frames, around
        Those above the exception itself, and those of the whole traceback.
    name
        The id of its cause, which its words give where there is none yet.
    """
    kept = cut(parts)
    weak = is_weak(kept)
    if letters(kept) >= 2 * LEAST_LETTERS and not weak:
        kept = unnamed(kept)
    near, scope = _function_scope(frames) if weak else _package_scope((*around, *frames))
    text = pattern_of(kept)
    bare = weak and not letters(kept) and "'" not in text
    pattern = f"^(?:[\\w.]+\\.)?{text}$" if bare else text
    taught = _made(name or _id(kept, near), pattern, near, example_of(kept), shown(kept), scope, longest(kept))
    if weak and not near:
        told = "says too little to be told from others, and no traceback says where it was"
        return Taught(taught.signature, taught.example, taught.template, scope, (*taught.problems, told))
    return taught


def by_place(exception: str, parts: tuple[LinePart, ...], frames: Sequence[StackFrame], name: str) -> Taught | None:
    """Return the signature of an exception that a function of a package raises, whatever it says; None without one.

    `exception` is its name with its modules. It is one of the package's own, which tells something, or its message is
    weak, or passes on what the system says: such words change with versions more than the place.
    """
    kind, places = exception.rpartition(".")[2], list(dict.fromkeys(_places(frames)))
    if not kind or not places:
        return None
    package, file, _ = places[0]
    own = exception.startswith(f"{package}.")
    if not (own or is_weak(cut(parts)) or _SYSTEM.search(shown(parts))):
        return None
    near = [function for other, _, function in places if other == package][: _MOST_FUNCTIONS if own else 1]
    said = rf"/{package}/.*[:.]{_any_of(near)}$" if own else rf"/{package}/(?:.*/)?{re.escape(file)}:{near[0]}$"
    return _made(name, rf"^(?:[\w.]+\.)?{kind}(?:: |$)", said, f"{kind}: NAME", kind, _told(near, package), kind)


def _places(frames: Sequence[StackFrame]) -> Iterator[tuple[str, str, str]]:
    """Yield package, file and function of the frames whose function tells something, the innermost first."""
    for frame in reversed(frames):
        found, function = _PACKAGE.search(frame.file), _function(frame)
        if found and found.group(2) not in _HELPERS and function and not _ANYWHERE.match(function):
            yield found.group(2), found.group(3), function


def is_weak(parts: Collection[LinePart]) -> bool:
    """Whether a message says too little by itself, what the system says not counted."""
    own = tuple(LinePart(part.kind, _SYSTEM.sub("", part.text)) for part in parts)
    return letters(own) < LEAST_LETTERS


def _made(name: str, pattern: str, near: str, example: str, template: str, scope: str, anchor: str) -> Taught:
    anchors = () if is_triggered(example) else tuple(filter(None, [anchor]))
    signature = LogSignature(
        cause=name, fix=name, title=template[:100], remedy="", pattern=pattern, near=near, anchor=anchors
    )
    return Taught(signature, example, template, scope, tuple(problems_of(signature, example)))


def _told(names: Sequence[str], package: str) -> str:
    functions = ", ".join(names)
    return f"{functions} of {package}"


def _package_scope(frames: Sequence[StackFrame]) -> tuple[str, str]:
    """Return of which packages a traceback must have frames, as an expression and for people; empty of none.

    Those are asked of a message that says enough by itself; their files move from version to version.
    """
    packages = list(dict.fromkeys(_packages(frames)))[:_MOST_PACKAGES]
    return (f"-packages/{_any_of(packages)}/", ", ".join(packages)) if packages else ("", "")


def _any_of(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"(?:{'|'.join(names)})"


def _function_scope(frames: Sequence[StackFrame]) -> tuple[str, str]:
    """Return in which function a message that says little must have been raised, as an expression and for people.

    Or in the one by which its package was entered: that is what users call, and stays. Empty where no frame tells.
    """
    for frame in reversed(frames):
        function = _function(frame)
        if found := _PACKAGE.search(frame.file):
            package = found.group(2)
            if package in _HELPERS:
                continue
            if function:
                names = list(dict.fromkeys([function, *_entry(frames, package)]))
                return rf"/{package}/.*[:.]{_any_of(names)}$", _told(names, package)
            return f"-packages/{package}/", package
        if _LIBRARY.search(frame.file):
            continue
        file = frame.file.rpartition("/")[2]
        if function and function != "<module>":
            return rf"[:.]{function}$", function
        if re.fullmatch(r"[\w-]+\.py", file):
            return rf"{re.escape(file)}:", file
    return "", ""


def _packages(frames: Sequence[StackFrame]) -> Iterator[str]:
    """Yield the packages that a traceback went through, the innermost first."""
    for frame in reversed(frames):
        if (found := _PACKAGE.search(frame.file)) and found.group(2) not in _HELPERS:
            yield found.group(2)


def _entry(frames: Sequence[StackFrame], package: str) -> Iterator[str]:
    """Yield the function by which a traceback came into a package, where it tells something."""
    for frame in frames:
        found, function = _PACKAGE.search(frame.file), _function(frame)
        if found and found.group(2) == package:
            if function and not _ANYWHERE.match(function) and "_" in function.strip("_"):
                yield function
            return


def _function(frame: StackFrame) -> str:
    found = re.match(r"[A-Za-z_]\w*", frame.function.rpartition(".")[2])
    return found.group() if found else ""


def _id(parts: Collection[LinePart], near: str) -> str:
    """Return the id of a new fix, by the words of its template."""
    said = " ".join(part.text for part in parts if part.kind == "text")
    scope = "" if letters(parts) >= LEAST_LETTERS else re.sub(r"\\.|[^\w]", " ", near)
    return "learnt-" + _NO_NAME.sub("-", f"{said} {scope}".casefold())[:_NAME_LETTERS].strip("-")
