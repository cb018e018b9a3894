"""No expression that meets text of others takes longer than the text is long, whatever the text."""

from __future__ import annotations

import importlib
import pkgutil
import re
import time
from collections.abc import Callable, Iterator
from itertools import islice

import pytest
from fakes import CHECKOUT

import rlbox
from rlbox.config.pattern import compile_cached
from rlbox.config.project import Project
from rlbox.fixes.catalogue import load_fixes
from rlbox.gate.search import list_line_variants
from rlbox.logs.progress import find_progress_lines, parse_progress

pytestmark = pytest.mark.slow

LENGTH = 4_000
RATIO = 120
"""CPU of one search, in that of a loop over the letters of its line; one that is quadratic is at 300 and more."""
PIECES = (
    "a", "A", " ", "1", "(", ")", "[", "]", "/", ".", ":", "-",
    "_", "=", "'", '"', "|", "\\", "\t", "é", "a.", "A(", "A()",
    "1.", "1-", "1:", "1|", "%|", "1%|", "a=", "a: ", "a/", "| ", "--", "ray::a", "(a pid=1 ", "pid=1 ", "[rank 1",
    " DP1",     "[2024-01-01 00:00:00", "errors= ", "raise ", "Error", "Sending process ", "CalledProcessError",
    "step 1 ",
    "step:1 - ",     "'a': ", "'a': '1", "1 tokens/s", "[repeated 1x across cluster] ", "://", "https://a",
    "authorization: ", "token=",
    "bearer ", "\x1b[", "\x1b]", "\x1b", "No module named '", "http://[",
)  # fmt: skip
OWN = ("rlbox.secrets.env_file.", "rlbox.secrets.masks._PLAIN", "rlbox.secrets.lookup.")
"""These read the user's own files and secrets."""
WHOLE = {
    "rlbox.gate.lines._ECHO",
    "rlbox.hang.nccl._COMMUNICATOR",
    "rlbox.hang.nccl._HEADING",
    "rlbox.hang.nccl._KIND",
    "rlbox.hang.nccl._LISTED",
    "rlbox.hang.nccl._MANY",
    "rlbox.hang.nccl._MISSING",
    "rlbox.hang.nccl._ONE",
    "rlbox.evaluation.checkpoints._RANK",
    "rlbox.evaluation.checkpoints._WEIGHTS",
}
"""Those that are only held against the beginning of a text."""
ROOMS = ("causes", "doctor", "evidence", "gate", "hang", "logs", "registry", "report", "secrets", "sources", "training")
HEADS = ("step:1 - loss:", "'a': ", "step 1 loss ", "gen throughput: ", "100%|a| 1/2 [", "iteration 1/2 |x: ", "pid=")


def lines() -> Iterator[str]:
    for piece in PIECES:
        yield (piece * (LENGTH // len(piece) + 1))[:LENGTH]


def floor_s() -> float:
    """What a loop over the letters of one line costs here and now."""
    text = "x" * LENGTH
    begun = time.process_time()
    for _ in range(10):
        for _letter in text:
            pass
    return (time.process_time() - begun) / 10


def module_patterns() -> Iterator[tuple[str, re.Pattern[str] | re.Pattern[bytes]]]:
    for found in pkgutil.walk_packages(rlbox.__path__, "rlbox."):
        if found.name.split(".")[1] in ROOMS and ".programs" not in found.name and "__main__" not in found.name:
            for name, value in vars(importlib.import_module(found.name)).items():
                each = value if isinstance(value, tuple) else (value,)
                for pattern in each:
                    if isinstance(pattern, re.Pattern):
                        yield f"{found.name}.{name}", pattern


def too_slow(name: str, search: object, texts: Iterator[object], most_s: float) -> Iterator[str]:
    assert callable(search)
    for text in texts:
        spent = spent_s(lambda text=text: search(text))  # type: ignore[misc]
        for _ in range(3):  # what is slow is slow each time; a collection of garbage is not
            spent = min(spent, spent_s(lambda text=text: search(text))) if spent > most_s else spent  # type: ignore[misc]
        if spent > most_s:
            yield f"{name}: {spent:.2f} s for {str(text)[:20]!r}"


def spent_s(call: Callable[[], object]) -> float:
    begun = time.thread_time()
    call()
    return time.thread_time() - begun


@pytest.fixture(scope="module")
def most_s() -> float:
    return RATIO * max(floor_s() for _ in range(5))


def test_expressions_of_the_code(most_s: float) -> None:
    found = []
    for name, pattern in module_patterns():
        if name.startswith(OWN):
            continue
        texts = (text if isinstance(pattern.pattern, str) else text.encode() for text in lines())
        search = pattern.match if name in WHOLE else pattern.search
        found += too_slow(name, search, texts, most_s)  # type: ignore[arg-type]
    assert found == []


def test_expressions_of_the_catalogue(most_s: float) -> None:
    fixes = load_fixes(Project(folder=CHECKOUT))
    texts = {text for fix in fixes for one in fix.signature for text in (one.pattern, one.unless, one.after) if text}
    found = [too_slow(text, compile_cached(text).search, islice(lines(), 0, None, 7), most_s) for text in sorted(texts)]
    assert [slow for each in found for slow in each] == []


@pytest.mark.parametrize("head", HEADS)
def test_readers_of_lines(head: str, most_s: float) -> None:
    def read(text: str) -> None:
        parse_progress(head + text)
        list_line_variants(head + text)
        find_progress_lines((head + text).encode())

    assert list(too_slow(head, read, iter(lines()), 3 * most_s)) == []
