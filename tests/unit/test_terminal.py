"""Nothing of another's making commands the terminal it is shown on."""

from __future__ import annotations

import random
import re
import time

import pytest

from rlbox.terminal import IncrementalTerminalSanitizer, sanitize_for_terminal

LEFT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
CASES = {
    "plain ä 卡\ttab\nline": "plain ä 卡\ttab\nline",
    "\x1b[31mred\x1b[0m": "red",
    "\x1b]0;title\x07text": "text",
    "\x1b]52;c;Y2xpcA==\x1b\\text": "text",
    "\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\": "link",
    "\x1bP1$r0m\x1b\\text": "text",
    "\x9b31mred\x9d0;title\x9ctext": "redtext",
    "\x1b]0;never ends\nnext": "0;never ends\nnext",
    "a\x1b[2J\x1b[Hb\x1bc": "ab",
    "real\rfake": "real\nfake",
    "end\r\nnext": "end\nnext",
    "a\x08b\x00c\x7fd\x07": "abcd",
    "x\u202etxt.exe\u2066y": "xtxt.exey",
    "half \ud800 a character": "half \ufffd a character",
    "\x1b": "",
    "\x1b\x1b]0;x\x07\x1b": "",
}


@pytest.mark.parametrize(("text", "shown"), CASES.items(), ids=range(len(CASES)))
def test_what_is_shown(text: str, shown: str) -> None:
    assert sanitize_for_terminal(text) == shown


@pytest.mark.parametrize("seed", range(40))
def test_a_stream_cut_anywhere_shows_the_same(seed: int) -> None:
    dice = random.Random(seed)
    text = "".join(dice.choice([*CASES, "\x1b", "[", "]", "\x07", "\\", "0", ";", "\x9b", "\n"]) for _ in range(60))
    data = text.encode("utf-8", "replace")
    stream, found, at = IncrementalTerminalSanitizer(), b"", 0
    while at < len(data):
        size = dice.randrange(1, 9)
        found += stream.feed(data[at : at + size])
        at += size
    found += stream.close()
    assert not LEFT.search(found.decode())
    assert found.decode() == sanitize_for_terminal(data.decode())


@pytest.mark.slow
def test_a_sequence_that_never_ends_holds_nothing_back() -> None:
    stream, begun = IncrementalTerminalSanitizer(), time.process_time()
    found = b"".join(stream.feed(b"\x1b]0;" + b"x" * 60_000) for _ in range(20)) + stream.close()
    assert found.count(b"x") == 1_200_000
    assert not LEFT.search(found.decode())
    assert time.process_time() - begun < 2
