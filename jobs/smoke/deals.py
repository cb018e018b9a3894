"""Seeded deals and their prompts, written as train.jsonl and eval.jsonl.

Hands, boards and bets are drawn at random; a deal is kept when its legal actions and the best of them are those whose
turn it is, so that the chips alone tell nothing about the best action. No spot is in both files. Same seed, same bytes.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from smoke import cards, program
from smoke.decision import STREETS, Spot, best_action, expected_values, margin

POTS = (12, 24, 36, 48)
BETS = ((1, 3), (1, 2), (1, 1), (2, 1))  # bet as a fraction of the pot: a call breaks even at 20, 25, 33, 40 %
DEPTHS = (1, 2)  # chips behind after a call, in pots, where a raise is legal
CASES = tuple(
    (legal, best) for legal in (("check", "raise"), ("fold", "call"), ("fold", "call", "raise")) for best in legal
)
CLEAR = 0.05  # the best action is better than the next by this many pots


def describe(hole: tuple[str, str], board: tuple[str, ...]) -> str:
    """Name the made hand the way a player does: `top pair`, `over pair`, `two pair`, `ace high`, `board flush`."""
    name = cards.label(hole + board)
    top = max(hole, key=lambda card: cards.RANKS.index(card[0]))[0]
    if name == "high card":
        return f"{top} high"
    if name != "one pair":
        return f"board {name}" if len(board) == 5 and cards.strength(board) == cards.strength(hole + board) else name
    on_board = sorted({cards.RANKS.index(card[0]) for card in board}, reverse=True)
    (paired,) = (rank for rank, n in Counter(card[0] for card in hole + board).items() if n == 2)
    place = cards.RANKS.index(paired)
    if place not in on_board:
        return "over pair" if place > on_board[0] else "under pair"
    if paired not in (hole[0][0], hole[1][0]):
        return f"board pair {top} high"
    return {0: "top pair", len(on_board) - 1: "bottom pair"}.get(on_board.index(place), "middle pair")


def outs(hole: tuple[str, str], board: tuple[str, ...]) -> int:
    """Return how many next cards lift the class of the hand above what the board alone makes of that card."""
    if len(board) == 5:
        return 0
    now = cards.label(hole + board)
    rest = (card for card in cards.DECK if card not in hole + board)
    return sum(cards.label((*hole, *board, card)) not in (now, cards.label((*board, card))) for card in rest)


def prompt(spot: Spot) -> str:
    """Return the text the policy answers: cards, what they make, outs, chips, break-even percentage, legal actions."""
    return (
        f"{STREETS[len(spot.board)]} {' '.join(spot.board)} hand {' '.join(spot.hole)}\n"
        f"{describe(spot.hole, spot.board)} outs {outs(spot.hole, spot.board)}\n"
        f"pot {spot.pot} bet {spot.to_call} stack {spot.stack} odds {round(100 * spot.pot_odds)}\n"
        f"{' '.join(spot.legal)}"
    )


def row(spot: Spot) -> dict[str, Any]:
    """Return one line of the data: the spot, its prompt, and (for people, not for the reward) what it is worth."""
    values = expected_values(spot)
    facts = {"equity": round(spot.equity, 6), "values": {name: round(value, 4) for name, value in values.items()}}
    return {**spot.to_json(), "prompt": prompt(spot), **facts, "best": best_action(values)}


def spots(rng: random.Random, board_sizes: Sequence[int]) -> Iterator[Spot]:
    """Yield distinct spots without end: the cases take turns, close decisions are left out."""
    seen: set[tuple[frozenset[str], frozenset[str]]] = set()
    wanted = 0
    while True:
        dealt = rng.sample(cards.DECK, 2 + rng.choice(board_sizes))
        key = (frozenset(dealt[:2]), frozenset(dealt[2:]))
        legal, best = CASES[wanted % len(CASES)]
        for _ in range(4):  # other chips are cheap, a new deal costs an enumeration
            spot = _bet(rng, dealt, legal)
            values = expected_values(spot)
            if margin(values, spot) >= CLEAR and best_action(values) == best and key not in seen:
                seen.add(key)
                wanted += 1
                yield spot
                break


def _bet(rng: random.Random, dealt: Sequence[str], legal: Sequence[str]) -> Spot:
    base, (part, whole), depth = rng.choice(POTS), rng.choice(BETS), rng.choice(DEPTHS)
    bet = base * part // whole if "call" in legal else 0
    behind = base * depth if "raise" in legal else 0
    return Spot(hole=(dealt[0], dealt[1]), board=tuple(dealt[2:]), pot=base + bet, to_call=bet, stack=bet + behind)


def write(folder: Path, *, seed: int, train: int, evaluate: int, streets: Sequence[str]) -> None:
    """Write train.jsonl and eval.jsonl below `folder`, each by rename.

    Parameters
    ----------
    train, evaluate
        Number of rows of each file.
    streets
        Names out of flop, turn, river.
    """
    sizes = [size for size, name in STREETS.items() if name in streets]
    source = spots(random.Random(seed), sizes)
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("eval", evaluate), ("train", train)):
        lines = [json.dumps(row(next(source)), separators=(",", ":")) for _ in range(count)]
        part = folder / f".{name}.part"
        part.write_text("\n".join(lines) + "\n")
        part.rename(folder / f"{name}.jsonl")


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a data file. Raises JobError when it is missing or not what `write` wrote."""
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for item in rows:
            Spot.from_json(item)
    except FileNotFoundError as error:
        raise program.JobError(f"no data at {path}; run `python -m smoke.deals --out {path.parent}` first") from error
    except ValueError as error:
        raise program.JobError(f"{path} is damaged ({error}); delete it and run `python -m smoke.deals`") from error
    return rows


def main() -> None:
    """Parse the command line and write both files."""
    parser = argparse.ArgumentParser(prog="smoke.deals", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for train.jsonl and eval.jsonl")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", type=int, default=512, help="rows of train.jsonl")
    parser.add_argument("--eval", type=int, default=64, help="rows of eval.jsonl")
    parser.add_argument("--streets", nargs="+", choices=("turn", "river"), default=["turn", "river"])
    args = parser.parse_args()
    write(args.out, seed=args.seed, train=args.train, evaluate=args.eval, streets=args.streets)
    print(f"wrote {args.train} train and {args.eval} eval decisions to {args.out}", flush=True)


if __name__ == "__main__":
    program.run("smoke.deals", main)
