"""What a log whose cause is unknown teaches: a signature of its root, by its template and its traceback's place."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rlbox.diagnose.assess import HEADING, Case
from rlbox.diagnose.catalogue import LogSignature, SignatureSet
from rlbox.diagnose.learn.template import (
    LEAST_LETTERS,
    LinePart,
    cut,
    example_of,
    letters,
    longest,
    pattern_of,
    shown,
    template_of,
)
from rlbox.diagnose.private import hidden
from rlbox.diagnose.read.event import Event
from rlbox.diagnose.read.trace import StackFrame
from rlbox.diagnose.read.triggers import is_triggered
from rlbox.diagnose.soundness import problems_of
from rlbox.diagnose.verdict import UNKNOWN, Diagnosis
from rlbox.errors import WorkFailed, page
from rlbox.secrets.masks import Masks

MOST_LIKE = 4
"""Harmless lines that fit a template before it is called too wide."""
_PACKAGE = re.compile(r"(?:site|dist)-packages/((\w+)/(?:.*/)?(\w+\.py))$")
_HELPERS = {"pydantic", "pydantic_core"}
"""Packages that say what is wrong with somebody else's values: whose these are stands above them."""
_LIBRARY = re.compile(r"/lib/python3\.\d+/|<frozen ")
_OWNER = re.compile(r"/(?:home|Users|mnt|data|workspace|scratch|root|srv)/([^/\s'\":,]+)")
_SYSTEM = re.compile(
    r"\[Errno |No such file|ermission denied|No space left|Read-only file system"
    r"|onnection (?:refused|reset)"
)
"""Sentences of the operating system, which it says to whoever asks."""
_BELOW = 4
_LETTERS = re.compile(r"[A-Za-z]{4,}")
_NO_NAME = re.compile(r"[^a-z0-9]+")
_NAME_LETTERS = 60
_LONG = 200


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """A signature for a failure that nobody knew.

    `line` is the number of the root, `root` its whole line as a template, `template` what is asked for, for people.
    `near_miss` is a harmless line of the same log that comes closest and does not fit, with `near_miss_line` its
    number; empty and 0 where the log has none. `scope` says where a traceback must have been.
    """

    id: str
    line: int
    root: str
    template: str
    signature: LogSignature
    example: str
    scope: str = ""
    near_miss: str = ""
    near_miss_line: int = 0


@dataclass(frozen=True, slots=True)
class Likeness:
    """A line that resembles another one: how many of its words it shares, where it stands, and itself."""

    share: float
    number: int
    text: str


def check_teachable(found: Diagnosis, name: str) -> Case:
    """Return the root of a diagnosis that something can be learnt from; `name` is what was diagnosed, as it was typed.

    Raises
    ------
    WorkFailed
        Nothing is fatal, the cause is known, or the log holds only what followed from it.
    """
    root = found.root
    if root is None:
        raise WorkFailed(
            f"{name}: nothing fatal, so there is nothing to learn", next_step=f"rlbox diagnose {name} --why"
        )
    if not found.fetch and (found.cause != UNKNOWN or found.fix):
        known = found.fix if found.cause == UNKNOWN else found.cause
        raise WorkFailed(
            f"{name}: the cause is known: {known}", where=_where(found, root), next_step=f"rlbox diagnose {name}"
        )
    if root.cls != "root" or found.fetch:
        fetch = found.fetch or "the log of the process that failed first"
        raise WorkFailed(
            f"{name}: only consequences are in it, and none of them is a cause",
            where=_where(found, root),
            next_step=f"name {fetch} too",
        )
    return root


def _where(found: Diagnosis, root: Case) -> str:
    return f"{found.files[root.event.file].name}:{root.number}"


def learn(root: Case, catalogue: SignatureSet, environment: Mapping[str, str], names: Collection[str] = ()) -> Lesson:
    """Return the signature that finds failures like `root`.

    Parameters
    ----------
    catalogue
        What is known already.
    environment
        Holds the secrets of this process, which are masked however they are written.
    names
        Words that are nobody else's business: see `private_words`.

    Raises
    ------
    WorkFailed
        Nothing of the line is of its message, or what is left is unsound.
    """
    said = _telling(root)
    whole = template_of(hidden(Masks(environment).text(said)), names)
    parts = cut(whole)
    weak = letters(parts) < LEAST_LETTERS or bool(_SYSTEM.search(said))
    near, scope = _scope(_frames(root), weak=weak)
    text = pattern_of(parts)
    pattern = f"^(?:[\\w.]+\\.)?{text}$" if weak and not letters(parts) and "'" not in text else text
    example = example_of(parts)
    anchor = () if is_triggered(example) else tuple(filter(None, [longest(parts)]))
    name = _id(parts, near)
    signature = LogSignature(
        cause=name, fix=name, title=f"{shown(parts)[:100]}", remedy="", pattern=pattern, near=near, anchor=anchor
    )
    problems = list(problems_of(signature, example))
    if weak and not near:
        problems.append("says too little to be told from others, and no traceback says where it was")
    if rivals := {one.cause or one.fix for one in catalogue.fitting(example) if not (one.near or one.far)}:
        problems.append(f"is found by {', '.join(sorted(rivals))}, which is not its cause here")
    if problems:
        raise unteachable("; ".join(problems), f"line {root.number}")
    return Lesson(
        id=name,
        line=root.number,
        root=shown(whole),
        template=shown(parts),
        signature=signature,
        example=example,
        scope=scope,
    )


def unteachable(why: str, where: str) -> WorkFailed:
    """Return the refusal to make a signature of a line."""
    return WorkFailed(
        f"no signature can be made of the line that broke first: {why}",
        where=where,
        next_step=f"write one by hand, as {page('diagnose')} says, and name its folder: --signatures DIR",
    )


def likenesses(lesson: Lesson, lines: Sequence[tuple[int, str]]) -> Iterator[Likeness]:
    """Yield lines that share words with what a lesson looks for, each with how many."""
    wanted = words_of(lesson.template)
    for number, text in lines:
        if found := words_of(text):
            yield Likeness(len(wanted & found) / max(len(wanted), 1), number, text)


def words_of(text: str) -> frozenset[str]:
    """Return the words of a line that are worth comparing."""
    return frozenset(word.casefold() for word in _LETTERS.findall(text))


def public_line(text: str, environment: Mapping[str, str], names: Collection[str] = ()) -> str:
    """Return a line with nothing of one run in it: its template, with what stands for each hole."""
    private = {*names, *_OWNER.findall(text)}
    return example_of(cut(template_of(hidden(Masks(environment).text(text.strip())), private), _LONG))


def _telling(root: Case) -> str:
    """Return the line that says what went wrong: below one that only counts problems, the one that says most."""
    text = root.text.strip()
    if not HEADING.search(text):
        return text
    tails = [one.tail for one in root.event.raised if one.number == root.number] or [root.event.tail]
    below = [line.strip() for _, line in tails[0][:_BELOW]]
    below = [line for line in below if "[type=" in line] or below  # pydantic's own form, and no advice
    return max(below, key=lambda line: letters(cut(template_of(line))), default=text) or text


def _frames(root: Case) -> list[StackFrame]:
    """Return the frames above the exception that is the root, or all of its event."""
    for raised in root.event.raised:
        if raised.number == root.number and raised.frames:
            return raised.frames
    return root.event.frames


def _scope(frames: Sequence[StackFrame], *, weak: bool) -> tuple[str, str]:
    """Return where a traceback must have been, as an expression and for people; empty without a frame of a package.

    A message that says enough by itself is held to the package alone, whose files move from version to version; one
    that says little to the function, too.
    """
    for frame in reversed(frames):
        if found := _PACKAGE.search(frame.file):
            package, function = found.group(2), _function(frame)
            if package in _HELPERS:
                continue
            if weak and function:
                return rf"/{package}/.*:{function}$", f"{function} of {package}"
            return f"-packages/{package}/", package
        if not weak or _LIBRARY.search(frame.file):
            continue
        file, function = frame.file.rpartition("/")[2], _function(frame)
        if function and function != "<module>":
            return rf":{function}$", function
        if re.fullmatch(r"[\w-]+\.py", file):
            return rf"{re.escape(file)}:", file
    return "", ""


def _function(frame: StackFrame) -> str:
    found = re.match(r"[A-Za-z_]\w*", frame.function.rpartition(".")[2])
    return found.group() if found else ""


def private_words(event: Event, names: Collection[str] = ()) -> frozenset[str]:
    """Return the names that paths and prefixes of an event tell, of people, disks, projects and hosts, beside `names`.

    `names` are those of this user and this host.
    """
    texts = [event.row.text, event.text, *(frame.file for frame in event.frames), *(line for _, line in event.tail)]
    owners = {name for text in texts for name in _OWNER.findall(text) if len(name) > 2}
    return frozenset({*names, *owners, event.row.host} - {""})


def _id(parts: Collection[LinePart], near: str) -> str:
    """Return the id of a new fix, by the words of its template."""
    said = " ".join(part.text for part in parts if part.kind == "text")
    scope = "" if letters(parts) >= LEAST_LETTERS else re.sub(r"\\.|[^\w]", " ", near)
    return "learnt-" + _NO_NAME.sub("-", f"{said} {scope}".casefold())[:_NAME_LETTERS].strip("-")
