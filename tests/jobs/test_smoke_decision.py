"""Legal actions, expected values, the strict parser and the reward, as properties over random spots."""

import random

import pytest

pytest.importorskip("pokerkit", reason="pokerkit needs Python 3.11")

from hypothesis import given, settings
from hypothesis import strategies as st
from smoke import cards, decision
from smoke.decision import ACTIONS, Spot


@st.composite
def spots(draw: st.DrawFn) -> Spot:
    """River and turn spots; flops take 0.2 s each."""
    size = draw(st.sampled_from((4, 5)))
    dealt = random.Random(draw(st.integers(0, 10**6))).sample(cards.DECK, 2 + size)
    to_call = draw(st.integers(0, 50))
    pot, stack = draw(st.integers(max(1, to_call), 200)), draw(st.integers(max(1, to_call), 200))
    return Spot(hole=(dealt[0], dealt[1]), board=tuple(dealt[2:]), pot=pot, to_call=to_call, stack=stack)


def answer(action: str) -> str:
    return f"<action>{action}</action>"


@settings(deadline=None, max_examples=60)
@given(spots())
def test_reward_ranks_legal_actions_by_value(spot: Spot) -> None:
    values = decision.expected_values(spot)
    rewards = {action: decision.score(spot, answer(action)).reward for action in spot.legal}
    assert max(rewards.values()) == 1.0
    assert all(0.0 <= reward <= 1.0 for reward in rewards.values())
    assert rewards[decision.best_action(values)] == 1.0
    for one in spot.legal:
        for two in spot.legal:
            assert values[one] >= values[two] or rewards[one] <= rewards[two]


@settings(deadline=None, max_examples=40)
@given(spots())
def test_illegal_and_malformed_are_worse_than_any_legal_action(spot: Spot) -> None:
    for action in set(ACTIONS) - set(spot.legal):
        score = decision.score(spot, answer(action))
        assert (score.reward, score.action, score.legal) == (-0.5, action, False)
    assert decision.score(spot, "call").reward == -1.0


@settings(deadline=None, max_examples=40)
@given(spots())
def test_call_gains_exactly_when_equity_beats_the_pot_odds(spot: Spot) -> None:
    values = decision.expected_values(spot)
    if spot.to_call == 0:
        assert spot.legal == ("check", "raise")
        assert values["check"] == pytest.approx(spot.equity * spot.pot)
    else:
        assert values["fold"] == 0
        assert (values["call"] > 1e-9) == (spot.equity > spot.pot_odds + 1e-12) or values["call"] == pytest.approx(0)
    if "raise" in values:
        passive = "check" if spot.to_call == 0 else "call"
        behind = spot.stack - spot.to_call
        assert values["raise"] - values[passive] == pytest.approx(behind * (2 * spot.equity - 1), abs=1e-9)


def test_values_by_hand() -> None:
    spot = Spot(hole=("Ah", "Kh"), board=("Qh", "Jh", "Th", "2c", "3d"), pot=30, to_call=10, stack=40)
    assert decision.expected_values(spot) == {"fold": 0.0, "call": 30.0, "raise": 60.0}
    assert decision.score(spot, answer("call")).reward == 0.5
    allin = Spot(hole=("Ah", "Kh"), board=("Qh", "Jh", "Th", "2c", "3d"), pot=30, to_call=10, stack=10)
    assert allin.legal == ("fold", "call")


@pytest.mark.parametrize("action", ACTIONS)
def test_parser_accepts_the_exact_answer(action: str) -> None:
    assert decision.parse(answer(action)) == action


@pytest.mark.parametrize(
    "text",
    [
        "", "call", "<action>call</action> ", " <action>call</action>", "<action>call</action>\n",
        "<action> call</action>", "<action>Call</action>", "<action>bet</action>",
        "<action>call</action><action>fold</action>",
        "<action>call", "call</action>", "<action></action>", "<action>callfold</action>",
    ],
)  # fmt: skip
def test_parser_refuses_everything_else(text: str) -> None:
    assert decision.parse(text) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hole": ["Ah"]}, "2 hole cards"),
        ({"board": ["2c", "3d"]}, "3 to 5 board cards"),
        ({"hole": ["Ah", "Xx"]}, "not a card: 'Xx'"),
        ({"hole": ["Ah", "2c"]}, "appears twice"),
        ({"to_call": 50}, "to_call 50"),
        ({"to_call": -1}, "to_call -1"),
        ({"pot": "30"}, "whole numbers"),
        ({"pot": True}, "whole numbers"),
        ({"hole": [1, 2]}, "must be strings"),
        ({"board": None}, "not a spot"),
    ],
)
def test_spots_that_are_refused(change: dict, message: str) -> None:
    good = {"hole": ["Ah", "Kh"], "board": ["Qh", "Jh", "Th", "2c", "3d"], "pot": 30, "to_call": 10, "stack": 40}
    assert Spot.from_json(good).to_json() == good
    with pytest.raises(ValueError, match=message):
        Spot.from_json({**good, **change})
