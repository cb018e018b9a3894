"""Secrets in a stream of bytes that is cut anywhere."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlbox.secrets.mask_stream import MaskStream

# few letters, so that secrets overlap themselves and each other
WORDS = st.text("ab\nß", min_size=1, max_size=6)


def mask(secrets: list[str], *chunks: bytes) -> bytes:
    stream = MaskStream(secrets)
    return b"".join([stream.feed(chunk) for chunk in chunks]) + stream.close()


def longest_first(secrets: list[str], data: bytes) -> bytes:
    values = sorted({secret.encode("utf-8", "surrogateescape") for secret in secrets}, key=len, reverse=True)
    return re.sub(b"|".join(map(re.escape, values)) or b"(?!)", b"***", data)


@given(st.lists(WORDS, max_size=4), st.text("ab\nßc", max_size=40), st.data())
def test_cuts_do_not_matter(secrets: list[str], text: str, draw: st.DataObject) -> None:
    data = text.encode()
    cuts = draw.draw(st.lists(st.integers(0, len(data)), max_size=8).map(sorted))
    chunks = [data[a:b] for a, b in pairwise([0, *cuts, len(data)])]
    assert mask(secrets, *chunks) == longest_first(secrets, data)
    assert mask(secrets, *(data[i : i + 1] for i in range(len(data)))) == longest_first(secrets, data)


@given(st.lists(st.binary(min_size=1, max_size=3), max_size=4), st.binary())
def test_any_bytes(secrets: list[bytes], data: bytes) -> None:
    texts = [secret.decode("utf-8", "surrogateescape") for secret in secrets]
    assert mask(texts, data) == longest_first(texts, data)


@pytest.mark.parametrize(
    ("data", "at_once"),
    [
        (b"token=planted-5ecret\n", b"token=***\n"),
        (b"token=planted-5", b"token="),
        (b"a question? [y/p", b"a question? [y/"),
        (b"planted-5ecret-lon", b""),
        (b"planted-5ecret-lon\n", b"***-lon\n"),
        (b"\xff\xfeplanted-5ecret\x00", b"\xff\xfe***\x00"),
    ],
)
def test_only_a_beginning_is_held_back(data: bytes, at_once: bytes) -> None:
    assert MaskStream(["planted-5ecret", "planted-5ecret-longer"]).feed(data) == at_once
