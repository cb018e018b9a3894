"""The table `tests/cli/next_steps.toml`: how each place that gives a next step is proven."""

from __future__ import annotations

import functools
from typing import Literal, NamedTuple, get_args

from fakes import CHECKOUT
from next_places import Place

from rlbox.config.toml_files import load_toml

TABLE = CHECKOUT / "tests/cli/next_steps.toml"
Kind = Literal["typed", "made", "open"]


class Row(NamedTuple):
    """A place and its proofs: the tests that follow it, the test that makes it, or why there is none."""

    place: Place
    kind: Kind
    proofs: tuple[str, ...]


@functools.cache
def rows() -> tuple[Row, ...]:
    """Return the table's rows in their order."""
    found = []
    for module, places in load_toml(TABLE).items():
        for row in places:
            ((kind, said),) = ((kind, row[kind]) for kind in get_args(Kind) if kind in row)
            proofs = (said,) if isinstance(said, str) else tuple(said)
            found.append(Row(Place(module, row["of"], row["says"]), kind, proofs))
    return tuple(found)


def proven_by(test: str) -> tuple[Place, ...]:
    """Return the places that a test proves by following them; it is named with or without its parameters."""
    names = {test, test.partition("[")[0]}
    return tuple(row.place for row in rows() if row.kind == "typed" and names.intersection(row.proofs))
