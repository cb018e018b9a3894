"""What the first failure is read with is there before it comes."""

from __future__ import annotations

import subprocess
import sys

import pytest

FIRST = """
import re._compiler
from rlbox.diagnose.first_fatal import FirstFatalFinder, compile_patterns
from rlbox.logs.lines import LineBlock

def read(text):
    finder, block = FirstFatalFinder(), LineBlock(text, 2)
    block.hits = (1,)
    finder.feed(1, 0, block)
    return finder.position.text

if {ahead}:
    compile_patterns()
compiled, real = [], re._compiler.compile
re._compiler.compile = lambda *words: compiled.append(words[0]) or real(*words)
assert read(b"step:7 - loss:0.1\\nKeyError: 'lost'") == "KeyError: 'lost'"
print(len(compiled))
"""


def _compiled(*, ahead: bool) -> int:
    """How many patterns a new process compiles as it reads its first failure."""
    code = FIRST.format(ahead=ahead)
    if sys.version_info < (3, 11):
        code = code.replace("re._compiler", "sre_compile")
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


@pytest.mark.allow("processes")
def test_the_first_failure_waits_for_no_pattern() -> None:
    assert _compiled(ahead=False) > 20
    assert _compiled(ahead=True) == 0
