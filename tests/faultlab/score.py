"""How well `rlbox diagnose` does on the fault lab, by half.

    python tests/faultlab/score.py [--half open|held] [--wrong]

Cause and line are told right as the corpus tells it: the cause or one of `also`; the labelled line, or another
exception of the same chained traceback. A healthy run is right when nothing is called fatal. Of a cascade every line
that the recipe calls a victim's is counted, and linked when a step of the chain holds it that leads to the root. The
held half is scored by whoever does not write signatures; `--wrong` names no case of it.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2])]

from exceptions import bare, raised_lines  # noqa: E402
from faultrecipe import HALVES, Half, Recipe, recipes  # noqa: E402
from record import labels_of, logs_of  # noqa: E402

from rlbox.config.project import Project  # noqa: E402
from rlbox.diagnose.diagnosis import Diagnosis, diagnose_paths  # noqa: E402
from rlbox.diagnose.root_cause import CausalLink  # noqa: E402
from rlbox.diagnose.signatures import SignatureSet, load_signatures  # noqa: E402

Judge = Callable[[list[Path]], Diagnosis]
_VARYING = re.compile(r"0x[0-9a-f]+|\d+")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One recorded log, or a folder of them, and its label."""

    recipe: Recipe
    env: str
    label: dict[str, Any]
    logs: dict[str, str]

    @property
    def accepted(self) -> set[tuple[str, int]]:
        """The lines that are right: the labelled one, and the other exceptions of its chain."""
        file, line = self.label.get("file", ""), self.label["line"]
        log = self.logs.get(file, "")
        raised = list(raised_lines(log))
        chain = {one.chain for one in raised if one.number == line}
        own = {(file, number) for number in (line, *(one.number for one in raised if one.chain in chain))}
        return own | {
            (name, number)
            for name, text in self.logs.items()
            for number, said in enumerate(text.split("\n"), 1)
            if self.recipe.near and re.search(self.recipe.near, bare(said))
        }


def cases(half: Half | None = None) -> Iterator[Case]:
    """Yield every recorded run."""
    for recipe in recipes(half):
        for env, label in sorted(labels_of(recipe).items()):
            yield Case(recipe=recipe, env=env, label=label, logs=logs_of(recipe, env))


def lay(case: Case, folder: Path) -> list[Path]:
    """Write the logs of a case below a folder and return what `diagnose_paths` is given."""
    for name, text in case.logs.items():
        path = folder / (name or "launch.log")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
    return [folder / "launch.log"] if set(case.logs) == {""} else [folder]


def asked_of(case: Case, judge: Judge) -> Diagnosis:
    """Return the answer to a case."""
    with tempfile.TemporaryDirectory(prefix="rlbox-faultlab-") as folder:
        return judge(lay(case, Path(folder)))


def judged(case: Case, answer: dict[str, Any]) -> dict[str, bool]:
    """Return what of the answer to a case is right; keys as in the table."""
    if not case.recipe.fatal:
        return {"quiet": not answer["fatal"]}
    causes = {case.recipe.cause, *case.recipe.also}
    first = answer.get("first_fatal") or {}
    text, expected = bare(first.get("text", "")), {bare(_line(case, at)) for at in case.accepted}
    right = {"fatal": bool(answer["fatal"]), "line": text in expected}
    if case.recipe.cascade:
        right["answer no victim"] = text in expected or not is_victim(case, text)
    if case.recipe.cause == "unknown":
        return {**right, "unknown kept": answer["cause"] in {"unknown", *case.recipe.also}}
    right["cause"] = answer["cause"] in causes
    right["not wrong"] = answer["cause"] in {*causes, "unknown", None}
    if case.recipe.rank is not None:
        right["rank"] = answer.get("rank") == case.recipe.rank
    if case.recipe.node:
        right["node"] = answer.get("node") == case.recipe.node
    return right


def _line(case: Case, at: tuple[str, int]) -> str:
    lines = case.logs.get(at[0], "").split("\n")
    return lines[at[1] - 1] if 0 < at[1] <= len(lines) else ""


def is_victim(case: Case, text: str) -> bool:
    """Whether a line is one of those that only noticed."""
    return bool(case.recipe.victims and re.search(case.recipe.victims, text))


def victims(case: Case, found: Diagnosis) -> Iterator[tuple[str, int, bool]]:
    """Yield file and number of each victim's line of a cascade, and whether it is linked to the root."""
    if not case.recipe.cascade:
        return
    steps = [link for link in found.chain if _leads_home(link, found.chain)]
    names = [one.name for one in found.files]
    root = {bare(_line(case, at)) for at in case.accepted}
    for file, text in case.logs.items():
        own = [link for link in steps if names[link.candidate.event.log_index].endswith(file or "launch.log")]
        for number, line in enumerate(text.split("\n"), 1):
            if is_victim(case, said := bare(line)) and said not in root:
                yield file, number, any(_holds(link, number, said) for link in own)


def _leads_home(link: CausalLink, chain: tuple[CausalLink, ...]) -> bool:
    """Whether a step is a consequence from which one comes to the root, step by step."""
    for _ in chain:
        if link.cause_index <= 0:
            return link.cause_index == 0
        link = chain[link.cause_index]
    return False


def _holds(link: CausalLink, number: int, text: str) -> bool:
    """Whether a line is of a step: it lies within, or it is one of those that were alike and were counted."""
    event = link.candidate.event
    last = max(event.last_number, *(at for at, _ in event.tail), event.main_line_number)
    alike = event.count > 1 and _VARYING.sub("0", bare(event.text)) == _VARYING.sub("0", text)
    return event.first_number <= number <= last or alike


def table(half: Half, judge: Judge) -> tuple[Counter[str], Counter[str], list[str]]:
    """Return right answers, asked questions, and the names of the cases with something wrong."""
    good: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    wrong = []
    for case in cases(half):
        found = asked_of(case, judge)
        answers = judged(case, found.as_json())
        asked.update(answers.keys())
        good.update(key for key, right in answers.items() if right)
        missed = [key for key, right in answers.items() if not right]
        lines = list(victims(case, found))
        asked["victims linked"] += len(lines)
        good["victims linked"] += sum(linked for *_, linked in lines)
        missed += [f"no link from {file or 'line'}:{number}" for file, number, linked in lines if not linked]
        if missed:
            wrong.append(f"{case.recipe.name} on {case.env}: {', '.join(missed)}")
    return good, asked, wrong


def shipped_judge(paths: list[Path]) -> Diagnosis:
    """Ask rlbox's own judge, with the shipped catalogue."""
    return diagnose_paths(paths, shipped_catalogue())


@functools.cache
def shipped_catalogue() -> SignatureSet:
    """Return the signatures of this checkout."""
    return load_signatures(Project(folder=Path(__file__).resolve().parents[2]).own_pack_and_shipped_fix_files())


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=HALVES)
    parser.add_argument("--wrong", action="store_true", help="name the cases of the open half that are wrong")
    asked = parser.parse_args()
    for half in HALVES if asked.half is None else (asked.half,):
        good, all_asked, wrong = table(half, shipped_judge)
        print("\n".join(f"{half}: {key}: {good[key]} of {all_asked[key]}" for key in sorted(all_asked)))
        if asked.wrong and half == "open":
            print(*(f"  {line}" for line in wrong), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
