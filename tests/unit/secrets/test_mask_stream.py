"""Secrets in a stream of bytes that is cut anywhere."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlbox.secrets.mask_stream import MaskPatterns, MaskStream

# few letters, so that secrets overlap themselves and each other
WORDS = st.text("ab\n\u00df", min_size=4, max_size=7)
PIECES = ["a", "b", "\n", "\u00df", "c", "ab", " ", "\x1b[1m", "\\", "\\n", "61", "62:", "0x61, 0x", "\x1b", "["]


def mask(patterns: MaskPatterns | None, *chunks: bytes) -> bytes:
    stream = MaskStream(patterns)
    return b"".join([stream.feed(chunk) for chunk in chunks]) + stream.close()


@given(st.lists(WORDS, max_size=4), st.lists(st.sampled_from(PIECES), max_size=30), st.data())
def test_cuts_do_not_matter(secrets: list[str], pieces: list[str], draw: st.DataObject) -> None:
    patterns, data = MaskPatterns(secrets), "".join(pieces).encode()
    cuts = draw.draw(st.lists(st.integers(0, len(data)), max_size=8).map(sorted))
    chunks = [data[a:b] for a, b in pairwise([0, *cuts, len(data)])]
    whole = mask(patterns, data)
    assert mask(patterns, *chunks) == whole
    assert mask(patterns, *(data[i : i + 1] for i in range(len(data)))) == whole


@given(st.lists(st.binary(min_size=4, max_size=5), max_size=4), st.binary())
def test_any_bytes(secrets: list[bytes], data: bytes) -> None:
    patterns = MaskPatterns([secret.decode("utf-8", "surrogateescape") for secret in secrets])
    masked = mask(patterns, data)
    assert masked == data or b"***" in masked
    assert mask(patterns, data, b"") == masked


@pytest.mark.parametrize(
    ("data", "at_once"),
    [
        (b"token=planted-5ecret\n", b"token="),  # the next line may make the longer one of it
        (b"token=planted-5ecret\nend", b"token=***\nend"),
        (b"token=planted-5", b"token="),
        (b"a question? [y/p", b"a question? [y/"),
        (b"a line that ends in p\n", b"a line that ends in p\n"),
        (b"a line that ends in plan\n", b"a line that ends in "),
        (b"planted-5ecret-lon", b""),
        (b"planted-5ecret-lon\n--", b"***-lon\n--"),
        (b"\xff\xfeplanted-5ecret\x00\xff", b"\xff\xfe***\x00\xff"),
        (b"706c616e7465642d", b""),
        (b"70:6c:61:6e:74:65:64:2d:35:", b""),
    ],
)
def test_only_a_beginning_is_held_back(data: bytes, at_once: bytes) -> None:
    secrets = ["planted-5ecret", "planted-5ecret-longer", b"planted-5ecret".hex(), b"planted-5ecret".hex(":")]
    assert MaskStream(MaskPatterns(secrets)).feed(data) == at_once


def test_the_first_letters_on_a_line_of_their_own_are_shown_and_the_rest_is_not() -> None:
    patterns = MaskPatterns(["planted-5ecret"])
    assert mask(patterns, b"key pla\n", b"  nted-5", b"ecret end") == b"key pla\n  *** end"
    assert mask(patterns, b"key plan\n", b"  ted-5", b"ecret end") == b"key *** end"
