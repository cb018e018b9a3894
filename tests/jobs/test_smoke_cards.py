"""Hand strength against pokerkit, equity against brute force and hands that can be counted on paper."""

import itertools
import random

import pytest

pytest.importorskip("pokerkit", reason="pokerkit needs Python 3.11")

from hypothesis import given, settings
from hypothesis import strategies as st
from pokerkit import StandardHighHand
from smoke import cards


def brute_force(hole: tuple[str, str], board: tuple[str, ...]) -> cards.Showdown:
    """Count with pokerkit's own seven-card evaluation and no grouping."""
    mine = StandardHighHand.from_game("".join(hole), "".join(board))
    rest = [card for card in cards.DECK if card not in hole + board]
    counts = {1: 0, 0: 0, -1: 0}
    for pair in itertools.combinations(rest, 2):
        theirs = StandardHighHand.from_game("".join(pair), "".join(board))
        counts[(mine > theirs) - (mine < theirs)] += 1
    return cards.Showdown(wins=counts[1], ties=counts[0], losses=counts[-1])


def deal(seed: int, count: int) -> tuple[str, ...]:
    return tuple(random.Random(seed).sample(cards.DECK, count))


@pytest.mark.parametrize("seed", [0, 1])
def test_river_equity_equals_brute_force(seed: int) -> None:
    dealt = deal(seed, 7)
    assert cards.showdown(dealt[:2], dealt[2:]) == brute_force(dealt[:2], dealt[2:])


def test_flush_board_equals_brute_force() -> None:
    hole, board = ("Ah", "2c"), ("Kh", "9h", "7h", "5h", "9d")
    assert cards.showdown(hole, board) == brute_force(hole, board)


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


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from(cards.DECK), min_size=7, max_size=7, unique=True))
def test_suits_may_be_renamed(dealt: list[str]) -> None:
    renamed = [card[0] + dict(zip("cdhs", "dhsc", strict=True))[card[1]] for card in dealt]
    before, after = (cards.showdown(tuple(hand[:2]), tuple(hand[2:])) for hand in (dealt, renamed))
    assert before == after
    assert before.wins + before.ties + before.losses == 990


def test_labels() -> None:
    assert cards.label(("Ah", "2h", "3h", "4h", "5h")) == "straight flush"
    assert cards.label(("Ah", "Ad", "3h", "3d", "5h", "5c")) == "two pair"
    assert cards.label(("9h", "Td", "Jh", "Qd", "Kh", "2c", "2d")) == "straight"
