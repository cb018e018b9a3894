"""The same two nodes told in other orders: does `rlbox diagnose` name the same root?

    python tests/faultlab/interleavings.py [--count 200] [--fault NAME]

Each fault of the lab on two nodes was recorded on two versions, as the merged lines of both consoles and as files
(standard output and standard error of each rank). The merged lines are shuffled, lanes keeping their own order; the
files are given as a folder, and one by one in other orders. Cause, node, rank and the words of the root must be those
of the merged lines. Numbers are the only thing that is told of the held half.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2])]

from exceptions import bare  # noqa: E402
from faultrecipe import Recipe  # noqa: E402
from interleave import shuffled  # noqa: E402
from score import Case, cases, lay, shipped_judge  # noqa: E402

COUNT = 200
_BEFORE = re.compile(r"^(?:[\w./-]+ +\| )?(?:\[\w*\d+\]:|\[rank\d+\]:?|\s)*")
_VARYING = re.compile(r"0x[0-9a-f]+|\d+")


class Root(NamedTuple):
    """What must not change: cause, node and rank, as far as the recipe knows them."""

    cause: str
    node: str
    rank: int | None


class Told(NamedTuple):
    """What the orders of one fault led to: the root of the merged lines, by form the roots, and how often its words."""

    root: Root
    roots: dict[str, Counter[Root]]
    same_words: int

    @property
    def asked(self) -> int:
        """How many orders there were."""
        return sum(roots.total() for roots in self.roots.values())

    @property
    def others(self) -> Counter[Root]:
        """The other roots that were named, and how often."""
        return Counter(other for roots in self.roots.values() for other in roots.elements() if other != self.root)


def root_of(answer: dict[str, Any], recipe: Recipe) -> Root:
    """Return the root that an answer names."""
    node = answer["node"] if recipe.node else ""
    return Root(str(answer["cause"]), node, answer["rank"] if recipe.rank is not None else None)


def words_of(answer: dict[str, Any]) -> str:
    """Return the words of the root, without numbers and what stands before them."""
    return _VARYING.sub("0", _BEFORE.sub("", bare((answer["first_fatal"] or {}).get("text", ""))))[:80]


def runs_of_two_nodes() -> Iterator[tuple[Case, Case]]:
    """Yield each run as it lies merged and in files."""
    by = {(case.recipe.name, case.env): case for case in cases() if case.recipe.nodes == 2}
    for (name, env), case in sorted(by.items()):
        if env.endswith("-merged"):
            yield case, by[name, env.removesuffix("-merged") + "-split"]


def orders(one: Case, files: Case, count: int) -> Iterator[tuple[str, Callable[[Path], list[Path]]]]:
    """Yield the form of every order, and what writes it into a folder and returns what is diagnosed."""

    def lines(seed: int) -> Callable[[Path], list[Path]]:
        return lambda folder: lay(replace(one, logs={"": shuffled(one.logs[""], seed)}), folder)

    def any_order(seed: int) -> Callable[[Path], list[Path]]:
        def write(folder: Path) -> list[Path]:
            lay(files, folder)
            names = sorted(files.logs)
            random.Random(seed).shuffle(names)
            return [folder / name for name in names]

        return write

    yield "merged", lambda folder: lay(one, folder)
    yield "a folder", lambda folder: lay(files, folder)
    for seed in range(count):
        yield "lines shuffled", lines(seed)
        yield "files in any order", any_order(seed)


def told_of(one: Case, files: Case, count: int) -> Told:
    """Ask every order of a fault."""
    roots: dict[str, Counter[Root]] = {}
    words: list[str] = []
    for form, write in orders(one, files, count):
        with tempfile.TemporaryDirectory(prefix="rlbox-orders-") as folder:
            answer = shipped_judge(write(Path(folder))).as_json()
        roots.setdefault(form, Counter())[root_of(answer, one.recipe)] += 1
        words.append(words_of(answer))
    return Told(next(iter(roots["merged"])), roots, words.count(words[0]))


def main() -> int:
    """Ask every order of every fault, and print what changed; 1 where something did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--fault", default="", help="one recipe alone")
    asked = parser.parse_args()
    changed = 0
    for one, files in runs_of_two_nodes():
        if asked.fault not in ("", one.recipe.name):
            continue
        told = told_of(one, files, asked.count)
        same = ", ".join(f"{form} {roots[told.root]} of {roots.total()}" for form, roots in told.roots.items())
        print(f"{one.recipe.name} on {one.env}: {same}; the same words {told.same_words} of {told.asked}", flush=True)
        changed += max(told.others.total(), told.asked - told.same_words)
        for other, times in told.others.most_common(6) if one.recipe.half == "open" else ():
            print(f"  {times} times {tuple(other)}, not {tuple(told.root)}", flush=True)
    print(f"{changed} orders with another root", flush=True)
    return int(changed > 0)


if __name__ == "__main__":
    sys.exit(main())
