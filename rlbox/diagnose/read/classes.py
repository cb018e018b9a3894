"""What kind of statement an error is: a wrapper of another, a victim's, a notice of death, or noise.

Whatever none of the words fits may be a root.
"""

from __future__ import annotations

from typing import Literal

from rlbox.diagnose.read.words import any_of

Class = Literal["root", "relayed", "victim", "death", "noise"]


def class_of(text: str, kind: str = "") -> Class:
    """Return the class of an error by its words: `text` is its line, `kind` its exception's name where it has one."""
    if is_never_fatal(text) or (not kind and any_of("class", "noise").search(text)):
        return "noise"
    if any_of("class", "relayed").search(text):
        return "relayed"
    if any_of("class", "death").search(text):
        return "death"
    return "victim" if any_of("class", "victim").search(text) else "root"


def is_never_fatal(text: str) -> bool:
    """Whether a line says what nothing stops for, however it is said."""
    return bool(any_of("class", "noise_always").search(text))
