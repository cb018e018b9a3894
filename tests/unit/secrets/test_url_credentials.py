"""Credentials that nobody declared are masked by their place, however a log is cut."""

from __future__ import annotations

import pytest
from fakes import load_cases
from hypothesis import given
from hypothesis import strategies as st

from rlbox.secrets.url_credentials import UrlAndHeaderMaskStream, mask_url_and_header_credentials

CASES = load_cases("secrets", "test_url_credentials")


@pytest.mark.parametrize(("text", "masked"), CASES["masked"])
def test_masked(text: str, masked: str) -> None:
    assert mask_url_and_header_credentials(text) == masked


@pytest.mark.parametrize("text", CASES["left_alone"])
def test_left_alone(text: str) -> None:
    assert mask_url_and_header_credentials(text) == text


PIECES = st.sampled_from(
    [
        "http://u:secret@host/x",
        "https://secret@host",
        "Authorization: Bearer secret",
        '"authorization": "secret"',
        "AUTHORIZATION=token secret",
        "http",
        "://",
        ":",
        "@",
        " ",
        "\n",
        "\r",
        "a",
        "author",
        "Bearer",
        "\\",
        '"',
        "\u00e9",
    ]
)


CUTS = st.lists(st.integers(0, 160), max_size=12)


def streamed(text: str, cuts: list[int]) -> str:
    data = text.encode()
    stream, found, place = UrlAndHeaderMaskStream(), b"", 0
    for cut in sorted({min(cut, len(data)) for cut in cuts} | {len(data)}):
        found += stream.feed(data[place:cut])
        place = cut
    return (found + stream.close()).decode()


@given(st.lists(PIECES, max_size=14).map(" ".join), CUTS)
def test_cut_anywhere(text: str, cuts: list[int]) -> None:
    assert streamed(text, cuts) == mask_url_and_header_credentials(text)


@given(st.lists(PIECES, max_size=14).map("".join), CUTS)
def test_nothing_is_shown_that_was_hidden_uncut(text: str, cuts: list[int]) -> None:
    assert streamed(text, cuts).count("secret") <= mask_url_and_header_credentials(text).count("secret")


def test_an_ended_line_is_never_held_back_and_an_open_one_not_for_long() -> None:
    stream = UrlAndHeaderMaskStream()
    assert stream.feed(b"see http://\n") == b"see http://\n"
    assert stream.feed(b"at http://user") == b"at "
    assert stream.feed(b"x" * 4096)
