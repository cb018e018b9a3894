"""Do what a `next:` says, and look whether the outcome changed; the advice is read off the printed line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlbox.cli.root import COMMANDS

ADVISED = re.compile(r"\brlbox ((?:" + "|".join(sorted(COMMANDS, key=len, reverse=True)) + r")\b(?!-)[^`\n;,:()|&]*)")
"""A command line of rlbox's in a text; the group is what stands behind the word `rlbox`."""
_STEP = re.compile(r"^(?:# )? *next: +(.*(?:\n(?:# )? {9}.*)*)", re.MULTILINE)
_ERROR = re.compile(r"^(?:rlbox: error|Error): ", re.MULTILINE)
_CAUSE = re.compile(r"^cause: .*", re.MULTILINE)
_REFUSED = re.compile(r"^# refused: .*", re.MULTILINE)
_CHOICES = re.compile(r"(?:choose(?: one)? of|parameters|known|it has|take another|instances of rlbox): (.*)")
_OPTION = re.compile(r"--[a-z][a-z-]*(?: (?!(?:or|and|to|DIR,|FILE,)\b)[^\s,;)]+)?")
_SETTING = re.compile(r"\b(?:export|set|with|or) ([A-Z][A-Z_]{3,})\b")
_FORM = re.compile(r"\S*[A-Z]{3,}[/=:]\S*[A-Z]")
_FINDING = re.compile(r"^(?:error|warning|note): (?P<id>[a-z0-9-]+): .*\n(?:  where: .*\n)?  next:  (?P<step>.*)", re.M)


class Typed(Protocol):
    """What one command left behind, typed in this process or in one of its own."""

    @property
    def code(self) -> int: ...
    @property
    def out(self) -> str: ...
    @property
    def err(self) -> str: ...
    @property
    def data(self) -> Any: ...


@dataclass(frozen=True)
class Step:
    """What was typed, what came of it, and the advice in it."""

    typed: tuple[str, ...]
    said: Typed
    text: str

    def commands(self, fill: Mapping[str, str]) -> list[list[str]]:
        """Return the command lines of rlbox's in the advice, in their order; `fill` has values for its CAPITALS."""
        found = [found[1].strip().rstrip(".") for found in ADVISED.finditer(self.text)]
        ends = r" (?:then|or|and|goes|brings|prints|takes|tells|puts|on|outside)\b"
        lines = [re.split(ends, line)[0] for line in found]
        assert lines, f"no command of rlbox's in {self.text!r}"
        return [shlex.split(filled(line, fill)) for line in lines]

    def choices(self) -> list[str]:
        """Return what may be chosen."""
        found = _CHOICES.search(self.text)
        assert found, f"no choice in {self.text!r}"
        return [word.strip("{}") for word in re.split(r"[,;\s]+", found[1]) if word]

    def options(self, fill: Mapping[str, str], nth: int = 0) -> list[str]:
        """Return the options that are advised, with their values: of several ways, parted by `;`, those of one."""
        self._found(_OPTION)
        part = [part for part in self.text.split(";") if "--" in part][nth]
        return filled(" ".join(_OPTION.findall(part)), fill).split()

    def shell(self) -> str:
        """Return the shell text that the advice begins with, without the words around it."""
        said, _, ends = self.text.partition(", end them: ")
        return ends.partition(";")[0] or re.split(r",? or | \(| +# ", said)[0].strip("`")

    def setting(self, nth: int = 0) -> str:
        """Return the variable of the environment that is to be set."""
        found = _SETTING.findall(self.text)
        assert found, f"no variable in {self.text!r}"
        return str(found[nth])

    def form(self, fill: Mapping[str, str]) -> str:
        """Return a value in the form that is asked for: of HOST/NAME:TAG what `fill` makes of it."""
        return filled(self._found(_FORM)[0], fill)

    def _found(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.search(self.text)
        assert found, f"nothing like {pattern.pattern} in {self.text!r}"
        return found


class Follow:
    """Types lines, and follows what they advise."""

    def __init__(self, rlbox: Callable[..., Typed]) -> None:
        self.rlbox = rlbox

    def __call__(self, *typed: str) -> Step:
        """Type a line whose outcome has a next step."""
        return self.step(typed, self.rlbox(*typed))

    def step(self, typed: Sequence[str], said: Typed, text: str = "") -> Step:
        """Take the next step out of what was said; `text`: this one of several."""
        return Step(tuple(typed), said, text or step_text(said))

    def types(self, step: Step, nth: int = 0, code: int = 0, **fill: str) -> Typed:
        """Type the command that is advised; it ends with `code`, and not as the line that advised it."""
        return self.changed(step, step.commands(fill)[nth], code)

    def again(self, step: Step, *more: str, code: int = 0) -> Typed:
        """Type the first line once more, with `more` behind it; the outcome is another one."""
        return self.changed(step, [*step.typed, *more], code)

    def instead(self, step: Step, wrong: str, right: str, code: int = 0) -> Typed:
        """Type the first line once more with one word, or a part of a word, in the place of another."""
        assert wrong in " ".join(step.typed)
        return self.changed(step, [word.replace(wrong, right) for word in step.typed], code)

    def changed(self, step: Step, typed: Sequence[str], code: int) -> Typed:
        """Type a line, and look that it ends otherwise than the first."""
        said = self.rlbox(*typed)
        assert said.code == code, (typed, said.err[-2000:], said.out[-500:])
        if told(step.said):  # else the first line ended well, and what it advises does too
            assert (said.code, told(said)) != (step.said.code, told(step.said)), typed
        return said


def step_text(said: Typed) -> str:
    """Return what stands behind the last `next:` of what was said, on stderr or, of findings, on stdout."""
    found = _STEP.findall(said.err) or _STEP.findall(said.out)
    if not found and said.out.startswith("{"):
        found = [said.data["error"]["next"]]
    assert found, f"no next step: {said.err or said.out}"
    return str(found[-1])


def findings(said: Typed) -> dict[str, str]:
    """Return what `rlbox doctor` found, each by its id, with its next step."""
    return {found["id"]: found["step"] for found in _FINDING.finditer(said.out)}


def told(said: Typed) -> str:
    """Return what was said to be wrong, without the way out."""
    errors = [part.partition("\n  next:")[0] for part in _ERROR.split(said.err)[1:]]
    return "\n".join((*errors, *_REFUSED.findall(said.out), *_CAUSE.findall(said.out + said.err)))


def filled(text: str, fill: Mapping[str, str]) -> str:
    """Return a text with values for words in capitals."""
    return re.sub(r"\b[A-Z]+\b", lambda found: fill.get(found[0], found[0]), text)
