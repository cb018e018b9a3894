"""The reader's test: what somebody understands who is given four lines of `rlbox diagnose` and nothing else.

    python tests/faultlab/reader.py TAXONOMY FOLDER [--seed N]

Draws twelve recorded runs by the lot: twelve layers of the taxonomy of causes (a file with `## layer` and `### cause`),
six recipes of either half, one run of each; nobody chooses. Writes below FOLDER `lines.md` and `lines.zh.md`, which are
for readers, `key.md` for who judges their answers, and `reader.toml`, to be completed by the answers and the verdicts
and kept beside this file: `make docs` makes docs/internal/reader.md of it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(CHECKOUT)]

from faultrecipe import HALVES  # noqa: E402
from score import Case, cases, lay  # noqa: E402

LOGS, SEED = 12, 19
LANGUAGES = {"en": "lines.md", "zh": "lines.zh.md"}
_HEADING = re.compile(r"^(##|###) `?([\w-]+)`?", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """One run of the lab, its layer, and the four lines that `rlbox diagnose` prints of it, by language."""

    layer: str
    case: Case
    lines: dict[str, str]


def layers_of(taxonomy: str) -> dict[str, str]:
    """Return the layer of each cause."""
    found, layer = {}, ""
    for sign, name in _HEADING.findall(taxonomy):
        if sign == "##":
            layer = name
        else:
            found[name] = layer
    return found


def drawn(layers: dict[str, str], seed: int) -> list[tuple[str, Case]]:
    """Draw a run from each of twelve layers, of both halves in turn; where a half has none of a layer the next one."""
    by: dict[tuple[str, str], dict[str, list[Case]]] = defaultdict(lambda: defaultdict(list))
    for case in cases():
        if case.recipe.fatal and case.recipe.cause in layers:
            by[layers[case.recipe.cause], case.recipe.half][case.recipe.name].append(case)
    lot = random.Random(seed)
    left = sorted({layer for layer, _ in by})
    lot.shuffle(left)
    found: list[tuple[str, Case]] = []
    while len(found) < LOGS:
        half = HALVES[len(found) % 2]
        layer = next(one for one in left if (one, half) in by)
        left.remove(layer)
        runs = by[layer, half]
        found.append((layer, lot.choice(runs[lot.choice(sorted(runs))])))
    lot.shuffle(found)
    return found


def four_lines(case: Case, language: str) -> str:
    """Return the first four lines that a user sees who has the log, and no other."""
    with tempfile.TemporaryDirectory(prefix="rlbox-reader-") as folder:
        words = [str(path.relative_to(folder)) or "." for path in lay(case, Path(folder))]
        argv = (sys.executable, "-m", "rlbox", "diagnose", *words, "--lang", language, "--project", str(CHECKOUT))
        env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
        done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 1:
        raise RuntimeError(f"{case.recipe.name}: exit code {done.returncode}: {done.stderr[-500:]}")
    return "\n".join(done.stdout.split("\n")[:4])


def for_readers(rows: list[Drawn], language: str) -> str:
    """Return what a reader is given."""
    return "\n".join(f"{number}.\n{row.lines[language]}\n" for number, row in enumerate(rows, 1))


def for_judge(rows: list[Drawn]) -> str:
    """Return what whoever judges the answers is given."""
    told = []
    for number, row in enumerate(rows, 1):
        recipe, label = row.case.recipe, row.case.label
        told += [
            f"{number}. {recipe.half}/{recipe.name} on {row.case.env} ({row.layer})",
            f"   label: {recipe.cause}" + "".join(f", or {one}" for one in recipe.also),
            f"   what was done: {recipe.title}",
            f"   line: {label['file']}:{label['line']}: {label['text']}",
            f"   node {recipe.node or '-'}, rank {'-' if recipe.rank is None else recipe.rank}",
            "",
        ]
    return "\n".join(told)


def to_keep(rows: list[Drawn], seed: int) -> str:
    """Return the file that answers and verdicts are put into."""
    told = [f"seed = {seed}"]
    for row in rows:
        recipe = row.case.recipe
        versions = ", ".join(f"{name} {text}" for name, text in sorted(row.case.label.get("versions", {}).items()))
        told += ["", "[[log]]", f'layer = "{row.layer}"', f'half = "{recipe.half}"', f'cause = "{recipe.cause}"']
        told += [f"versions = {json.dumps(versions)}", f"done = {json.dumps(recipe.title)}"]
        told += [f"{language} = {json.dumps(row.lines[language], ensure_ascii=False)}" for language in LANGUAGES]
    return "\n".join(told) + "\n"


def main() -> int:
    """Draw, diagnose and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("taxonomy", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=SEED)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    rows = [
        Drawn(layer=layer, case=case, lines={language: four_lines(case, language) for language in LANGUAGES})
        for layer, case in drawn(layers_of(asked.taxonomy.read_text(encoding="utf-8")), asked.seed)
    ]
    for language, name in LANGUAGES.items():
        (asked.folder / name).write_text(for_readers(rows, language), encoding="utf-8")
    (asked.folder / "key.md").write_text(for_judge(rows), encoding="utf-8")
    (asked.folder / "reader.toml").write_text(to_keep(rows, asked.seed), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
