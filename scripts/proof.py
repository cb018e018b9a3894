"""docs/proof.md and rlbox/stack/proven.json from the kept runs of tests/gpu/kept; `--check`: are they of these runs?

A kept run is a folder: `run.json` as the run wrote it, `stages.log.xz` with what its stages said, and `about.json`
with what neither tells: GPU, date, the versions of the stack. A stage counts as proven when every rule of its gate
held; a run that ended early proves the stages before.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
KEPT, PAGE = CHECKOUT / "tests/gpu/kept", CHECKOUT / "docs/proof.md"
PROVEN = CHECKOUT / "rlbox/stack/proven.json"
JOBS = ("sft", "grpo", "gkd", "xdan", "holdem")
HEAD = """<!-- made by: python scripts/proof.py -->
# What has run on GPUs

One line for each kept run of a job's profile `tiny`: the real framework, a small model made on the spot, every stage
and gate of the job. The logs are in `tests/gpu/kept`. What is not here is **unproven**: other GPUs, other versions (so
the stacks that `a800-cn`, `cluster-2node` and `vast-5090` lock), several nodes, models of full size.

| job | profile | stages proven | stopped in | GPU | place | date | seconds |
|---|---|---|---|---|---|---|---:|
"""


def kept() -> list[dict[str, Any]]:
    """Return the kept runs, in the order of the jobs and then of time: `run`, `about` and the folder's `name`."""
    found = []
    for folder in sorted(path.parent for path in KEPT.glob("*/run.json")):
        read = {part: json.loads((folder / f"{part}.json").read_text("utf-8")) for part in ("run", "about")}
        found.append({"name": folder.name, **read})
    return sorted(found, key=lambda row: (JOBS.index(row["run"]["job"]), row["name"]))


def proven(run: dict[str, Any]) -> list[str]:
    """Return the stages all of whose rules held."""
    return [
        stage["name"]
        for stage in run["stages"]
        if stage["state"] == "passed" and stage["gate"] and all(rule["state"] == "held" for rule in stage["gate"])
    ]


def stopped(run: dict[str, Any]) -> str:
    """Return the stage that a run ended in, or nothing for one that passed."""
    return next((stage["name"] for stage in run["stages"] if stage["state"] == "failed"), "")


def lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the page's tables."""
    for row in rows:
        run, about = row["run"], row["about"]
        seconds = sum(stage.get("seconds") or 0 for stage in run["stages"])
        where = "in place" if run["place"] == "here" else "container"
        profile = run["profile"].replace("+", ", ")
        gpus = f"{about['gpus']} × {about['gpu']}"
        yield (
            f"| {run['job']} | {profile} | {', '.join(proven(run))} | {stopped(run)} | {gpus} | {where} "
            f"| {about['date']} | {seconds:.0f} |\n"
        )
    yield "\n| run | stack | what stopped it |\n|---|---|---|\n"
    for row in rows:
        stack = ", ".join(f"{name} {version}" for name, version in row["about"]["stack"].items())
        cause = next((stage["cause"] for stage in row["run"]["stages"] if stage.get("cause")), None)
        why = str((cause or {}).get("line") or (cause or {}).get("text") or "").replace("|", "\\|")[-160:]
        yield f"| {row['name']} | {stack} | {why} |\n"
    notes = sorted({f"{row['about']['note']}, Python {row['about']['python']}" for row in rows})
    yield "\n" + "".join(f"All of it: {note}. No run in a container is kept yet.\n" for note in notes)


def page() -> str:
    """Return the page that the kept runs give."""
    return HEAD + "".join(lines(kept()))


def facts() -> str:
    """Return what the tool says of the stacks that have run: the runs that passed, with the versions of their stack."""
    rows = [
        {
            "job": row["run"]["job"],
            "profile": row["run"]["profile"].replace("+", ", "),
            "gpu": row["about"]["gpu"],
            "gpus": row["about"]["gpus"],
            "place": row["run"]["place"],
            "date": row["about"]["date"],
            "stack": {name: version.partition(" ")[0] for name, version in row["about"]["stack"].items()},
        }
        for row in kept()
        if row["run"]["state"] == "passed"
    ]
    return json.dumps({"schema": 1, "runs": rows}, indent=1) + "\n"


def main() -> None:
    """Write both, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 when they are of other runs")
    told = parser.parse_args()
    for path, text in ((PAGE, page()), (PROVEN, facts())):
        if not told.check:
            path.write_text(text, "utf-8")
        elif path.read_text("utf-8") != text:
            sys.exit(f"{path.relative_to(CHECKOUT)} is not what tests/gpu/kept gives: run python scripts/proof.py")


if __name__ == "__main__":
    main()
