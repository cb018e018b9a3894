"""One hold'em decision: the spot, its legal actions, their exact expected values, and the reward of an answer.

Rules of the game: the opponent holds a uniformly random hand, every raise is all-in, the opponent calls it, and after
the decision the hand is checked down. Equity is enumerated, so each expected value is exact.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from smoke import cards

ACTIONS = ("fold", "check", "call", "raise")
STREETS = {3: "flop", 4: "turn", 5: "river"}
ANSWER = re.compile(r"<action>(fold|check|call|raise)</action>")
MALFORMED, ILLEGAL = -1.0, -0.5  # below the worst legal action, which scores 0


@dataclass(frozen=True, kw_only=True)
class Spot:
    """What the player sees. Chips are whole numbers; `pot` holds the opponent's bet of `to_call` already."""

    hole: tuple[str, str]
    board: tuple[str, ...]
    pot: int
    to_call: int
    stack: int

    def __post_init__(self) -> None:
        """Raise ValueError for anything that is not a decision."""
        known = self.hole + self.board
        if len(self.hole) != 2 or len(self.board) not in STREETS:
            found = f"{len(self.hole)} and {len(self.board)}"
            raise ValueError(f"a spot has 2 hole cards and 3 to 5 board cards, not {found}")
        if unknown := [card for card in known if card not in cards.DECK]:
            raise ValueError(f"not a card: {unknown[0]!r}")
        if len(set(known)) != len(known):
            raise ValueError("a card appears twice")
        if not 0 <= self.to_call <= min(self.stack, self.pot) or self.stack < 1:
            raise ValueError(f"to_call {self.to_call} does not fit pot {self.pot} and stack {self.stack}")

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> Spot:
        """Read a spot from parsed JSON; extra keys are ignored. Raises ValueError for a missing or wrong one."""
        try:
            numbers = {name: item[name] for name in ("pot", "to_call", "stack")}
            hole, board = tuple(item["hole"]), tuple(item["board"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a spot: {error}") from error
        if not all(type(number) is int for number in numbers.values()):
            raise ValueError("pot, to_call and stack must be whole numbers")
        if not all(isinstance(card, str) for card in hole + board):
            raise ValueError("cards must be strings")
        return cls(hole=hole, board=board, **numbers)  # type: ignore[arg-type]

    def to_json(self) -> dict[str, Any]:
        """Return keys hole, board (lists of cards), pot, to_call, stack."""
        return {**asdict(self), "hole": list(self.hole), "board": list(self.board)}

    @property
    def legal(self) -> tuple[str, ...]:
        """Legal actions, cheapest first."""
        if self.to_call == 0:
            return ("check", "raise")
        return ("fold", "call", "raise") if self.stack > self.to_call else ("fold", "call")

    @property
    def pot_odds(self) -> float:
        """Equity at which a call breaks even, 0 to 0.5."""
        return self.to_call / (self.pot + self.to_call)

    @property
    def equity(self) -> float:
        """Exact share of the pot at showdown, 0 to 1."""
        return cards.showdown(self.hole, self.board).equity


@dataclass(frozen=True, kw_only=True)
class Score:
    """Outcome of one answer. `action` is None when the answer is malformed."""

    reward: float
    action: str | None
    legal: bool
    best: str
    equity: float
    values: Mapping[str, float]


def expected_values(spot: Spot) -> dict[str, float]:
    """Return chips won or lost from now on, for each legal action in order."""
    share, calls = spot.equity, spot.to_call
    after_raise = spot.pot + 2 * spot.stack - calls  # the opponent adds stack - to_call
    values = {
        "fold": 0.0,
        "check": share * spot.pot,
        "call": share * (spot.pot + calls) - calls,
        "raise": share * after_raise - spot.stack,
    }
    return {action: values[action] for action in spot.legal}


def best_action(values: Mapping[str, float]) -> str:
    """Return the action of the highest value, the cheapest one on a tie."""
    return max(values, key=lambda action: (values[action], -ACTIONS.index(action)))


def margin(values: Mapping[str, float], spot: Spot) -> float:
    """Return by how much the best action beats the next one, in pots (pot plus the call)."""
    first, second = sorted(values.values(), reverse=True)[:2]
    return (first - second) / (spot.pot + spot.to_call)


def parse(answer: str) -> str | None:
    """Return the action of an answer that is exactly `<action>NAME</action>`, else None."""
    match = ANSWER.fullmatch(answer)
    return match.group(1) if match else None


def score(spot: Spot, answer: str) -> Score:
    """Compute the reward of an answer.

    Returns
    -------
    Score
        `reward` is 1 for the best legal action, 0 for the worst, linear in expected value between them; -0.5 for an
        illegal action, -1 for a malformed answer.
    """
    values, action = expected_values(spot), parse(answer)
    best, worst = best_action(values), min(values.values())
    legal = action in values
    if action is None:
        reward = MALFORMED
    elif not legal:
        reward = ILLEGAL
    else:
        reward = (values[action] - worst) / (values[best] - worst) if values[best] > worst else 1.0
    return Score(reward=reward, action=action, legal=legal, best=best, equity=spot.equity, values=values)
