"""What a log whose cause is unknown teaches: a signature of its root, by its template and its traceback's place."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rlbox.diagnose.assess import HEADING, Case
from rlbox.diagnose.catalogue import LogSignature, SignatureSet
from rlbox.diagnose.learn.taught import Taught, by_place, by_words
from rlbox.diagnose.learn.template import LinePart, cut, example_of, letters, shown, template_of
from rlbox.diagnose.private import hidden
from rlbox.diagnose.read.event import Event
from rlbox.diagnose.read.trace import Raised, StackFrame
from rlbox.diagnose.verdict import UNKNOWN, Diagnosis
from rlbox.errors import WorkFailed, page
from rlbox.secrets.masks import Masks

MOST_LIKE = 4
"""Harmless lines that fit a template before it is called too wide."""
_OWNER = re.compile(r"/(?:home|Users|mnt|data|workspace|scratch|root|srv)/([^/\s'\":,]+)")
_BELOW = 4
_LETTERS = re.compile(r"[A-Za-z]{4,}")
_TRANSPORT = re.compile(
    r"^(?:HTTP\w*|Max\w*|Retry|Connect\w*|Request\w*|\w*Timeout|Proxy|SSL|Transport)(?:Error|Exception)?$"
)
"""Exceptions of those who carry a question: what was asked for, and why it failed, another one says."""
_LONG = 200


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """A signature for a failure that nobody knew.

    `line` is the number of the root, `root` its whole line as a template, `template` what is asked for, for people.
    `near_miss` is a harmless line of the same log that comes closest and does not fit, with `near_miss_line` its
    number; empty and 0 where the log has none. `scope` says where a traceback must have been. `further` are other ways
    in which the same failure shows when its words change: exceptions that came of it, and its place.
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
    further: tuple[Taught, ...] = ()

    @property
    def signatures(self) -> tuple[LogSignature, ...]:
        """All signatures of the failure, that of its words first."""
        return self.signature, *(one.signature for one in self.further)


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

    def parts_of(text: str) -> tuple[LinePart, ...]:
        return template_of(hidden(Masks(environment).text(text)), names)

    whole, frames = parts_of(_telling(root)), _frames(root)
    first = by_words(whole, frames, root.event.frames)
    if problems := [*first.problems, *_rivals(first, catalogue)]:
        raise unteachable("; ".join(problems), f"line {root.number}")
    name = first.signature.cause
    others = [by_words(parts_of(one.text), one.frames, one.frames, name) for one in _came_of_it(root)]
    if place := by_place(_exception(root), whole, frames, name):
        others.append(place)
    return Lesson(
        id=name,
        line=root.number,
        root=shown(whole),
        template=first.template,
        signature=first.signature,
        example=first.example,
        scope=first.scope,
        further=tuple(one for one in others if not (one.problems or _rivals(one, catalogue))),
    )


def _exception(root: Case) -> str:
    """Return the name of the exception that is the root, with its modules; empty of what is none."""
    return next((one.name for one in root.event.raised if one.number == root.number), "")


def _rivals(one: Taught, catalogue: SignatureSet) -> list[str]:
    """Return why a signature is no good beside those that are there; empty where it is."""
    known = {other.cause or other.fix for other in catalogue.fitting(one.example) if not (other.near or other.far)}
    return [f"is found by {', '.join(sorted(known))}, which is not its cause here"] if known else []


def _came_of_it(root: Case) -> Iterator[Raised]:
    """Yield the exceptions of a package's own that came of the root: their names tell more than any builtin one's."""
    event = root.event
    for raised in event.raised:
        if raised.number <= root.number or "." not in raised.name or _TRANSPORT.match(raised.kind):
            continue
        if event.class_at(raised.text, raised.kind) == "root":
            yield raised


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


def private_words(event: Event, names: Collection[str] = ()) -> frozenset[str]:
    """Return the names that paths and prefixes of an event tell, of people, disks, projects and hosts, beside `names`.

    `names` are those of this user and this host.
    """
    texts = [event.row.text, event.text, *(frame.file for frame in event.frames), *(line for _, line in event.tail)]
    owners = {name for text in texts for name in _OWNER.findall(text) if len(name) > 2}
    return frozenset({*names, *owners, event.row.host} - {""})
