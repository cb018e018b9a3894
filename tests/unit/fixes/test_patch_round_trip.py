"""Any diff of any file: applied it gives the other file, applied again nothing, taken back the same bytes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from patchbox import Box, diff_of, patch

MARK = "# mark"
WORDS = st.sampled_from(
    ["a", "b", "if x:", "    return x", "", "def f():", "\tpass", "é", "--- a/x", "+++ b/x", "@@ -1 +1 @@"]
)
ENDS = st.sampled_from(["\n", "\r\n"])


@st.composite
def edits(draw: st.DrawFn) -> tuple[str, str]:
    """A file, and what a marked change makes of it."""
    lines = draw(st.lists(WORDS, min_size=1, max_size=30))
    after = list(lines)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(after)))
        new = [f"{word} {MARK}" for word in draw(st.lists(WORDS, max_size=3))]
        after[place : place + draw(st.integers(0, 3))] = new
    end, last = draw(ENDS), draw(st.booleans())
    texts = [end.join(rows) + (end if last and rows else "") for rows in (lines, after)]
    return texts[0], texts[1]


class Quiet:
    """Stands in for pytest's capsys, which hypothesis cannot reset."""

    @staticmethod
    def readouterr() -> tuple[str, str]:
        return "", ""


@settings(max_examples=60, deadline=None)
@given(edits(), st.integers(1, 3))
def test_there_again_and_back(pair: tuple[str, str], context: int) -> None:
    before, after = pair
    diff = diff_of(before, after, context=context)
    if before == after or not any(line.startswith("+") and MARK in line for line in diff.split("\n")):
        return
    with tempfile.TemporaryDirectory() as folder:
        box = Box(Path(folder), Quiet())  # type: ignore[arg-type]
        path = box.put(before)
        row = patch(diff, marker=MARK)
        assert box.apply(row)[0] == 0
        assert path.read_bytes() == after.encode()
        record = box.record()
        assert box.apply(row)[0] == 0
        assert path.read_bytes() == after.encode()
        assert box.record() == record
        assert box.reverse()[0] == 0
        assert path.read_bytes() == before.encode()
        assert box.record() == []
