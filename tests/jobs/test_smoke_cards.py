"""Hand strength against pokerkit, equity against brute force and hands that can be counted on paper."""

import random

import pytest

pytest.importorskip("pokerkit", reason="pokerkit needs Python 3.11")

from hypothesis import given, settings
from hypothesis import strategies as st
from pokerkit import StandardHighHand
from smoke import cards


def deal(seed: int, count: int) -> tuple[str, ...]:
    return tuple(random.Random(seed).sample(cards.DECK, count))


def test_turn_is_the_sum_of_its_rivers() -> None:
    dealt = deal(3, 6)
    hole, board = dealt[:2], dealt[2:]
    rivers = [cards.showdown(hole, (*board, card)) for card in cards.DECK if card not in dealt]
    turn = cards.showdown(hole, board)
    for name in ("wins", "ties", "losses"):
        assert getattr(turn, name) == sum(getattr(river, name) for river in rivers)


@pytest.mark.parametrize(
    ("hole", "board", "wins", "ties", "losses"),
    [
        (("Ah", "Kh"), ("Qh", "Jh", "Th", "2c", "3d"), 990, 0, 0),  # royal flush
        (("2c", "3d"), ("Ah", "Kh", "Qh", "Jh", "Th"), 0, 990, 0),  # all play the board
        (("As", "2d"), ("Ad", "Ah", "Kc", "Kd", "Ks"), 903, 43, 44),  # aces full: Kh beats it (44 hands), Ac ties
    ],
)
def test_hands_counted_on_paper(hole, board, wins, ties, losses) -> None:
    assert cards.showdown(hole, board) == cards.Showdown(wins=wins, ties=ties, losses=losses)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(cards.DECK), min_size=14, max_size=14, unique=True))
def test_order_of_seven_cards_is_pokerkits(dealt: list[str]) -> None:
    one, two = dealt[:7], dealt[7:]
    first, second = (StandardHighHand.from_game("".join(hand[:2]), "".join(hand[2:])) for hand in (one, two))
    assert (cards.strength(one) < cards.strength(two)) == (first < second)
    assert (cards.strength(one) == cards.strength(two)) == (first == second)
