"""What stays plain when a text is told in letters that no English has: text that no message knows."""

from __future__ import annotations

import functools
import re

from fakes import Rlbox, Said

from rlbox.messages.language import PSEUDO, teller

_RUN = re.compile(r"(?<![\w/.=`'\"<-])[A-Za-z][a-z]+(?: [a-z]{2,})+(?![\w/=(])")
_NAMES = re.compile(
    r"`[^`]*`|'[^']*'|\"[^\"]*\""  # names, values, commands
    r"|\b(?:rlbox|vastai|docker|ray|uv|ssh|sudo|apptainer) [^;:(]*"  # commands without backticks
    r"|\[[^\]]*\]$"  # where a fact is from
    r"|\S+ (?:accepted@1|exec)\b"  # a figure of a suite
)
_OTHERS = re.compile(
    r"^\s*(?:\||/|[✓=✗] \[|ERROR: |#? *gate: (?:require|forbid|benign) |ray-start |\S+  # service )"
    # what files, programs, the system and vast.ai say
    r"|JSONDecodeError|broken TOML|not UTF-8|No closing quotation|File exists|Is a directory|Read-only file|too long"
    r"|Too many|Field required|ModuleNotFoundError|ImportError|Remote end closed|Connection refused|exporting to image"
    r"|vast\.ai refused|this engine only knows|running image|truncated header|empty file|Docker daemon"
    r"|No interpreter found|AssertionError|No such file|No space left|not permitted|Permission denied|Expecting"
    r"|Input/output error|no route to host|Name or service|no such image|address pools|IP tables|Connection broken"
    r"|could not select device|error setting rlimit|Address already in use|log in$"
    r"|certificate verify failed|reset by peer|Broken pipe|Exception occurred during"
    r"|^[-+@]|Traceback|^    (?:return|raise|if) |RUN echo"
    r"|\? \[y/N\]: "  # a question is told before its first letter is a capital
    # what tests call their own things
    r"|smallest (?:target|job)|my first job|the only stage|http words|a job (?:with|on)|mend it|# the lan|rows are more"
    r"|nothing here|read the reason|rent two|how long|of the GPU's memory|an answer$|import sys"
    r"|logprob gap|inal collected|samples from rollout"
    r"|attention kernels|(?:gamma|beta) \d"
    r"|Write the Python 3 code|Answer with one code block"  # what a model is asked
    r"|git \w+(?:-lm)? [0-9a-f]{12}"
)


@functools.cache
def plain_words(line: str) -> tuple[str, ...]:
    """Return the words of a line that stay plain, two or more beside each other; none of a line that others wrote."""
    if _OTHERS.search(line):
        return ()
    return tuple(_RUN.findall(_NAMES.sub(" ", teller(PSEUDO)(line))))


VERBATIM = frozenset({"completion", "diagnose", "export", "fixes", "logs", "onstart", "render", "shell", "show"})
"""Verbs whose results are files, logs, specs and pages, and not talk."""


class Overheard(Rlbox):
    """The command line, and what it said that no message knows: `plain`, by what was typed."""

    def __init__(self, heard: Rlbox) -> None:
        self._heard = heard
        self.plain: list[tuple[str, ...]] = []

    def __call__(self, *words: str) -> Said:
        said = self._heard(*words)
        own = not {"--json", "-V", "--version", "--lang", "--lang=zh"} & set(words)
        helped = "Options:" in said.err or not words
        shown = not helped and not VERBATIM & set(words[:1]) and not {"-h", "--help", "help"} & set(words)
        for line in (
            f"{said.err}{said.out if shown else ''}".splitlines()
            if own and not helped and words[:1] != ("render",)
            else ()
        ):
            if found := plain_words(line):
                self.plain.append((*found, line))
        return said

    def offers(self, typed: str) -> list[str]:
        return self._heard.offers(typed)
